"""The global phase: all blocks learn to give the dense outputs, on `transformers.Trainer` with the loss of `losses`.

Optimiser, schedule, mixed precision, accumulation, checkpoints and several processes are the Trainer's. What is ours:
the loss against a teacher that does not learn, what is held out and decides (`held_out`), and the learning rate, which
goes up or down a ladder as long as a short trial on the select split is better for it.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import EarlyStoppingCallback, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from slimformer.calibrate.distributed import world
from slimformer.calibrate.text import Batch
from slimformer.errors import FileChanged
from slimformer.files import manifest
from slimformer.files.seals import read_sealed, save_sealed
from slimformer.heal.held_out import HeldOut, mean_share, score
from slimformer.heal.losses import distillation_loss
from slimformer.heal.remembered import Remembered, remembered_loss
from slimformer.heal.sampled import Words, comparing
from slimformer.heal.settings import HealSettings
from slimformer.heal.trained import keep_part, put_back, snapshot
from slimformer.heal.work import Work, agreed
from slimformer.messages.progress import Progress, clock, silent
from slimformer.models import describe
from slimformer.models.walk import plain_call

# by what is trained: few numbers must move far; for steps of so many tokens, and less for smaller ones
STEP = 2048
RATES = {
    "all": (1e-3, 5e-4, 2.5e-4, 1.2e-4, 5e-5), "lora": (5e-3, 2e-3, 1e-3, 3e-4, 1e-4),
    "norms": (2e-2, 1e-2, 3e-3, 1e-3, 3e-4),
}  # fmt: skip
START = 2  # the rung of the ladder that is tried first
LOOKS, LEAST_LOOKS = 8, 3  # at the select split on the way
LOOKING = 0.08  # of the time, at most, unless that is fewer looks than the least
PACED = 5  # steps by which minutes become steps
TRIAL, TRIALS = 0.05, 3  # of all steps, for each rate that is tried, and how many usually are
WORTH_TRIALS = 2000  # with fewer steps, the usual rate: a shorter trial prefers rates that are too low
WARM_UP = 0.05
NUMBER = "number_of_batch"  # beside the inputs of a batch
WEIGHTS = "trained.safetensors"
PATIENCE = 3  # looks that are not better than the best

log = logging.getLogger("slimformer")


@dataclass(frozen=True)
class GlobalPlan:
    """How many steps, at which rate at most, and how often the select split is looked at."""

    steps: int
    rate: float
    every: int


@dataclass(frozen=True)
class Distilled:
    """What was planned, how much of the way was kept, and the score of what was."""

    plan: GlobalPlan
    part: float
    score: float


@dataclass(frozen=True)
class Teaching:
    """What is needed to learn from a teacher."""

    teacher: PreTrainedModel
    batches: Sequence[Batch]
    held_out: HeldOut
    start: Mapping[str, float]  # losses at the start of everything: no text may become worse than that
    settings: HealSettings
    seed: int = 0
    remembered: Remembered | None = None
    words: Words | None = None  # to compare by, of a large vocabulary

    @property
    def rates(self) -> list[float]:
        """Learning rates to choose from: with the root of the size of a step, as its noise falls (Malladi et al.
        2022)."""
        share = 1.0 if self.batches[0].mask is None else min(1.0, self.tokens_per_step / STEP)
        return [share**0.5 * rate for rate in RATES[self.settings.train]]

    @property
    def tokens_per_step(self) -> float:
        """Tokens (images) that are learned from in one step, on average."""
        together = world().size * self.settings.accumulate
        return together * sum(batch.tokens for batch in self.batches) / len(self.batches)

    def score(self, model: nn.Module) -> float:
        """What is left on the select split, where no text is worse than at the start."""
        return score(self.held_out.losses(self.teacher, model), self.start)  # type: ignore[arg-type]


class Distiller(Trainer):
    """The Trainer with a teacher. Every item of its data is a whole batch."""

    loss_is_scaled_for_ga = False  # a mean over one batch

    def __init__(self, model: nn.Module, args: TrainingArguments, teaching: Teaching, **more: Any) -> None:
        self.teaching = teaching
        self.trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.call = plain_call(describe(teaching.teacher))
        data = [{**batch.inputs, NUMBER: torch.tensor(i)} for i, batch in enumerate(teaching.batches)]
        super().__init__(
            model, args, data_collator=lambda items: items[0], train_dataset=data, eval_dataset=data[:1], **more
        )  # what is evaluated on is `held_out`

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """KL, cosine or squared change against the teacher, without dropout: the teacher has none either."""
        _without_dropout(model, recomputing=self.teaching.settings.recompute)
        number, read = (
            int(inputs[NUMBER]),
            {name: value for name, value in inputs.items() if name != NUMBER} | self.call,
        )
        mask, teacher, words = inputs.get("attention_mask"), self.teaching.teacher, self.teaching.words
        real = None if mask is None else mask.bool()
        if self.teaching.remembered is not None:
            known = self.teaching.remembered.of(number, teacher, read)
            loss = remembered_loss(known, given := model(**read), real)
            return (loss, given) if return_outputs else loss
        some, more = (None, None) if words is None else words.some(self._draw(number))
        with nullcontext() if some is None else comparing((teacher, self.model), some):  # type: ignore[arg-type]
            with torch.no_grad():
                wanted = teacher(**read)
            given = model(**read)
        loss, _ = distillation_loss(wanted, given, real, more)
        return (loss, given) if return_outputs else loss

    def _draw(self, number: int) -> int:
        """A seed of its own for every step and batch, the same after a run is resumed."""
        return self.teaching.seed + len(self.teaching.batches) * self.state.global_step + number

    def evaluate(self, *_args: Any, **_kwargs: Any) -> dict[str, float]:
        """How much is left on the select split; below one where texts have gained on average."""
        now = self.teaching.held_out.losses(self.teaching.teacher, self.model)  # type: ignore[arg-type]
        metrics = {"eval_loss": mean_share(now, self.teaching.start)}
        metrics |= {f"eval_{name}": loss for name, loss in now.items()}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints hold what is trained, by the names it has in this model: `save_pretrained` of transformers may rename
    # weights, and then they would not be found again.
    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        save_sealed(self.trained, folder / WEIGHTS, {})

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        put_back(self.trained, read_sealed(Path(resume_from_checkpoint) / WEIGHTS)[0])

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(str(self.state.best_model_checkpoint))


def _without_dropout(model: nn.Module, *, recomputing: bool) -> None:
    """Evaluation mode; only what recomputes activations must believe that it is training."""
    model.eval()
    for module in model.modules() if recomputing else ():
        if hasattr(module, "gradient_checkpointing"):
            module.training = True


class _ProgressLines(TrainerCallback):
    """Says how far the training is: steps on the bar, and a line for every look at the select split."""

    def __init__(self, teaching: Teaching, progress: Progress) -> None:
        self.teaching, self.progress = teaching, progress
        self.began, self.first = 0.0, 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began, self.first = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.progress("heal", state.global_step, state.max_steps)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        steps, seconds = state.global_step - self.first, time.monotonic() - self.began
        pace = self.teaching.tokens_per_step * steps / max(seconds, 1e-9)
        left = seconds * (state.max_steps - state.global_step) / max(1, steps)
        losses = ", ".join(
            f"{name} {metrics[f'eval_{name}']:.4g} (was {was:.4g})" for name, was in self.teaching.start.items()
        )
        done = f"step {state.global_step:,} of {state.max_steps:,}"
        log.info(f"heal: {done}, held-out loss {losses}, {pace:,.0f} tokens/s, {clock(left)} left")


class _Pace(TrainerCallback):
    """Seconds of the steps after the first, which is slow, as the start of training is."""

    began, seconds = 0.0, 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.began = self.began or time.monotonic()
        self.seconds = time.monotonic() - self.began


def distil(
    model: nn.Module, trained: Mapping[str, nn.Parameter], teaching: Teaching, work: Work, progress: Progress = silent
) -> Distilled:
    """Let the `trained` parameters of `model` learn in place. Of the way to the best weights on the select split as
    much is kept as leaves no text worse; all of it, mostly. A killed run goes on from its checkpoint.

    Cost of a step: three forward passes of the student and one of the teacher.
    """
    before = snapshot(trained)
    with _as_before():
        plan = _plan(model, trained, teaching, work)
        if not plan.steps:
            return Distilled(plan, 0.0, 1.0)
        trainer = _trainer(model, teaching, plan, work.trainer, [_ProgressLines(teaching, progress)])
        unhealed = teaching.score(model)
        trainer.train(resume_from_checkpoint=agreed(last_checkpoint(work.trainer)))
    model.eval()
    return Distilled(plan, *keep_part(trained, before, lambda: teaching.score(model), min(unhealed, 1.0)))


class _Listed(TrainerCallback):
    """Lists the files of every checkpoint with their sums, so that a spoilt one is not gone on from."""

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            manifest.finish(Path(args.output_dir) / f"checkpoint-{state.global_step}", "healing")


def last_checkpoint(folder: Path) -> str | None:
    """The newest checkpoint that is whole, and whose best one is: a kill may come while one is written or removed, and
    a disk may spoil it."""
    best = {path: loss for path in folder.glob("checkpoint-*") if (loss := _best_of(path)) is not None}
    usable = [path for path, name in best.items() if name in {each.name for each in best}]
    return str(max(usable, key=lambda path: int(path.name.rpartition("-")[2]))) if usable else None


def _best_of(checkpoint: Path) -> str | None:
    """The name of the best checkpoint so far, as a whole one says; of another nothing."""
    from transformers.trainer_callback import TrainerState

    try:
        known = manifest.read(checkpoint)
        if known is None or not all((checkpoint / name).is_file() for name in known.files):
            return None
        if any(manifest.changed(checkpoint, "*")):
            return None
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    except (OSError, ValueError, TypeError, FileChanged):
        return None
    return Path(state.best_model_checkpoint or checkpoint).name if state.global_step else None


def _plan(model: nn.Module, trained: Mapping[str, nn.Parameter], teaching: Teaching, work: Work) -> GlobalPlan:
    """Steps and rate; those of an earlier run where it had decided already."""
    known = agreed(None if (note := work.recall("plan")) is None else note[0])
    if known is not None:
        return GlobalPlan(**known)
    before = snapshot(trained)
    steps, looks = agreed(_steps(model, trained, teaching, work))
    every = max(1, math.ceil(steps / looks))
    steps = steps // every * every
    rate = teaching.settings.rate or teaching.rates[START]
    if teaching.settings.rate is None and steps >= WORTH_TRIALS:
        rate = _found_rate(model, trained, teaching, work, steps)
    put_back(trained, before)
    plan = GlobalPlan(steps, rate, every)
    work.keep("plan", asdict(plan))
    return plan


def _steps(model: nn.Module, trained: Mapping[str, nn.Parameter], teaching: Teaching, work: Work) -> tuple[int, int]:
    """How many steps the budget has, and how often the select split is looked at; minutes by the pace of some steps."""
    settings = teaching.settings
    unit, amount = settings.budget
    if unit == "epochs":
        return math.ceil(amount * len(teaching.batches) / (world().size * settings.accumulate)), LOOKS
    amount *= settings.share("global")
    if unit == "tokens":
        return math.ceil(amount / teaching.tokens_per_step), LOOKS
    started = time.monotonic()
    step, again, look = _pace(model, trained, teaching, work)
    left = 60 * amount - (time.monotonic() - started)
    looks = max(LEAST_LOOKS, min(LOOKS, int(LOOKING * left / look)))
    new = len(teaching.batches) / (world().size * settings.accumulate)  # steps for which the teacher is asked
    steps = _within(left - looks * look, step, again, new)
    if settings.rate is None and steps >= WORTH_TRIALS:
        steps = _within(left - (looks + TRIALS) * look, step, again, new) / (1 + TRIALS * TRIAL)
    return max(0, int(steps)), looks


def _within(seconds: float, step: float, again: float, new: float) -> float:
    """How many steps there is time for, where those after the `new` ones take less."""
    return seconds / step if seconds <= new * step else new + (seconds - new * step) / again


def _pace(
    model: nn.Module, trained: Mapping[str, nn.Parameter], teaching: Teaching, work: Work
) -> tuple[float, float, float]:
    """Seconds of a step, of one on a batch that was seen before, and of a look at the select split."""
    before = snapshot(trained)
    plan = GlobalPlan(PACED, teaching.rates[-1], 0)

    def timed() -> float:
        pace = _Pace()
        _trainer(model, teaching, plan, work.trainer, more=[pace]).train()
        return pace.seconds / (PACED - 1)

    step = timed()
    again = step if teaching.remembered is None else min(step, timed())
    put_back(trained, before)
    started = time.monotonic()
    teaching.held_out.losses(teaching.teacher, model)  # type: ignore[arg-type]
    return step, again, time.monotonic() - started


def _found_rate(
    model: nn.Module, trained: Mapping[str, nn.Parameter], teaching: Teaching, work: Work, steps: int
) -> float:  # fmt: skip
    """Down the ladder while that is better, else up: the rate with the lowest loss after a short trial."""
    before, rates = snapshot(trained), teaching.rates
    trial = int(TRIAL * steps)
    losses_by_rate: dict[int, float] = {}

    def loss(rung: int) -> float:
        if rung not in losses_by_rate:
            put_back(trained, before)
            _trainer(model, teaching, GlobalPlan(trial, rates[rung], 0), work.trainer).train()
            losses = teaching.held_out.losses(teaching.teacher, model)  # type: ignore[arg-type]
            losses_by_rate[rung] = mean_share(losses, teaching.start)
        return losses_by_rate[rung]

    way = 1 if loss(START + 1) < loss(START) else -1
    at = START + max(0, way)
    while 0 <= at + way < len(rates) and loss(at + way) < loss(at):
        at += way
    put_back(trained, before)
    log.info(f"heal: learning rate {rates[at]:g}, after trials of {trial} steps with {len(losses_by_rate)} rates")
    return rates[at]


def _trainer(
    model: nn.Module, teaching: Teaching, plan: GlobalPlan, folder: Path, more: Sequence[TrainerCallback] = ()
) -> Distiller:
    """A Trainer for one run; a trial, which is not looked at, leaves nothing on the disk."""
    settings, looking = teaching.settings, bool(plan.every)
    when = "steps" if looking else "no"
    recomputing: dict[str, Any] = {"gradient_checkpointing": True} if settings.recompute else {}
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=plan.steps, learning_rate=plan.rate, weight_decay=0.0,
        lr_scheduler_type="linear", warmup_steps=WARM_UP,
        per_device_train_batch_size=1, gradient_accumulation_steps=settings.accumulate,
        bf16=settings.precision == "bfloat16", **recomputing,
        eval_strategy=when, save_strategy=when, eval_steps=max(1, plan.every), save_steps=max(1, plan.every),
        save_total_limit=2, load_best_model_at_end=looking, metric_for_best_model="eval_loss", greater_is_better=False,
        logging_strategy="no", report_to=settings.track, disable_tqdm=True,
        seed=teaching.seed, data_seed=teaching.seed, remove_unused_columns=False, dataloader_pin_memory=False,
        use_cpu=teaching.teacher.device.type == "cpu",
    )  # fmt: skip
    callbacks: list[TrainerCallback] = [_Listed(), *([EarlyStoppingCallback(PATIENCE)] if looking else []), *more]
    trainer = Distiller(model, arguments, teaching, callbacks=callbacks)
    for callback in ("PrinterCallback", "ProgressCallback"):
        for each in [c for c in trainer.callback_handler.callbacks if type(c).__name__ == callback]:
            trainer.remove_callback(each)
    return trainer


@contextmanager
def _as_before() -> Iterator[None]:
    """The Trainer seeds everything; whoever called gets the random numbers they would have had."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
