"""Step `refine`: at the chosen budget, sequential correction of every reader, then of the gain of the final norm.

It needs the calibration data again and serves one budget only, so the command `cut` does without it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.collect import real_rows
from slimformer.calibrate.store import Statistics
from slimformer.calibrate.text import Batch
from slimformer.decompose import Curve
from slimformer.linalg.precision import to_double
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.architecture import base_path, reads_windows
from slimformer.models.outputs import harm
from slimformer.plan import Plan
from slimformer.rewrite import surgery
from slimformer.rewrite.correct import Correction, Pair, correct
from slimformer.rewrite.probe import short_batches
from slimformer.run import Run
from slimformer.steps.step import Step

SHARES = (1.0, 0.5)  # of the way to the least-squares gain; taken only if the outputs come nearer on the select split
TOKENS = 4096


class Refine(Step):
    """Correct every reader on what the cut model sends it, then the gain of the last norm."""

    flags: ClassVar[dict[str, str]] = {}
    place: ClassVar[int] = 1

    def run(self, run: Run) -> Run:
        """Where nothing was cut, there is nothing to mend."""
        if run.plan is None or run.plan.macs >= 1:
            return run
        with run.timed("refine"):
            done = refine(
                run.model, run.dense, run.plan, run.known, run.curves, run.splits, progress=run.progress
            )  # fmt: skip
        return replace(run, corrections=(*run.corrections, *done))


@torch.no_grad()
def refine(
    small: PreTrainedModel,
    dense: PreTrainedModel,
    plan: Plan,
    statistics: Statistics,
    curves: Mapping[str, Curve],
    splits: Mapping[str, Sequence[Batch]],
    *,
    progress: Progress = silent,
) -> list[Correction]:
    """Correct `small` in place on the fit split; everything is chosen on the select split. Returns what was done.

    Every reader is chosen by the error of the stream, which need not be that of the outputs: where these come out
    farther from the dense ones than they were, nothing is changed.
    """
    small.eval()
    nested = {name: value.clone() for name, value in small.state_dict().items()}
    outputs = _Outputs(dense, splits["select"])
    before = outputs.harm(small)
    n_blocks = describe(dense).n_blocks
    progress("refine", 0, n_blocks)
    done, pairs = correct(
        small, dense, plan, curves, statistics.block, splits, progress=lambda i: progress("refine", i + 1, n_blocks)
    )
    found = refit_final_norm(small, dense, pairs, outputs)
    if outputs.harm(small) > before:
        small.load_state_dict(nested)
        return [Correction("all", 0.0, None, before, before)]
    return [*done, *([found] if found else [])]


class Outputs(Protocol):
    """What can say how far the outputs of a smaller model are from those of the dense one."""

    def harm(self, small: PreTrainedModel) -> float: ...


class _Outputs:
    """What the dense model says to some of the select split, to compare with."""

    def __init__(self, dense: PreTrainedModel, select: Sequence[Batch]) -> None:
        windows = reads_windows(dense, describe(dense).family)
        self.batches = [batch.to(dense.device) for batch in short_batches(select, windows=windows, tokens=TOKENS)]
        self.dense = [dense(**batch.inputs) for batch in self.batches]

    def harm(self, small: PreTrainedModel) -> float:
        found = [
            harm(dense, small(**batch.to(small.device).inputs), batch.mask)
            for batch, dense in zip(self.batches, self.dense, strict=True)
        ]
        return sum(h * n for h, n in found) / max(1, sum(n for _, n in found))


def refit_final_norm(
    small: PreTrainedModel, dense: PreTrainedModel, pairs: Sequence[Pair], outputs: Outputs
) -> Correction | None:
    """Least squares for the gain γ (and the bias) of the last norm, coordinate by coordinate: γ_d = Σ o_d n_d / Σ n_d²,
    o being what the dense norm gives and n what the small one gives before its gain. None where there is no such norm.
    """
    path = describe(dense).family.final_norm
    teacher, student = (_module(model, path) for model in (dense, small))
    if teacher is None or student is None:
        return None
    gain, bias = _least_squares(teacher, student, [pair for pair in pairs if pair.stage.split == "fit"])
    old = _parameters(student)
    new = (gain.to(old[0]), *([bias.to(old[1])] if bias is not None else []))
    before = best = outputs.harm(small)
    taken = 0.0
    for share in SHARES:
        surgery.rescale(student, *(torch.lerp(a, b, share) for a, b in zip(old, new, strict=True)))
        if (now := outputs.harm(small)) < best:
            best, taken = now, share
    surgery.rescale(student, *(torch.lerp(a, b, taken) for a, b in zip(old, new, strict=True)))
    return Correction("final norm", taken, None, before, best)


def _parameters(norm: nn.Module) -> tuple[Tensor, ...]:
    """Gain and, where there is one, bias."""
    return tuple(parameter.detach().clone() for parameter in norm.parameters())


def _least_squares(teacher: nn.Module, student: nn.Module, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor | None]:
    bare: Any = copy.deepcopy(student)
    affine = getattr(bare, "bias", None) is not None
    bare.weight.fill_(1.0)
    if affine:
        bare.bias.zero_()
    sums = torch.zeros(4, bare.weight.numel(), dtype=torch.float64)  # n², o n, n, o
    count = 0
    for pair in pairs:
        n, o = (
            to_double(real_rows(norm(X), pair.stage.rows)) for norm, X in ((bare, pair.small), (teacher, pair.dense))
        )
        sums += torch.stack([(n * n).sum(0), (o * n).sum(0), n.sum(0), o.sum(0)]).cpu()
        count += len(n)
    nn_, on, n, o = sums / max(count, 1)
    if not affine:
        return on / nn_.clamp_min(1e-12), None
    gain = (on - o * n) / (nn_ - n * n).clamp_min(1e-12)
    return gain, o - gain * n


def _module(model: PreTrainedModel, path: str | None) -> Any:
    try:
        return model.get_submodule(base_path(model) + path) if path else None
    except AttributeError:  # some checkpoints of a family have none
        return None
