"""Fewer experts in every block: those worth least go, rows of the router with them, and the readers of the others are
corrected on what is sent to them then.

Dense and small model are walked side by side. In every block experts are ordered by what they add in the dense model
(`decompose.experts`). Those that stay are sent other tokens than before, so each reader is fitted on these, towards
what the dense layer writes, and only as far as it helps on the select split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.decompose.experts import ORDERS, Contributions, merged, nearest
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.models.experts import KEPT, Experts
from slimformer.models.family import ExpertsPart
from slimformer.models.hooks import listening
from slimformer.models.walk import Stream, Visit, forward, real_rows, rehearse
from slimformer.rewrite import surgery
from slimformer.rewrite.correct import Correction, Pair, correct_experts

Order = Literal["least-squares", "reap"]
Instead = Literal["drop", "merge"]


@dataclass(frozen=True)
class How:
    """How many experts stay in a block, by which order, what becomes of the others, whether readers are corrected."""

    keep: int
    by: Order = "least-squares"
    instead: Instead = "drop"
    correct: bool = True


@dataclass(frozen=True)
class Fewer:
    """The smaller model, the numbers of the experts that stay, block by block, and what correction did."""

    model: PreTrainedModel
    kept: list[list[int]]
    corrections: list[Correction]


@torch.no_grad()
def fewer_experts(
    dense: PreTrainedModel,
    splits: Mapping[str, Sequence[Batch]],
    how: How,
    *,
    progress: Callable[[int], None] = lambda _block: None,
) -> Fewer:
    """A copy with fewer experts, as many in every block. Fitted on the fit split, chosen on the select split.

    Cost: two forward passes of the dense model, and of the small one a pass for each expert that stays.
    """
    dense.eval()
    architecture, small = describe(dense), deepcopy(dense)
    pairs = [
        Pair(stream.fork("dense"), stream.fork("small"))
        for split in ("fit", "select")
        for stream in rehearse(dense, architecture, splits[split], split)
    ]
    kept, corrections = [], list[Correction]()
    for visit in forward(dense, architecture):
        seen = contributions(visit, [pair.teacher for pair in pairs if pair.teacher.split == "fit"])
        kept.append(sorted(ORDERS[how.by](seen)[: how.keep]))
        for part in experts_of(visit):
            if how.instead == "merge":
                merge(small, f"{visit.path}", part, kept[-1], seen.tokens.tolist())
            keep_experts(small, visit.path, part, kept[-1])
        student = Visit(small, describe(small), visit.i)
        corrections += correct_experts(student, visit, pairs) if how.correct else _advance(student, visit, pairs)
        progress(visit.i)
    state_experts(small, kept)
    return Fewer(small, kept, corrections)


def experts_of(visit: Visit) -> list[ExpertsPart]:
    """The parts of a block that are experts."""
    return [part for part in visit.architecture.layout(visit.sites[0]).parts if isinstance(part, ExpertsPart)]


def contributions(visit: Visit, streams: Sequence[Stream]) -> Contributions:
    """What the experts of a block add in these streams, which stay before it."""
    readers, total = [site.reader for site in visit.sites if site.expert], None
    for stream in streams:
        written: dict[str, Tensor] = {}
        with listening(visit.model, outputs={name: partial(written.__setitem__, name) for name in readers}):
            visit.run(stream)
        here = Contributions.of(torch.stack([real_rows(written[name], stream.rows) for name in readers]))
        total = here if total is None else total + here
    assert total is not None
    return total


def _advance(small: Visit, dense: Visit, pairs: Sequence[Pair]) -> list[Correction]:
    for pair in pairs:
        dense.advance(pair.teacher)
        small.advance(pair.student)
    return []


def merge(model: PreTrainedModel, block: str, part: ExpertsPart, kept: Sequence[int], tokens: Sequence[int]) -> None:
    """Let experts that stay be the mean of their own weights and of those that go and are nearest, in place."""
    experts: Any = model.get_submodule(f"{block}.{part.experts}")
    near = nearest(weight_of(model.get_submodule(f"{block}.{part.router}")), kept)
    for e in kept:
        group = [e, *(other for other, its in near.items() if its == e)]
        if len(group) == 1:
            continue
        D = experts[e].down_proj.weight.shape[0]
        rows = merged([_neurons(experts[n]) for n in group], [tokens[n] for n in group])
        gate, up, down = rows.split(D, 1)
        surgery.write(experts[e].gate_up_proj, torch.cat([gate, up]), None)
        surgery.write(experts[e].down_proj, down.mT, None)


def _neurons(expert: Any) -> Tensor:
    """A row for each neuron: of the gate, of the other writer, and the column of the reader."""
    gate, up = weight_of(expert.gate_up_proj).cpu().double().chunk(2)
    return torch.cat([gate, up, weight_of(expert.down_proj).cpu().double().mT], 1)


def keep_experts(model: PreTrainedModel, block: str, part: ExpertsPart, kept: Sequence[int]) -> None:
    """Let a block have these experts alone, in place, and its router the rows that score them."""
    experts: Any = model.get_submodule(f"{block}.{part.experts}")
    router: Any = model.get_submodule(f"{block}.{part.router}")
    assert isinstance(experts, Experts)
    count = len(experts)
    surgery.keep_entries([router], torch.tensor(kept), count)
    router.num_experts = len(kept)
    for n in sorted(set(range(count)) - set(kept), reverse=True):
        del experts[n]


def state_experts(model: PreTrainedModel, kept: Sequence[Sequence[int]]) -> None:
    """Say in the config how many experts there are, and which of those of the model it was made from."""
    config: Any = model.config
    architecture = describe(model)
    (part,) = (part for part in architecture.stacks[0].layout.parts if isinstance(part, ExpertsPart))
    before = getattr(config, KEPT, None)
    setattr(config, KEPT, [[before[i][n] for n in each] if before else list(each) for i, each in enumerate(kept)])
    setattr(config, part.experts_key, len(kept[0]))
    if hasattr(model, "num_experts"):  # of a language model that reports how evenly experts are used
        model.num_experts = len(kept[0])  # type: ignore[assignment]
