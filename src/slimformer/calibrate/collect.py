"""One pass over the data: moments of what every site's reader sees.

The model is walked block by block (`models.walk`); the wide activations inside a block live for one batch. When a block
is finished its moments are handed out and nothing of it stays, so memory does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.respond import block_response, projections, responding, sequences_of
from slimformer.calibrate.text import Batch
from slimformer.decompose.bypass import first_part
from slimformer.decompose.response import Response
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments, Sums
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.models.hooks import Hook, listening
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Split, Stream, Visit, forward, real_rows, rehearse

SiteMoments = dict[Split, Moments]


@dataclass(frozen=True)
class BlockMoments:
    """What one block's sites saw, by site and split, and the weight an error there has in the residual stream."""

    block: int
    sites: dict[str, SiteMoments]
    error_weight: (
        float  # mean over tokens of 1 / ‖h‖² after the block: errors count relative to the stream they are added to
    )
    responses: dict[Split, Response] = field(default_factory=dict)  # of attention to its scores, where they may be cut
    metric: dict[str, Tensor] = field(default_factory=dict)  # by site, the root of `decompose.metric`; else squares
    joint: dict[Split, Moments] = field(default_factory=dict)  # of neurons and, after them, their input; where asked

    def read_through(self, site: str, W: Tensor) -> Tensor:
        """A reader as the metric sees it: R W."""
        R = self.metric.get(site)
        return W if R is None else R @ W.to("cpu", torch.float64)


_Tally = dict[Split, Sums]  # of one reader's input, while batches come in


@torch.inference_mode()
def collect(
    model: PreTrainedModel,
    architecture: Architecture,
    data: Mapping[Split, Sequence[Batch]],
    metric: Mapping[str, Tensor] | None = None,
    *,
    joint: bool = False,
    residence: Residence = IN_MEMORY,
) -> Iterator[BlockMoments]:
    """Moments of every site, one block at a time, for every split in `data`; responses are seen in the `metric`.

    `joint` also takes those of neurons together with their input, which `decompose.bypass` needs. A walk that was
    stopped goes on at the first block that is not finished ("calibrate"); while the moments of a block are looked at,
    its weights are there. Cost: one forward pass through the blocks and n d² operations for every width d; memory
    tokens × hidden size.
    """
    model.eval()
    first = len(residence.notes("calibrate"))
    if first == architecture.n_blocks:
        return
    streams = [
        stream.fork("dense")
        for split, batches in data.items()
        for n, stream in enumerate(rehearse(model, architecture, batches, split, residence))
        if residence.reads(n)
    ]
    if first:
        for stream in streams:
            stream.state = residence.recall(stream.label(first))
    for visit in forward(model, architecture, residence, first=first):
        roots = {site.name: metric[site.name] for site in visit.sites} if metric else {}
        yield _of_block(visit, streams, roots, joint)


def _of_block(visit: Visit, streams: Sequence[Stream], roots: Mapping[str, Tensor], joint: bool) -> BlockMoments:
    """Let all streams through a block and take moments on the way."""
    tallies: dict[str, _Tally] = {site.name: {} for site in visit.sites}
    inverse_energy, tokens = 0.0, 0
    attention = _Attention(visit, roots)
    neurons = visit.here.neurons[0] if joint and len(visit.here.neurons) == 1 else None
    for stream in streams:
        visit.enter(stream)  # before anybody listens: the first block of T5's decoder runs to find its biases
        hooks = {site.reader: _hook(tallies[site.name], stream) for site in visit.sites}
        if neurons is not None:
            hooks |= _joint_hooks(neurons, tallies[neurons.name], stream)
        with listening(visit.model, inputs=hooks, outputs=attention.hooks()):
            visit.advance(stream)
        attention.add(stream)
        energy = real_rows(stream.state, stream.rows).float().square().sum(-1)
        inverse_energy += float((1 / energy.clamp_min(1e-12)).sum())
        tokens += len(energy)
    moments = {name: {split: sums.moments() for split, sums in tally.items()} for name, tally in tallies.items()}
    both: dict[Split, Moments] = {}
    if neurons is not None:
        both = moments[neurons.name]
        moments[neurons.name] = {split: first_part(m, neurons.width) for split, m in both.items()}
    _require_finite(moments)
    return BlockMoments(visit.i, moments, inverse_energy / max(tokens, 1), attention.responses, dict(roots), both)


class _Attention:
    """The response of one block's attention to its scores, by split, while batches come in."""

    def __init__(self, visit: Visit, metric: Mapping[str, Tensor]) -> None:
        self.visit = visit
        self.heads = responding(visit.model, visit.here)
        self.root = metric.get(self.heads.name) if self.heads else None
        self.outputs: dict[str, Tensor] = {}
        self.responses: dict[Split, Response] = {}

    def hooks(self) -> dict[str, Hook]:
        names = projections(self.heads) if self.heads else ()
        return {name: partial(self.outputs.__setitem__, name) for name in names}

    def add(self, stream: Stream) -> None:
        missing = sequences_of(stream.state.shape[1]) - stream.before
        if self.heads is None or missing <= 0:
            return
        response = block_response(self.visit, self.heads, self.outputs, stream, missing, self.root)
        if response is not None:
            old = self.responses.get(stream.split)
            self.responses[stream.split] = response if old is None else old + response


def _hook(tally: _Tally, stream: Stream) -> Hook:
    return lambda X: _add(tally, stream, X)


def _add(tally: _Tally, stream: Stream, X: Tensor) -> None:
    tally.setdefault(stream.split, Sums()).add(real_rows(X, stream.rows))


def _joint_hooks(site: Site, tally: _Tally, stream: Stream) -> dict[str, Hook]:
    """Hooks on the input of neurons, and then on them: the rows of the tally are both, one after the other."""
    read: list[Tensor] = []

    def neurons(H: Tensor) -> None:
        X = read.pop()
        _add(tally, stream, torch.cat([H.flatten(0, -2), X.flatten(0, -2).to(H)], -1))

    return {site.writers[0].module: read.append, site.reader: neurons}


def _require_finite(moments: Mapping[str, SiteMoments]) -> None:
    for name, splits in moments.items():
        for m in splits.values():
            if not bool(torch.isfinite(m.gram.diagonal()).all()):  # Σ x²: no x hides from it
                raise NotFinite(
                    f"{name}: NaN or infinite activations during calibration; check the weights, "
                    f"or calibrate with {option('dtype', torch.float32)}"
                )
