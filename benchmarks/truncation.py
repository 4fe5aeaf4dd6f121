"""Attention cut by rank, one side at a time: what every method leaves of scores, of the output, and of the model.

    python benchmarks/truncation.py [stories15M] [minilm] [vit-mnist] [smollm2] [--only response ours] [--quick]

All blocks keep the same share of the width of a head; nothing else is cut and nothing is refined afterwards, so that
methods differ in their truncation alone (`truncation_methods.py`). All numbers are of held-out text or images:

    score error     E |s − ŝ|² / E |s|² over what a query may see, centred there, because softmax is: in the dense model
    output error    E ‖y − ŷ‖² / E ‖y‖² of what attention writes, every block given what it is given in the dense model
    end             perplexity, cosine of sentence embeddings to the dense model's, or accuracy, all blocks cut

Results go to benchmarks/results/truncation.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from recipes import shared_file
from slimformer.calibrate.documents import read_documents
from slimformer.calibrate.respond import block_response, projections, sequences_of
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.text import Batch, padded_batches
from slimformer.decompose.response import Response
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.fidelity import state_similarity
from slimformer.evaluate.perplexity import perplexity
from slimformer.linalg.moments import Moments
from slimformer.models import describe
from slimformer.models.hooks import listening
from slimformer.models.load import load_model
from slimformer.models.ranks import heads_of
from slimformer.models.walk import forward, real_rows, rehearse
from slimformer.nn.ragged import RankAttention
from slimformer.rewrite.ranks import install, reduce_ranks
from subjects import FULL, QUICK, SEED, SUBJECTS, Amount, Subject
from truncation_methods import BOTH, ROTARY, SCORES, VALUES, Seen

RESULTS = Path(__file__).parent / "results" / "truncation.json"
MODELS = ("stories15M", "minilm", "vit-mnist", "smollm2")
SHARES = (0.75, 0.5, 0.25)
SMALLER = {"vit-mnist": (0.5, 0.25, 0.125)}  # its heads need few of their coordinates
FEW = 8  # sequences on which errors of blocks are measured: every one has thousands of scores and outputs
AMOUNTS = {
    "smollm2": Amount(fit=8_192, select=512, windows=8, other_windows=1),
    "stories15M": Amount(fit=16_384, select=512, windows=8),
    "minilm": Amount(fit=16_384, examples=250),
    "vit-mnist": Amount(fit=16_384, select=1_700, examples=1_000),
}
SLOW = {("smollm2", "vo", "eliminated")}


@dataclass(frozen=True)
class Errors:
    """Relative errors, means over blocks."""

    scores: float
    output: float


def minilm(amount: Amount) -> Subject:
    """Sentence embeddings of all-MiniLM-L6-v2, calibrated on SST-2 and read on STS-B: other text of another kind."""
    loaded = load_model("demo:minilm")
    known = split_documents(read_documents(shared_file("data", "sst2", "train_full.tsv")), seed=SEED)["fit"]
    unknown = read_documents(shared_file("data", "stsb", "dev.tsv"), columns=["sentence1"])
    calibration = {"fit": padded_batches(known, loaded.processor, seq_len=64, tokens=amount.fit, batch_size=32)}
    reports = {"stsb": padded_batches(unknown[: amount.examples], loaded.processor, seq_len=64, batch_size=32)}
    return Subject("minilm", loaded, 32, calibration, reports, False, "SST-2 train; STS-B dev, first sentences")


def made(name: str, quick: bool) -> Subject:
    amount = QUICK if quick else AMOUNTS.get(name, FULL)
    return minilm(amount) if name == "minilm" else SUBJECTS[name](amount)


# --- one pass over the data to fit ----------------------------------------------------------------------------


@torch.inference_mode()
def look(subject: Subject) -> list[Seen]:
    """What the attention of every block sees of the calibration data. Cost: one forward pass and two Gram matrices."""
    model = subject.model.eval()
    architecture = describe(model)
    streams = list(rehearse(model, architecture, subject.calibration["fit"]))
    found = []
    for visit in forward(model, architecture):
        i, site = visit.i, visit.sites[0]
        x, z, answers, sequences = Moments.zero(architecture.hidden), Moments.zero(site.width), None, 0
        for stream in streams:
            heard: dict[str, Tensor] = {}
            names = projections(site)
            inputs = {name: partial(heard.__setitem__, f"in {name}") for name in (names[0], site.reader)}
            outputs = {name: partial(heard.__setitem__, name) for name in names}
            with listening(model, inputs=inputs, outputs=outputs):
                visit.advance(stream)
            x += Moments.of(real_rows(heard[f"in {names[0]}"], stream.rows))
            z += Moments.of(real_rows(heard[f"in {site.reader}"], stream.rows))
            missing = sequences_of(stream.state.shape[1]) - sequences
            if missing > 0:
                new = block_response(visit, site, heard, stream, missing)
                answers = new if answers is None else answers + new if new is not None else answers
                sequences += len(stream.state)
        assert isinstance(answers, Response)
        found.append(Seen(model, architecture, i, x, z, answers, subject.seq_len))
    return found


# --- cutting ----------------------------------------------------------------------------------------------------


def methods(name: str, *, rotary: bool) -> Iterator[tuple[str, str, str | None, str | None]]:
    """Side, name, and the ways queries and keys, and values, are cut."""
    yield from (("qk", way, way, None) for way in SCORES if rotary or way not in ROTARY)
    yield from (("vo", way, None, way) for way in VALUES if (name, "vo", way) not in SLOW)
    yield from (("both", way, qk, vo) for way, (qk, vo) in BOTH.items())


@torch.no_grad()
def cut(seen: Sequence[Seen], qk: str | None, vo: str | None, share: float) -> PreTrainedModel:
    """A copy with all blocks at this share of the width of a head."""
    small = deepcopy(seen[0].model)
    for block in seen:
        step = 2 if block.rotary else 1
        r = step * max(1, round(share * block.heads.unit / step))
        scores = SCORES[qk](block, r) if qk else None
        values = VALUES[vo](block, r) if vo else None
        reduce_ranks(small, heads_of(block.architecture, block.block), scores=scores, values=values)
    return small


def with_full_ranks(subject: Subject) -> PreTrainedModel:
    """The dense model, its attention in the module that tells queries and keys."""
    same, architecture = deepcopy(subject.model), describe(subject.model)
    for i in range(architecture.n_blocks):
        site = architecture.blocks[i].heads[0]
        install(same, heads_of(architecture, i), qk=site.unit, vo=site.unit)
    return same.eval()


# --- measuring --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """How attention was called in the dense model, what it scored (centred) and what it wrote."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    allowed: Tensor
    scores: Tensor
    written: Tensor


@torch.inference_mode()
def dense_calls(dense: PreTrainedModel, subject: Subject) -> list[Call]:
    """One for every block, on a few sequences of the report."""
    batch = next(iter(subject.reports.values()))[0]
    few = Batch({name: X[:FEW] for name, X in batch.inputs.items()}, None, None)
    mask = batch.mask[:FEW] if batch.mask is not None else None
    heard: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    modules = attentions(dense)
    hooks = [
        module.register_forward_pre_hook(lambda _module, args, kwargs: heard.append((args, kwargs)), with_kwargs=True)
        for module in modules
    ]
    dense.base_model(**few.inputs)
    for hook in hooks:
        hook.remove()
    architecture, out = describe(subject.model), []
    for i, (args, kwargs) in enumerate(heard):
        kwargs = {name: value for name, value in kwargs.items() if name != "past_key_values"}
        state = args[0] if args else kwargs["hidden_states"]
        allowed = may_see(state, mask, causal=architecture.family.causal)
        scores, written = answer(dense, subject, i, args, kwargs, allowed)
        out.append(Call(args, kwargs, allowed, scores, written))
    return out


def attentions(model: PreTrainedModel) -> list[RankAttention]:
    return [module for module in model.modules() if isinstance(module, RankAttention)]


def may_see(state: Tensor, mask: Tensor | None, *, causal: bool) -> Tensor:
    """Which keys a query may see: batch × 1 × T × T; none for queries that are padding."""
    n, T = state.shape[:2]
    real = torch.ones(n, T, dtype=torch.bool) if mask is None else mask
    allowed = (real[:, :, None] & real[:, None, :])[:, None]
    return allowed & torch.ones(T, T, dtype=torch.bool).tril() if causal else allowed


def answer(
    model: PreTrainedModel, subject: Subject, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], allowed: Tensor
) -> tuple[Tensor, Tensor]:
    """Centred scores, and what the block's attention writes at real positions."""
    module, architecture = attentions(model)[i], describe(subject.model)
    state = args[0] if args else kwargs["hidden_states"]
    query, key, _ = module._project(state)
    if module.rotary and module.qk:
        query, key = module._rotate(query, key, *kwargs["position_embeddings"])
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.mT * module.scaling
    seen = allowed.expand_as(scores)
    mean = scores.where(seen, 0.0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    written = module(*args, **kwargs)[0]
    reader = architecture.blocks[i].heads[0].reader
    if module.out_name is None:  # BERT writes outside of the module
        written = model.get_submodule(reader)(written)
    return (scores - mean).where(seen, 0.0), written[allowed[:, 0].any(-1)]


@torch.inference_mode()
def errors(small: PreTrainedModel, subject: Subject, calls: Sequence[Call]) -> Errors:
    """Relative errors of scores and outputs, block by block, given what the dense model gives."""
    scores, outputs = [], []
    for i, call in enumerate(calls):
        found, written = answer(small, subject, i, call.args, call.kwargs, call.allowed)
        scores.append(float((found - call.scores).square().sum() / call.scores.square().sum()))
        outputs.append(float((written - call.written).square().sum() / call.written.square().sum()))
    return Errors(fmean(scores), fmean(outputs))


def end(small: PreTrainedModel, subject: Subject) -> float:
    """Perplexity, cosine of embeddings, or accuracy, on the first report."""
    batches = next(iter(subject.reports.values()))
    if subject.language:
        return float(perplexity(small, batches).ppl)
    if subject.name == "minilm":
        return float(state_similarity(subject.model, small, batches).cosine_pooled or 0.0)
    return accuracy(small, batches).value


def run(name: str, quick: bool, only: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """All methods at all shares; with `only` these, the rows of the others as they are known."""
    subject = made(name, quick)
    if only and known["settings"] != subject.settings():
        raise SystemExit(f"{name}: the rows there are come from other data or settings; measure all methods")
    seen, dense = look(subject), with_full_ranks(subject)
    calls = dense_calls(dense, subject)
    rows: list[dict[str, Any]] = []
    for side, way, qk, vo in methods(name, rotary=seen[0].rotary):
        if only and way not in only:
            rows += [row for row in known["rows"] if (row["side"], row["method"]) == (side, way)]
            continue
        for share in SMALLER.get(name, SHARES):
            small = cut(seen, qk, vo, share).eval()
            off = errors(small, subject, calls)
            row = {"side": side, "method": way, "share": share, "score_error": off.scores if qk else 0.0,
                   "output_error": off.output, "end": end(small, subject)}  # fmt: skip
            rows.append(row)
            print(json.dumps({"model": name, **row}), flush=True)
    metric = "perplexity" if subject.language else "cosine" if name == "minilm" else "accuracy"
    return {
        "settings": subject.settings(), "report": next(iter(subject.reports)), "metric": metric,
        "dense": end(dense, subject), "head_dim": seen[0].heads.unit, "rows": rows,
    }  # fmt: skip


def stored() -> dict[str, Any]:
    """What was measured before."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"benchmark": "truncation", "models": {}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"{', '.join(MODELS)} (default: all)")
    parser.add_argument("--only", nargs="*", default=[], help="methods to measure anew, e.g. response ours")
    parser.add_argument("--quick", action="store_true", help="few tokens, to see that everything runs")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    if unknown := set(args.models) - set(MODELS):
        parser.error(f"there is no model {', '.join(unknown)}; choose from {', '.join(MODELS)}")
    if unknown := set(args.only) - {*SCORES, *VALUES, *BOTH}:
        parser.error(f"there is no method {', '.join(unknown)}; choose from {', '.join({*SCORES, *VALUES, *BOTH})}")
    torch.set_num_threads(args.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in args.models or MODELS:
        known = stored()["models"].get(name, {"settings": None, "rows": []})
        found = run(name, args.quick, args.only, known)
        if not args.quick:
            results = stored()  # again: another run may have added to it
            results["models"][name] = found
            RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
