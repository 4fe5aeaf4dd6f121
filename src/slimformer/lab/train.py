"""One training, from the first step or from a saved state, to the same bits either way."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.lab.architectures.minimal_attention import MinimalAttention
from slimformer.lab.feed import IGNORED, Feed, Part, generator
from slimformer.lab.model import build, parameters
from slimformer.lab.settings import Optimiser, RunSettings
from slimformer.lab.state import Progress, load_state, save_state

EVALUATION_ROWS = 250
LANGUAGE = ("masked-lm", "causal-lm")
Told = Callable[[int, int], None]  # steps done, steps in all


def steps_of(run: RunSettings, feed: Feed) -> tuple[int, int]:
    """Steps in all, and between two evaluations."""
    per_epoch = max(1, feed.sizes["train"] // run.batch_size)
    total = run.steps or max(1, round((run.epochs or 1) * per_epoch))
    return total, run.evaluate_every or (per_epoch if run.steps is None else max(1, total // 10))


def train(
    run: RunSettings, feed: Feed, state: Path, *, every: float = 60.0, tell: Told = lambda done, total: None,
    start: Path | None = None,
) -> tuple[dict[str, Any], PreTrainedModel]:  # fmt: skip
    """Train from fresh weights or those in a folder, saving the state every so many seconds; what was found, and the
    model.

    Example order, augmentations and masks are drawn by seed and step, dropout by the generator whose state is saved:
    stopped anywhere and resumed, one thread of a CPU gives the same bits.
    """
    torch.manual_seed(run.seed)
    model = build(run.task, run.model, feed.facts, start)
    optimiser = make_optimiser(model, run.optimiser)
    made_of = {"digest": run.digest(), "data": feed.digest}
    progress = load_state(state, made_of, model, optimiser) or Progress()
    total, between = steps_of(run, feed)
    clock, saved = _Clock(progress), time.perf_counter()
    note = ""
    while progress.step < total and not note:
        note = _step(run, feed, model, optimiser, progress, total)
        clock.read(progress)
        if not note and (progress.step % between == 0 or progress.step == total):
            note = _evaluate_now(run, feed, model, progress)
        tell(progress.step, total)
        if not note and time.perf_counter() - saved >= every and progress.step < total:
            clock.read(progress)
            save_state(state, made_of, progress, model, optimiser)
            saved = time.perf_counter()
    result: dict[str, Any] = {"note": note, "steps": progress.step, "history": progress.history}
    if not note:
        result["train"] = evaluate(model, feed, "train", run.task, most=run.train_evaluation)
        result["validation"] = {key: progress.history[-1][key] for key in result["train"]}
    clock.read(progress)
    seconds = {"seconds": progress.seconds, "cpu_seconds": progress.cpu_seconds}
    return {**_facts(run, feed, model), **result, **seconds}, model


class _Clock:
    """Seconds on the wall and of the processor, added to those spent before a stop."""

    def __init__(self, progress: Progress) -> None:
        self.wall, self.cpu = time.perf_counter() - progress.seconds, time.process_time() - progress.cpu_seconds

    def read(self, progress: Progress) -> None:
        progress.seconds, progress.cpu_seconds = time.perf_counter() - self.wall, time.process_time() - self.cpu


def _step(
    run: RunSettings, feed: Feed, model: PreTrainedModel, optimiser: torch.optim.Optimizer, progress: Progress,
    total: int,
) -> str:  # fmt: skip
    """One step; the reason to stop, if there is one."""
    model.train()
    for group in optimiser.param_groups:
        group["lr"] = run.optimiser.lr * rate(run.optimiser, progress.step, total)
    index = batch_index(run.seed, progress.step, feed.sizes["train"], run.batch_size)
    loss = model(**feed.load("train", index, generator(run.seed, "draw", progress.step))).loss
    value = float(loss.detach())
    if not math.isfinite(value):
        return f"the loss was {value} at step {progress.step + 1} of {total}"
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if run.optimiser.clip is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.optimiser.clip)
    optimiser.step()
    progress.step += 1
    progress.loss_sum += value
    progress.loss_count += 1
    return ""


def _evaluate_now(run: RunSettings, feed: Feed, model: PreTrainedModel, progress: Progress) -> str:
    """A point of the curve; the reason to stop, if there is one."""
    scores = evaluate(model, feed, "validation", run.task)
    if not math.isfinite(scores["loss"]):
        return f"the validation loss was {scores['loss']} after step {progress.step}"
    running = progress.loss_sum / max(1, progress.loss_count)
    progress.history.append({"step": progress.step, "running_loss": running, "seconds": progress.seconds, **scores})
    progress.loss_sum, progress.loss_count = 0.0, 0
    return ""


def make_optimiser(model: PreTrainedModel, settings: Optimiser) -> torch.optim.AdamW:
    """AdamW; biases, norms, other vectors, and α, β, γ of shaped attention do not decay. Tables of embeddings do."""
    scalars = {id(m.shape) for m in model.modules() if isinstance(m, MinimalAttention) and m.shape is not None}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # 1 × 1 × D, as a class token is, is a vector
    decays = [(p.ndim == 2 or p.shape[:-1].numel() > 1) and id(p) not in scalars for p in trained]
    groups = [
        {"params": [p for p, yes in zip(trained, decays, strict=True) if yes], "weight_decay": settings.weight_decay},
        {"params": [p for p, yes in zip(trained, decays, strict=True) if not yes], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)


def rate(settings: Optimiser, step: int, total: int) -> float:
    """Fraction of the learning rate at a step: up in a line, then down to zero in half a cosine or a line."""
    warm = round(settings.warmup * total)
    if step < warm:
        return (step + 1) / warm
    along = (step - warm) / max(1, total - warm)
    return {"cosine": 0.5 * (1 + math.cos(math.pi * along)), "linear": 1 - along, "constant": 1.0}[settings.schedule]


def batch_index(seed: int, step: int, n: int, size: int) -> Tensor:
    """The examples of a step: every epoch is a new order of all of them, the last few that fill no batch left out."""
    size = min(size, n)
    epoch, place = divmod(step, n // size)
    order = _order(seed, epoch, n)
    return order[place * size : (place + 1) * size]


def _order(seed: int, epoch: int, n: int) -> Tensor:
    key = (seed, epoch, n)
    if key not in _ORDER:
        _ORDER.clear()
        _ORDER[key] = torch.randperm(n, generator=generator(seed, "order", epoch))
    return _ORDER[key]


_ORDER: dict[tuple[int, int, int], Tensor] = {}  # the epoch under way


@torch.no_grad()
def evaluate(model: PreTrainedModel, feed: Feed, part: Part, task: str, most: int | None = None) -> dict[str, float]:
    """Loss and accuracy, each a mean over examples (for language models: over the tokens asked for)."""
    model.eval()
    measured = _measured(feed.sizes[part], most)
    rows = EVALUATION_ROWS if task == "image-classes" else 32
    loss, right, count = 0.0, 0, 0
    with torch.random.fork_rng(devices=[]):
        for index in measured.split(rows):
            batch = feed.load(part, index, None)
            labels = batch.pop("labels")
            logits = model(**batch).logits.float()
            if feed.causal:
                logits, labels = logits[:, :-1], labels[:, 1:]
            logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
            labelled = labels != IGNORED
            logits, labels = logits[labelled], labels[labelled]
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
            count += len(labels)
    scores = {"loss": loss / count, "accuracy": right / count}
    return {**scores, "perplexity": math.exp(min(scores["loss"], 700.0))} if task in LANGUAGE else scores


def _measured(n: int, most: int | None) -> Tensor:
    """`most` of n examples, the same for every run; drawn, since files are often in the order of their classes."""
    if most is None or most >= n:
        return torch.arange(n)
    return torch.randperm(n, generator=generator("measured", n))[:most].sort().values


def _facts(run: RunSettings, feed: Feed, model: PreTrainedModel) -> dict[str, Any]:
    count = parameters(model)
    return {
        "slimformer_lab_run": 1, "name": run.name, "row": run.row, "seed": run.seed, "labels": run.labels,
        "digest": run.digest(), "settings": run.decisive(),
        "data": {"digest": feed.digest, **feed.sizes},
        "parameters": count, "outputs": feed.outputs, "examples": feed.examples,
        "q": feed.examples * feed.outputs / count,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "python": platform.python_version()},
    }  # fmt: skip
