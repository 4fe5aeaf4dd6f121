"""SliceGPT: the residual stream in its principal directions, and only the first of them.

Before every half of a block the stream is turned into the eigenvectors of its second moments and all but the first w
directions are cut off, so every matrix that reads or writes it is smaller. Directions differ from place to place, so
the skip connections are matrices too, Q_aᵀ Q_b of w × w, two a block, and they cost MACs:

    w (q + k + v + o rows) + 2 T (queries) + w (neurons) (writers + 1) + 2 w²        a block, a token

The stream after the last block is not sliced (as in the released code), so the last down projection keeps D outputs
and the last skip is w × D. The norms divide by the full width. Blocks are sliced one after the other: directions are
those of the normed stream (the paper; the released code takes it as it is, which did no better on select data) as it
is after everything that was sliced before.

Simulated at full width: where the real model holds Qᵀh, this one holds Q Qᵀ h. LayerNorm takes away the mean first,
which is one more direction. Not for post-norm encoders, whose skip connections carry what the norm has made.

Reference: Ashkboos, Croci, Gennari do Nascimento, Hoefler, Hensman, SliceGPT (2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from simulated_evidence import Evidence, NotOffered, Smaller
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture
from slimformer.models.walk import Stream, real_rows, rehearse
from slimformer.plan.cost import Cost, block_cost


def slicegpt(evidence: Evidence, budget: float) -> Smaller:
    """The widest stream within the budget. Cost: under two forward passes for every budget, and 2 D³ a block."""
    architecture = evidence.architecture
    if budget >= 1:  # nothing to slice, so nothing to turn either
        return evidence.smaller(deepcopy(evidence.given.model), evidence.dense, {"residual": architecture.hidden})
    return sliced(evidence, widest(architecture, evidence.given.seq_len, budget))


def widest(architecture: Architecture, seq_len: int, budget: float) -> int:
    """The largest width of the stream that fits the budget."""
    most = budget * block_cost(architecture, seq_len).macs
    fits = [w for w in range(1, architecture.hidden + 1) if sliced_cost(architecture, seq_len, w).macs <= most]
    if not fits:
        raise NotOffered(f"a budget of {budget:g} is below what scores and context cost, which slicing leaves alone")
    return fits[-1]


def sliced_cost(architecture: Architecture, seq_len: int, width: int) -> Cost:
    """MACs and parameters of all blocks with a stream of `width`, skip matrices included."""
    macs = params = 0
    for i in range(architecture.n_blocks):
        for site in architecture.blocks[i].sites:
            out = architecture.hidden if i == architecture.n_blocks - 1 and site.kind == "ffn.hidden" else width
            rows = [(writer.rows * site.units // writer.shared, writer.bias) for writer in site.writers]
            matrices = sum(n * width for n, _ in rows) + site.width * out + width * out
            macs += matrices + (2 * seq_len * site.width if site.kind == "attn.heads" else 0)
            params += matrices + sum(n * bias for n, bias in rows)
    return Cost(macs, params)


class Slicing(nn.Module):
    """Hooks of one block that keep the stream in its directions Q (D × w): before the block, between, and after.

    The block adds its second half to the stream as it was before `between`; what was cut off there is taken out again
    where the second half is written.
    """

    before: Tensor | None
    between: Tensor | None
    after: Tensor | None

    def __init__(self, block: nn.Module, norm: nn.Module, down: nn.Module) -> None:
        super().__init__()
        for name in ("before", "between", "after"):
            self.register_buffer(name, None)
        self.cut_off: Tensor | None = None
        block.register_forward_pre_hook(self._before, with_kwargs=True)
        norm.register_forward_pre_hook(self._between)
        down.register_forward_hook(self._written)
        block.register_forward_hook(self._after)

    def _before(self, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if args:
            return (project(args[0], self.before), *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": project(kwargs["hidden_states"], self.before)}

    def _between(self, _norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        kept = project(args[0], self.between)
        self.cut_off = args[0] - kept
        return (kept,)

    def _written(self, _down: nn.Module, _args: Any, output: Tensor) -> Tensor:
        assert self.cut_off is not None
        return output - self.cut_off

    def _after(self, _block: nn.Module, _args: Any, output: Tensor | tuple[Tensor, ...]) -> Any:
        if isinstance(output, Tensor):
            return project(output, self.after)
        return (project(output[0], self.after), *output[1:])


def project(X: Tensor, Q: Tensor | None) -> Tensor:
    """Q Qᵀ x of every row; everything where nothing is sliced."""
    return X if Q is None else (X @ Q) @ Q.mT


def principal(rows: Sequence[Tensor], width: int, *, centre: bool) -> Tensor:
    """The first eigenvectors (D × w) of the second moments of rows as a norm makes them; LayerNorm centres first."""
    total = Moments.zero(rows[0].shape[-1])
    for X in rows:
        total += Moments.of(normalize(X - X.mean(-1, keepdim=True) if centre else X, dim=-1))
    return torch.linalg.eigh(total.gram).eigenvectors.flip(1)[:, :width]


@torch.no_grad()
def sliced(evidence: Evidence, width: int) -> Smaller:
    """A copy of the model with a stream of `width` directions at every place."""
    architecture, model = evidence.architecture, deepcopy(evidence.given.model).eval()
    blocks = [model.get_submodule(block.path) for block in architecture.blocks]
    norms = [model.get_submodule(block.neurons[0].norm) for block in architecture.blocks]  # post-norm is refused before
    stages = list(rehearse(model, architecture, evidence.fit))

    def directions(states: Sequence[Tensor]) -> Tensor:
        rows = [real_rows(state, stage.rows) for state, stage in zip(states, stages, strict=True)]
        return principal(rows, width, centre=isinstance(norms[0], nn.LayerNorm)).to(states[0])

    before = directions([stage.state for stage in stages])
    for i, (block, norm) in enumerate(zip(blocks, norms, strict=True)):
        block.slicing = Slicing(block, norm, model.get_submodule(architecture.blocks[i].neurons[0].reader))
        block.slicing.before = before if i == 0 else None  # elsewhere the block before has seen to it
        block.slicing.between = directions(_inputs(norm, block, i, stages))
        outputs = _outputs(block, i, stages)
        if i + 1 < len(blocks):
            block.slicing.after = directions(outputs)
        for stage, output in zip(stages, outputs, strict=True):
            stage.state = project(output, block.slicing.after)
    cost = sliced_cost(architecture, evidence.given.seq_len, width)
    return evidence.smaller(model, cost, {"residual": width})


def _outputs(block: nn.Module, i: int, stages: Sequence[Stream]) -> list[Tensor]:
    """What a block makes of the stream of every batch."""
    found = [block(stage.state, **stage.calls[i]) for stage in stages]
    return [output if isinstance(output, Tensor) else output[0] for output in found]


class _Reached(Exception):
    """The module that was listened to has its input; what comes after it need not run."""


def _inputs(norm: nn.Module, block: nn.Module, i: int, stages: Sequence[Stream]) -> list[Tensor]:
    """What the norm between the halves of a block is given in every batch."""
    heard: list[Tensor] = []

    def hear(_norm: nn.Module, args: tuple[Tensor]) -> None:
        heard.append(args[0])
        raise _Reached

    handle = norm.register_forward_pre_hook(hear)
    for stage in stages:
        with suppress(_Reached):
            block(stage.state, **stage.calls[i])
    handle.remove()
    return heard
