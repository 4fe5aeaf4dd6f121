"""More than one process under `torchrun`: every rank reads its share of the sequences, and moments add up.

Moments are a monoid, so all that travels between ranks is their sums: for every block one all-reduce of counts, sums
and Gram matrices. Factorisations are dealt out by block and the curves, which are small, are given to everybody. Sums
are in double precision and only their order changes, so the result is that of one process to many digits. Rank 0
writes and prints; the others end when they have given what they had.

Start it with `torchrun --nproc-per-node 2 -m slimformer …`; without torchrun nothing here does anything.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed

from slimformer.calibrate.collect import BlockMoments, SiteMoments
from slimformer.decompose.response import Response
from slimformer.errors import ProcessesDisagree, ProcessLost
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture
from slimformer.models.architecture import NEURONS

PATIENCE = timedelta(days=1)  # others wait while rank 0 finds the metric
LARGEST = 8  # dimensions of a tensor whose shape is told


@dataclass(frozen=True)
class World:
    """How many processes work together, and which of them this is."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Is this the one that writes and prints?"""
        return self.rank == 0

    def deals(self, n: int) -> bool:
        """Is the n-th piece of work for this process?"""
        return n % self.size == self.rank

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Refuse, in every process alike, where ranks were given different things: their sum would mean nothing."""
        by_rank = self.told({str(self.rank): dict(facts)})
        for rank in range(1, self.size):
            if other := [name for name, value in by_rank["0"].items() if by_rank[str(rank)].get(name) != value]:
                raise ProcessesDisagree(
                    f"process {rank} does not see the same {' and '.join(other)} as process 0; put the same model and "
                    "data in the same place on every machine"
                )

    def total(self, block: BlockMoments, architecture: Architecture, splits: Sequence[str]) -> BlockMoments:
        """The moments all ranks have gathered of a block, together."""
        if self.size == 1:
            return block
        sites: dict[str, SiteMoments] = {}
        for site in architecture.blocks[block.block].sites:
            own = block.sites[site.name]
            sites[site.name] = {s: _moments(own.get(s) or Moments.zero(site.width)) for s in splits}
        joint = self._joint(block, architecture, splits)
        responses = {s: response for s in splits if (response := _response(block.responses.get(s))) is not None}
        tokens = sum(m.count for m in next(iter(block.sites.values())).values())
        energy = _sum(torch.tensor([block.error_weight * tokens, float(tokens)], dtype=torch.float64))
        error_weight = float(energy[0]) / max(float(energy[1]), 1.0)
        return BlockMoments(block.block, sites, error_weight, responses, block.metric, joint)

    def _joint(self, block: BlockMoments, architecture: Architecture, splits: Sequence[str]) -> dict[str, Moments]:
        """Those of neurons with their input; asked for everywhere or nowhere, but a rank may have had no batch."""
        if not float(_most(torch.tensor([float(len(block.joint))]))[0]):
            return {}
        neurons = architecture.blocks[block.block].one(NEURONS)
        width = neurons.width + neurons.outer
        return {split: _moments(block.joint.get(split) or Moments.zero(width)) for split in splits}

    def told(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """What all ranks have found, by name, given to everybody. Values are anything JSON can say."""
        if self.size == 1:
            return dict(facts)
        own = torch.frombuffer(bytearray(json.dumps(dict(facts)).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        _together(distributed.all_gather, lengths, torch.tensor([len(own)]))
        longest = int(max(lengths))
        padded = torch.nn.functional.pad(own, (0, longest - len(own)))
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        _together(distributed.all_gather, texts, padded)
        together: dict[str, Any] = {}
        for text, length in zip(texts, lengths, strict=True):
            together |= json.loads(text[: int(length)].numpy().tobytes())
        return together

    def from_first(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Tensors in double precision that rank 0 has, given to everybody; none at all where it has none."""
        if self.size == 1:
            return dict(tensors)
        there = torch.tensor([float(bool(tensors))])
        _together(distributed.broadcast, there, 0)
        out: dict[str, Tensor] = {}
        for name, shape in shapes.items() if bool(there) else ():
            out[name] = tensors[name].double().cpu().contiguous() if self.leads else torch.zeros(shape).double()
            _together(distributed.broadcast, out[name], 0)
        return out


ALONE = World()
_ended: list[bool] = []  # has rank 0 gone on alone?
_made: list[bool] = []  # was the group of processes formed here? A caller's own is left to the caller


def world() -> World:
    """The processes torchrun has started with this one; this one alone without it, and after `lead_only`."""
    if _ended:
        return ALONE
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not distributed.is_available() or "MASTER_ADDR" not in os.environ:
        return ALONE
    if not distributed.is_initialized():
        # Moments are kept on the CPU whatever the model is on, so gloo carries them.
        distributed.init_process_group("gloo", timeout=PATIENCE)
        _made.append(True)
    return World(distributed.get_rank(), distributed.get_world_size())


class Followed(SystemExit):
    """A rank other than 0 has given what it had. It ends here, and well."""

    def __init__(self) -> None:
        super().__init__(0)


def lead_only() -> None:
    """From here on rank 0 works alone; the others end, once it needs nothing more of them."""
    if distributed.is_available() and distributed.is_initialized():
        _together(distributed.monitored_barrier, None, PATIENCE)  # rank 0 is the last to hear of it, so no line is cut
        if _made:
            distributed.destroy_process_group()
        _ended.append(True)
    if is_follower():
        raise Followed


def is_follower() -> bool:
    """Is this a process that neither writes nor prints? Known from the environment, without a connection."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0"


def _moments(own: Moments) -> Moments:
    count = _sum(torch.tensor([own.count]))
    return Moments(int(count), _sum(own.sum.clone()), _sum(own.gram.contiguous().clone()))


def _response(own: Response | None) -> Response | None:
    """The sum of responses; of ranks that have none nothing is added."""
    shapes = []
    for name in ("queries", "keys", "planes"):
        told = torch.zeros(LARGEST + 1, dtype=torch.long)
        if own is not None:
            shape = getattr(own, name).shape
            told[0], told[1 : 1 + len(shape)] = len(shape), torch.tensor(shape)
        told = _most(told)
        shapes.append(tuple(int(n) for n in told[1 : 1 + int(told[0])]))
    count = int(_sum(torch.tensor([own.count if own else 0])))
    if not count:
        return None
    parts = []
    for name, shape in zip(("queries", "keys", "planes"), shapes, strict=True):
        part = getattr(own, name).double().cpu().contiguous().clone() if own else torch.zeros(shape).double()
        parts.append(_sum(part))
    return Response(count, *parts)


def _sum(tensor: Tensor) -> Tensor:
    _together(distributed.all_reduce, tensor)
    return tensor


def _most(tensor: Tensor) -> Tensor:
    _together(distributed.all_reduce, tensor, distributed.ReduceOp.MAX)
    return tensor


def _together(collective: Callable[..., Any], *args: Any) -> None:
    """What all processes do at once; where one of them has ended, the others say so and end too."""
    try:
        collective(*args)
    except RuntimeError as error:  # gloo's errors have no type of their own
        raise ProcessLost("another process of this run has ended; what it said is the reason") from error
