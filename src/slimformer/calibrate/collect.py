"""One pass over the data: moments of what every site's reader sees. The only file with hooks.

The model is walked block by block: all batches go through block 0, then all through block 1, and so on. Between blocks
only the residual stream is kept (tokens × hidden size); the wide activations inside a block live for one batch. When a
block is finished its moments are handed out and nothing of it stays, so memory does not grow with depth.

To know how the model calls its blocks (masks, rotary angles, positions), it is rehearsed once per batch with every
block replaced by an echo that notes its arguments. No forward pass is copied, so none can go stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.respond import block_response, has_response, projections, sequences_of
from slimformer.calibrate.text import Batch
from slimformer.decompose.bypass import joined
from slimformer.decompose.response import Response
from slimformer.errors import NotFinite
from slimformer.linalg.moments import Moments
from slimformer.linalg.pairs import Pairs
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.models.ranks import heads_of

Split = str
SiteMoments = dict[Split, Moments]
Ear = Callable[[Tensor], None]  # what listens to a module


@dataclass(frozen=True)
class BlockMoments:
    """What one block's sites saw, by site and split, and the weight an error there has in the residual stream."""

    block: int
    sites: dict[str, SiteMoments]
    loudness: (
        float  # mean over tokens of 1 / ‖h‖² after the block: errors count relative to the stream they are added to
    )
    responses: dict[Split, Response] = field(default_factory=dict)  # of attention to its scores, where they may be cut
    metric: dict[str, Tensor] = field(default_factory=dict)  # by site, the root of `decompose.metric`; else squares
    joint: dict[Split, Moments] = field(default_factory=dict)  # of neurons and, after them, their input; where asked

    def read_through(self, site: str, W: Tensor) -> Tensor:
        """A reader as the metric sees it: R W."""
        R = self.metric.get(site)
        return W if R is None else R @ W.to("cpu", torch.float64)


@dataclass
class Stage:
    """One batch on its way through the model: the state it is in, and how each block is to be called."""

    state: Tensor  # before block 0, until it moves on
    calls: list[dict[str, Any]]
    rows: Tensor | None  # which positions are real
    split: Split
    name: str = ""  # one of its own for every batch of every split
    before: int = 0  # sequences of its split that come before it


@dataclass(frozen=True)
class Residence:
    """Where weights and states are while a model is walked: all in memory, unless told otherwise.

    `block(i)` makes the weights of block i usable for a while; `keep` takes a state under a name and gives it back from
    where it will stay, `recall` gives back what an earlier run kept.
    """

    block: Callable[[int], AbstractContextManager[object]] = lambda _i: nullcontext()
    keep: Callable[[str, Tensor], Tensor] = lambda _name, state: state
    recall: Callable[[str], Tensor] | None = None


IN_MEMORY = Residence()


def state_name(stage: Stage, stream: str, i: int) -> str:
    """The name of the state before block i. Two take turns, so that a block that is stopped halfway can start again."""
    return f"{stage.name}.{stream}.{i % 2}"


@dataclass
class _Tally:
    """Moments of one reader's input, by split, while batches come in."""

    moments: dict[Split, Moments] = field(default_factory=dict)

    def add(self, split: Split, X: Tensor) -> None:
        new = Moments.of(X)
        self.moments[split] = self.moments[split] + new if split in self.moments else new


@torch.inference_mode()
def collect(
    model: PreTrainedModel,
    architecture: Architecture,
    data: Mapping[Split, Sequence[Batch]],
    metric: Mapping[str, Tensor] | None = None,
    *,
    joint: bool = False,
    residence: Residence = IN_MEMORY,
    first: int = 0,
    share: tuple[int, int] = (0, 1),
) -> Iterator[BlockMoments]:
    """Moments of every site, one block at a time, for every split in `data`; responses are seen in the `metric`.

    `joint` also takes those of neurons together with their input, which `decompose.bypass` needs. With a `residence`
    that recalls states the walk may start at the block `first`; while the moments of a block are looked at, its weights
    are there. With a `share` (which, of how many) only so many of the batches are read. Cost: one forward pass through
    the blocks and n d² operations for every width d; memory tokens × hidden size.
    """
    model.eval()
    which, of = share
    stages = [
        stage
        for split, batches in data.items()
        for n, stage in enumerate(rehearse(model, architecture, batches, split, residence))
        if n % of == which
    ]
    if first and residence.recall is not None:
        for stage in stages:
            stage.state = residence.recall(state_name(stage, "dense", first))
    for i in range(first, architecture.n_blocks):
        with residence.block(i):
            roots = {site.name: metric[site.name] for site in architecture.of_block(i)} if metric else {}
            yield _of_block(model, architecture, i, stages, roots, joint, residence)


def _of_block(
    model: PreTrainedModel, architecture: Architecture, i: int, stages: Sequence[Stage], roots: Mapping[str, Tensor],
    joint: bool, residence: Residence,
) -> BlockMoments:  # fmt: skip
    """Let all batches through block i and listen."""
    block = model.get_submodule(f"{architecture.blocks}.{i}")
    tallies = {site.name: _Tally() for site in architecture.of_block(i)}
    inverse_energy, tokens = 0.0, 0
    attention = _Attention(model, architecture, i, roots)
    neurons, beside = architecture.of_block(i)[1], dict[Split, Pairs]()
    for stage in stages:
        ears = {site.reader: _ear(tallies[site.name], stage) for site in architecture.of_block(i)}
        if joint:
            ears |= _joint_ears(neurons, tallies[neurons.name], beside, stage)
        with listening(model, inputs=ears, outputs=attention.ears()):
            after = through(block, stage.state, stage.calls[i])
        stage.state = residence.keep(state_name(stage, "dense", i + 1), after)
        attention.add(stage)
        energy = real_rows(stage.state, stage.rows).float().square().sum(-1)
        inverse_energy += float((1 / energy.clamp_min(1e-12)).sum())
        tokens += len(energy)
    moments = {name: tally.moments for name, tally in tallies.items()}
    _require_finite(moments)
    both = {split: joined(moments[neurons.name][split], pairs) for split, pairs in beside.items()}
    return BlockMoments(i, moments, inverse_energy / max(tokens, 1), attention.responses, dict(roots), both)


class _Attention:
    """The response of one block's attention to its scores, by split, while batches come in."""

    def __init__(
        self, model: PreTrainedModel, architecture: Architecture, i: int, metric: Mapping[str, Tensor]
    ) -> None:
        self.model, self.architecture, self.i = model, architecture, i
        self.root = metric.get(heads_of(architecture, i).name)
        self.wanted = has_response(model, architecture, i)
        self.heard: dict[str, Tensor] = {}
        self.responses: dict[Split, Response] = {}

    def ears(self) -> dict[str, Ear]:
        names = projections(self.architecture, self.i) if self.wanted else ()
        return {name: partial(self.heard.__setitem__, name) for name in names}

    def add(self, stage: Stage) -> None:
        missing = sequences_of(stage.state.shape[1]) - stage.before
        if not self.wanted or missing <= 0:
            return
        found = block_response(
            self.model, self.architecture, self.i, self.heard, stage.calls[self.i], stage.rows, missing, self.root
        )
        if found is not None:
            old = self.responses.get(stage.split)
            self.responses[stage.split] = found if old is None else old + found


def _ear(tally: _Tally, stage: Stage) -> Ear:
    return lambda X: tally.add(stage.split, real_rows(X, stage.rows))


def _joint_ears(site: Site, tally: _Tally, beside: dict[Split, Pairs], stage: Stage) -> dict[str, Ear]:
    """What listens to the input of neurons, and then to them. Moments of neurons stay what they are without."""
    heard: list[Tensor] = []

    def neurons(H: Tensor) -> None:
        H, X = (real_rows(rows, stage.rows) for rows in (H, heard.pop()))
        tally.add(stage.split, H)
        new = Pairs.of(X, H)
        beside[stage.split] = beside[stage.split] + new if stage.split in beside else new

    return {site.writers[0].module: heard.append, site.reader: neurons}


def rehearse(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], split: Split = "",
    residence: Residence = IN_MEMORY,
) -> Iterator[Stage]:  # fmt: skip
    """For every batch the state before block 0 and the keyword arguments of every block, without running the blocks."""
    blocks = list(model.get_submodule(architecture.blocks).children())
    before = 0
    for n, batch in enumerate(batches):
        here = batch.to(model.device)
        states: list[Tensor] = []
        calls: list[dict[str, Any]] = []
        with _echoing(blocks, states, calls):
            model.base_model(**here.inputs, **({} if architecture.family.image else {"use_cache": False}))
        rows = None if here.mask is None or bool(here.mask.all()) else here.mask  # nothing to pick where all are real
        name = f"{split}-{n:05d}"
        yield Stage(residence.keep(f"{name}.start", states[0]), calls, rows, split, name, before)
        before += len(next(iter(here.inputs.values())))


def states_before_blocks(model: PreTrainedModel, architecture: Architecture, batch: Batch) -> list[Tensor]:
    """The residual stream of one batch before every block, and after the last."""
    (stage,) = rehearse(model, architecture, [batch])
    states = [stage.state]
    for block, call in zip(model.get_submodule(architecture.blocks).children(), stage.calls, strict=True):
        states.append(through(block, states[-1], call))
    return states


@contextmanager
def starting_at(model: PreTrainedModel, architecture: Architecture, i: int, state: Tensor) -> Iterator[None]:
    """Let the model start at block i with `state`: the blocks before it are skipped, what follows runs as ever."""
    skipped = list(model.get_submodule(architecture.blocks).children())[:i]
    with _answering(skipped, lambda _block: lambda _hidden_states, *_args, **_kwargs: state):
        yield


@contextmanager
def ending_in(
    model: PreTrainedModel, architecture: Architecture, states: Sequence[tuple[Batch, Tensor]]
) -> Iterator[None]:
    """Let the model give, for each of these batches, the outputs that belong to its state after the last block.

    No block runs, so none need be in memory. Batches are told by their tensors: they must be the ones given here.
    """
    known = {_key(next(iter(batch.inputs.values()))): state for batch, state in states}
    running: list[Tensor] = []

    def note(_module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and _key(value) in known]
        running[:] = [known[_key(value)] for value in given[:1]] or running

    handles = [  # some heads call a part of the headless model, some callers the headless model itself
        module.register_forward_pre_hook(note, with_kwargs=True) for module in {model, model.base_model}
    ]
    try:
        blocks = list(model.get_submodule(architecture.blocks).children())
        with _answering(blocks, lambda _block: lambda _hidden_states, *_args, **_kwargs: running[0]):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _key(X: Tensor) -> tuple[int, torch.Size]:
    return X.data_ptr(), X.shape


def real_rows(X: Tensor, mask: Tensor | None) -> Tensor:
    """The rows of X (batch × length × d) at real positions: padding never counts."""
    rows = X.flatten(0, -2)  # OPT hands its feed-forward part rows, not batches
    return rows if mask is None else rows[mask.flatten().to(rows.device)]  # blocks may be on several devices


@contextmanager
def _echoing(blocks: Sequence[nn.Module], states: list[Tensor], calls: list[dict[str, Any]]) -> Iterator[None]:
    """Let every block hand back its input and note how it was called."""

    def echo(block: nn.Module) -> Any:
        names = [p for p in _parameters(block) if p != "hidden_states"]

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            states.append(hidden_states)
            calls.append({**dict(zip(names, args, strict=False)), **kwargs})
            return hidden_states

        return forward

    with _answering(blocks, echo):
        yield


@contextmanager
def _answering(blocks: Sequence[nn.Module], answer: Callable[[nn.Module], Any]) -> Iterator[None]:
    """Let every block run `answer(block)` in place of its forward pass."""
    own = [vars(block).get("forward") for block in blocks]  # of the block itself, not of its class
    try:
        for block in blocks:
            block.forward = answer(block)  # type: ignore[method-assign]
        yield
    finally:
        for block, forward in zip(blocks, own, strict=True):
            del block.forward
            if forward is not None:
                block.forward = forward


def _parameters(block: nn.Module) -> list[str]:
    import inspect

    return list(inspect.signature(block.forward).parameters)


@contextmanager
def listening(
    model: nn.Module, *, inputs: Mapping[str, Ear] | None = None, outputs: Mapping[str, Ear] | None = None
) -> Iterator[None]:
    """Call an ear with the first input, or with the output, of each of the modules named."""

    def before(ear: Ear) -> Any:
        return lambda _module, args, kwargs: ear(args[0] if args else next(iter(kwargs.values())))

    def after(ear: Ear) -> Any:
        return lambda _module, _args, output: ear(output)

    handles = [
        model.get_submodule(name).register_forward_pre_hook(before(ear), with_kwargs=True)
        for name, ear in (inputs or {}).items()
    ]
    handles += [model.get_submodule(name).register_forward_hook(after(ear)) for name, ear in (outputs or {}).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def nudged(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Add a zero to the output of each of the modules named; what the loss says of that zero is its gradient there.

    So nothing depends on whether the weights want gradients. The zeros are those of the last forward pass.
    """
    zeros: dict[str, Tensor] = {}

    def nudge(name: str) -> Any:
        def after(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            zeros[name] = torch.zeros_like(output, requires_grad=True)
            return output + zeros[name]

        return after

    handles = [model.get_submodule(name).register_forward_hook(nudge(name)) for name in names]
    try:
        yield zeros
    finally:
        for handle in handles:
            handle.remove()


def through(block: nn.Module, state: Tensor, call: Mapping[str, Any]) -> Tensor:
    """The stream after a block; some blocks hand it back in a tuple."""
    output = block(state, **call)
    return output if isinstance(output, Tensor) else output[0]


def _require_finite(moments: Mapping[str, SiteMoments]) -> None:
    for name, splits in moments.items():
        for m in splits.values():
            if not bool(torch.isfinite(m.gram.diagonal()).all()):  # Σ x²: no x hides from it
                raise NotFinite(
                    f"{name}: NaN or infinite activations during calibration; check the weights, "
                    f"or calibrate with {option('dtype', torch.float32)}"
                )
