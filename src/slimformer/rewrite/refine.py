"""Refinement at the chosen budget: sequential correction of every reader, then of the gain of the final norm.

It needs the calibration data again and serves one budget only. Every reader is chosen by the error of the stream, which
need not be that of the outputs: where these come out farther from the dense ones than they were, nothing is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.linalg.precision import to_double
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.architecture import reads_windows
from slimformer.models.norms import final_norm
from slimformer.models.outputs import harm
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Ended, ending_in, forward, last_states, plain_call, real_rows
from slimformer.plan import Plan
from slimformer.rewrite import surgery
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.correct import Corrected, Correction, Pair, correct
from slimformer.rewrite.probe import short_batches

SHARES = (1.0, 0.5)  # of the way to the least-squares gain; taken only if the outputs come nearer on the select split
TOKENS = 2048


@torch.no_grad()
def refine(
    small: PreTrainedModel,
    dense: PreTrainedModel,
    cut: Cut[Plan],
    splits: Mapping[str, Sequence[Batch]],
    *,
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> list[Correction]:
    """Correct `small`, which `cut` has made, in place on the fit split; everything is chosen on the select split.

    Returned is what was done. Cost: that of `correct`, and three forward passes over `TOKENS` tokens.
    """
    small.eval()
    n_blocks = describe(dense).n_blocks
    outputs = Outputs(dense, splits["select"], residence)
    before = _uncorrected_harm(small, outputs, residence)
    progress("refine", 0, n_blocks)
    corrected = correct(
        small, dense, cut, splits, residence=residence, progress=lambda i: progress("refine", i + 1, n_blocks)
    )
    states = outputs.states(small)
    norm = final_norm(small)
    old = None if norm is None else _parameters(norm)
    refitted = refit_final_norm(small, dense, corrected.pairs, lambda: outputs.harm(small, states))
    if outputs.harm(small, states) > before:
        _go_back(small, corrected, residence.of_copy)
        if norm is not None and old is not None:
            surgery.rescale(norm, *old)
        return [Correction("all", 0.0, None, before, before)]
    return [*corrected.corrections, *([refitted] if refitted else [])]


class Outputs:
    """What the dense model says to some of the select split, and how far from that a smaller one is.

    Both are told from states after the last block, so no more than one block is needed at a time.
    """

    def __init__(self, dense: PreTrainedModel, select: Sequence[Batch], residence: Residence) -> None:
        self.architecture, self.residence = describe(dense), residence
        windows = reads_windows(dense, self.architecture.family)
        self.batches = [batch.to(dense.device) for batch in short_batches(select, windows=windows, tokens=TOKENS)]
        states = last_states(dense, self.architecture, self.batches, "outputs-dense", residence)
        self.dense = [
            self._kept(self._of(dense, batch, state), n)
            for n, (batch, state) in enumerate(zip(self.batches, states, strict=True))
        ]

    def states(self, small: PreTrainedModel) -> list[Ended]:
        """The states of a smaller model after its last block. Cost: one forward pass."""
        return last_states(small, self.architecture, self.batches, "outputs-small", self.residence.of_copy)

    def harm(self, small: PreTrainedModel, states: Sequence[Ended]) -> float:
        """How far the outputs of a smaller model are from the dense ones, if these are its last states."""
        harms = [
            harm(dense, self._of(small, batch, state), batch.mask)
            for batch, dense, state in zip(self.batches, self.dense, states, strict=True)
        ]
        return sum(h * n for h, n in harms) / max(1, sum(n for _, n in harms))

    def _of(self, model: PreTrainedModel, batch: Batch, state: Ended) -> Any:
        with ending_in(model, self.architecture, [(batch, state)]):
            return model(**batch.inputs, **plain_call(self.architecture))

    def _kept(self, output: Any, n: int) -> Any:
        tensors = {name: value for name, value in output.items() if isinstance(value, Tensor)}
        return type(output)(
            **{name: self.residence.keep(f"outputs-{n:05d}.{name}", value) for name, value in tensors.items()}
        )


def _uncorrected_harm(small: PreTrainedModel, outputs: Outputs, residence: Residence) -> float:
    """What the cut alone does to the outputs; noted, because after a stop it could not be told any more."""
    if notes := residence.notes("uncorrected"):
        return float(notes[0])
    uncorrected = outputs.harm(small, outputs.states(small))
    residence.finish("uncorrected", repr(uncorrected))
    return uncorrected


def _go_back(small: PreTrainedModel, corrected: Corrected, home: Residence) -> None:
    """Let the parameters that correction has changed be what they were."""
    for visit in forward(small, describe(small), home):
        names = [name for name in corrected.uncorrected if name.startswith(f"{visit.path}.")]
        for name in names:
            path, _, leaf = name.rpartition(".")
            module = small.get_submodule(path)
            now = getattr(module, leaf)
            setattr(module, leaf, nn.Parameter(corrected.uncorrected[name].to(now), requires_grad=now.requires_grad))
        if names:
            home.settle(visit.i)


def refit_final_norm(
    small: PreTrainedModel, dense: PreTrainedModel, pairs: Sequence[Pair], harm_now: Callable[[], float]
) -> Correction | None:
    """Least squares for the gain γ (and the bias) of the last norm, coordinate by coordinate: γ_d = Σ o_d n_d / Σ n_d²,
    o being what the dense norm gives and n what the small one gives before its gain. None where there is no such norm.
    """
    teacher, student = final_norm(dense), final_norm(small)
    if teacher is None or student is None:
        return None
    gain, bias = _least_squares(teacher, student, [pair for pair in pairs if pair.teacher.split == "fit"])
    old = _parameters(student)
    new = (gain.to(old[0]), *([bias.to(old[1])] if bias is not None else []))
    before = best = harm_now()
    taken = 0.0
    for share in SHARES:
        surgery.rescale(student, *(torch.lerp(a, b, share) for a, b in zip(old, new, strict=True)))
        if (now := harm_now()) < best:
            best, taken = now, share
    surgery.rescale(student, *(torch.lerp(a, b, taken) for a, b in zip(old, new, strict=True)))
    return Correction("final norm", taken, None, before, best)


def _parameters(norm: nn.Module) -> tuple[Tensor, ...]:
    """Gain and, where there is one, bias."""
    return tuple(parameter.detach().clone() for parameter in norm.parameters())


def _least_squares(teacher: nn.Module, student: nn.Module, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor | None]:
    plain_norm: Any = copy.deepcopy(student)
    affine = getattr(plain_norm, "bias", None) is not None
    plain_norm.weight.fill_(1.0)
    if affine:
        plain_norm.bias.zero_()
    sums = torch.zeros(4, plain_norm.weight.numel(), dtype=torch.float64)  # n², o n, n, o
    count = 0
    for pair in pairs:
        n, o = (
            to_double(real_rows(norm(X), pair.rows))
            for norm, X in ((plain_norm, pair.student.state), (teacher, pair.teacher.state))
        )
        sums += torch.stack([(n * n).sum(0), (o * n).sum(0), n.sum(0), o.sum(0)]).cpu()
        count += len(n)
    nn_, on, n, o = sums / max(count, 1)
    if not affine:
        return on / nn_.clamp_min(1e-12), None
    gain = (on - o * n) / (nn_ - n * n).clamp_min(1e-12)
    return gain, o - gain * n
