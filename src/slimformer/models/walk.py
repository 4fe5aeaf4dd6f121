"""Go through a model block by block: forward with the states of all batches, backward over states that were stored.

All batches go through block 0, then all through block 1, and so on, so the weights of one block are needed at a time
and, between blocks, nothing but the residual stream of every batch (tokens × hidden size). A `Residence` says where
weights and states live; in memory it has nothing to do.

    for visit in forward(model, architecture, residence):      # the weights of block visit.i are there
        for stream in streams:
            visit.advance(stream)

To know how the model calls its blocks (masks, rotary angles, positions), it is rehearsed once per batch with every
block replaced by an echo that notes its arguments. No forward pass is copied, so none can go stale. Where a model has
several stacks, it is rehearsed again at the start of each, the stacks before it answering with the states they ended
in: so a decoder hears of its encoder what it would have heard.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.models.architecture import Architecture, Block, Site
from slimformer.models.batch import Batch
from slimformer.models.family import StackLayout
from slimformer.models.hooks import answering, nudged
from slimformer.models.residence import IN_MEMORY, Residence

Split = str
Ended = Tensor | tuple[Tensor, ...]
SOURCE = "encoder_hidden_states"  # what blocks call that which their cross-attention looks at


@dataclass
class Stream:
    """The hidden states of one batch on their way through a model, and how each block is to be called."""

    state: Tensor  # before block 0, until it moves on
    calls: list[dict[str, Any]]
    rows: Tensor | None  # which positions are real; None where all are
    split: Split = ""
    name: str = ""  # one of its own for every batch of every split
    before: int = 0  # sequences of its split that come before it
    batch: Batch | None = None  # of which it is; needed where there are several stacks
    ends: tuple[Tensor, ...] = ()  # the states in which stacks have ended
    side_by_side: bool = False  # does no stack look at another?

    @property
    def end(self) -> Ended:
        """The states all stacks have ended in; of one stack, or where the last looks at the others, its own."""
        return (*self.ends, self.state) if self.side_by_side else self.state

    def fork(self, name: str) -> Stream:
        """Another stream of the same batch that starts where this one is now."""
        return replace(self, name=f"{self.name}.{name}")

    def label(self, i: int) -> str:
        """The name of the state before block i. Two take turns, so that a block that is stopped halfway can start
        again."""
        return f"{self.name}.{i % 2}"


@dataclass
class Trail:
    """One batch with its states before every block and after the last; on the way back, the gradient where it is."""

    batch: Batch
    stream: Stream
    states: list[Tensor]
    gradient: Tensor | None = None
    crossed: Tensor | None = None  # the gradient at what cross-attention was given of the stack before, so far

    def rows(self, visit: Visit) -> Tensor | None:
        """Which positions are real in the stack of a block."""
        return stack_rows(self.batch, self.states[visit.i], visit.architecture.layout(visit.sites[0]))

    def keep_gradient(self, gradient: Tensor, i: int, residence: Residence) -> None:
        """The gradient before block i. Two places take turns: what a block wrote may have the gradient after it."""
        self.gradient = residence.keep(f"{self.stream.name}.gradient.{i % 2}", gradient)


@dataclass(frozen=True)
class Visit:
    """A block while its weights are there."""

    model: PreTrainedModel
    architecture: Architecture
    i: int
    residence: Residence = IN_MEMORY

    @property
    def here(self) -> Block:
        """What is known of the block."""
        return self.architecture.blocks[self.i]

    @property
    def path(self) -> str:
        """The name of the block."""
        return self.here.path

    @property
    def block(self) -> nn.Module:
        return self.model.get_submodule(self.path)

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.here.sites

    @property
    def _stack(self) -> int:
        """The number of the stack the block is in."""
        return next(n for n, s in enumerate(self.architecture.stacks) if self.i <= s.blocks[-1].index)

    def run(self, stream: Stream) -> Tensor:
        """The state after the block; the stream stays before it."""
        self.enter(stream)
        return self.through(stream.state, stream.calls[self.i])

    def through(self, state: Tensor, call: Mapping[str, Any]) -> Tensor:
        """The stream after all runs of the block."""
        return through(self.block, state, call, self.here.runs)

    def enter(self, stream: Stream) -> None:
        """Where another stack begins, let a stream go from the end of the one before to the start of this one."""
        stacks, n = self.architecture.stacks, self._stack
        if n == len(stream.ends):
            return
        assert stream.batch is not None
        stream.ends = (*stream.ends, stream.state)
        states, calls = self._begin(stream.batch, stream.ends)
        stream.state = self.residence.keep(f"{stream.name}.start.{n}", states[0])
        stream.calls = [*stream.calls[: self.i], *calls]
        stream.rows = stack_rows(stream.batch, states[0], stacks[n].layout)

    def _begin(self, batch: Batch, ends: Sequence[Tensor]) -> tuple[list[Tensor], list[dict[str, Any]]]:
        """The state before this block and the calls from here on, where the stacks before it ended in these states."""
        blocks = [self.model.get_submodule(block.path) for block in self.architecture.blocks]
        stacks, (ended, left) = self.architecture.stacks, (blocks[: self.i], blocks[self.i :])
        end_of = {id(blocks[b.index]): end for s, end in zip(stacks, ends, strict=False) for b in s.blocks}
        states: list[Tensor] = []
        calls: list[dict[str, Any]] = []
        wrap = _wrapping(self.model, self.architecture)
        answers = answering(ended, lambda block: lambda *_args, **_kwargs: wrap(block, end_of[id(block)]))
        with answers, _echoing(left, states, calls, wrap):
            self.model.base_model(**batch.inputs, **plain_call(self.architecture))
        return states, calls

    def advance(self, stream: Stream) -> None:
        """Let a stream through the block."""
        stream.state = self.residence.keep(stream.label(self.i + 1), self.run(stream))

    def pull_back(self, trail: Trail, names: Sequence[str]) -> dict[str, Tensor]:
        """The gradients at the outputs of the modules named, run after run, from that after the block; the trail's
        becomes the one before it. The block runs once more, from its stored state."""
        first = self.i in {stack.blocks[0].index for stack in self.architecture.stacks}  # embeddings want no gradient
        call, crossed, runs = trail.stream.calls[self.i], list[Tensor](), self.here.runs
        with torch.enable_grad(), nudged(self.model, names) as zeros:
            state = trail.states[self.i].detach().requires_grad_(not first)
            if any(site.crosses for site in self.sites):
                crossed = [call[SOURCE].detach().requires_grad_()]
                call = {**call, SOURCE: crossed[0]}
            after = self.through(state, call)
            at = [*(zero for name in names for zero in zeros[name]), *crossed, *([] if first else [state])]
            gradients = torch.autograd.grad(after, at, trail.gradient)
        if crossed:
            there = gradients[len(names) * runs]
            trail.crossed = there if trail.crossed is None else trail.crossed + there
        if not first:
            trail.keep_gradient(gradients[-1], self.i, self.residence)
        elif trail.crossed is not None:
            trail.keep_gradient(self._before_stack(trail), self.i, self.residence)
        return {name: torch.cat(gradients[n * runs : (n + 1) * runs]) for n, name in enumerate(names)}

    def _before_stack(self, trail: Trail) -> Tensor:
        """The gradient at the end of the stack before the one that begins here, from that at what blocks were given of
        it, which a norm may have changed. Cost: what is outside the blocks, once."""
        n, gradient, trail.crossed = self._stack, trail.crossed, None
        *earlier, end = trail.stream.ends[:n]
        end = end.detach().requires_grad_()
        with torch.enable_grad():
            _, calls = self._begin(trail.batch, [*earlier, end])
            (before,) = torch.autograd.grad(calls[0][SOURCE], [end], gradient)
        return before


def forward(
    model: PreTrainedModel, architecture: Architecture, residence: Residence = IN_MEMORY, *, first: int = 0
) -> Iterator[Visit]:
    """Every block from the `first` on, in the order of the forward pass."""
    for i in range(first, architecture.n_blocks):
        with residence.block(i):
            yield Visit(model, architecture, i, residence)


def backward(model: PreTrainedModel, architecture: Architecture, residence: Residence = IN_MEMORY) -> Iterator[Visit]:
    """Every block, from the last to the first."""
    for i in reversed(range(architecture.n_blocks)):
        with residence.block(i):
            yield Visit(model, architecture, i, residence)


def rehearse(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], split: Split = "",
    residence: Residence = IN_MEMORY,
) -> Iterator[Stream]:  # fmt: skip
    """For every batch the state before block 0 and the keyword arguments of every block, without running the blocks."""
    blocks = [model.get_submodule(block.path) for block in architecture.blocks]
    before = 0
    for n, batch in enumerate(batches):
        here = batch.to(model.device)
        states: list[Tensor] = []
        calls: list[dict[str, Any]] = []
        with _echoing(blocks, states, calls, _wrapping(model, architecture)):
            model.base_model(**here.inputs, **plain_call(architecture))
        name = f"{split}-{n:05d}"
        state = residence.keep(f"{name}.start", states[0])
        own = here if len(architecture.stacks) > 1 else None
        rows = stack_rows(here, state, architecture.stacks[0].layout)
        yield Stream(state, calls, rows, split, name, before, own, side_by_side=architecture.family.towers)
        before += len(next(iter(here.inputs.values())))


def stack_rows(batch: Batch, state: Tensor, layout: StackLayout) -> Tensor | None:
    """Which positions of a stream are real in a stack; nothing to pick where all are, or where it is not the masked
    text."""
    if layout.positions:
        return None
    mask = batch.inputs[layout.mask].bool() if layout.mask in batch.inputs else batch.mask
    return None if mask is None or bool(mask.all()) or (mask.shape != state.shape[:2]) else mask


def plain_call(architecture: Architecture) -> dict[str, Any]:
    """What a model is called with besides its inputs, so that it stores nothing for later calls."""
    return {"use_cache": False} if architecture.family.unit == "tokens" else {}


def through(block: nn.Module, state: Tensor, call: Mapping[str, Any], runs: int = 1) -> Tensor:
    """The stream after a block, or after so many runs of it; some blocks hand it back in a tuple."""
    for _ in range(runs):
        output = block(state, **call)
        state = output if isinstance(output, Tensor) else output[0]
    return state


def real_rows(X: Tensor, mask: Tensor | None) -> Tensor:
    """The rows of X (batch × length × d, once or run after run) at real positions: padding never counts."""
    rows = X.flatten(0, -2)  # OPT hands its feed-forward part rows, not batches
    if mask is None:
        return rows
    real = mask.flatten().to(rows.device)  # blocks may be on several devices
    return rows[real.repeat(len(rows) // len(real))]


def last_states(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], name: str,
    residence: Residence = IN_MEMORY,
) -> list[Ended]:  # fmt: skip
    """The residual stream of every batch after the last block, kept under this name; of towers side by side those of
    all. Cost: one forward pass."""
    streams = list(rehearse(model, architecture, batches, name, residence))
    for visit in forward(model, architecture, residence):
        for stream in streams:
            visit.advance(stream)
    return [stream.end for stream in streams]


@torch.no_grad()
def record(
    model: PreTrainedModel, architecture: Architecture, batches: Sequence[Batch], name: str,
    residence: Residence = IN_MEMORY, progress: Callable[[int], None] = lambda _block: None,
) -> list[Trail]:  # fmt: skip
    """The states of every batch before every block and after the last, kept under this name.

    For models of one stack, or of an encoder and a decoder that looks at it: a way back leads from each block to the
    one before. Cost: one forward pass; memory tokens × hidden size × blocks.
    """
    here = [batch.to(model.device) for batch in batches]
    streams = rehearse(model, architecture, here, name, residence)
    trails = [Trail(batch, stream, [stream.state]) for batch, stream in zip(here, streams, strict=True)]
    for visit in forward(model, architecture, residence):
        for trail in trails:
            visit.enter(trail.stream)
            trail.states[-1] = trail.stream.state
            state = residence.keep(f"{trail.stream.name}.after.{visit.i}", visit.run(trail.stream))
            trail.states.append(state)
            trail.stream.state = state
        progress(visit.i)
    return trails


@contextmanager
def ending_in(
    model: PreTrainedModel, architecture: Architecture, states: Sequence[tuple[Batch, Ended]]
) -> Iterator[None]:
    """Let the model give, for each of these batches, the outputs that belong to its state after the last block.

    No block runs, so none need be in memory. Batches are told by their tensors: they must be the ones given here. Of
    several stacks the last gives the outputs, and the others hand back what they are given; towers side by side give
    them together.
    """
    wrap = _wrapping(model, architecture)
    ends = [(batch, state if isinstance(state, tuple) else (state,)) for batch, state in states]
    known = {_key(next(iter(batch.inputs.values()))): state for batch, state in ends}
    running: list[tuple[Tensor, ...]] = []

    def note(_module: nn.Module, args: Any, kwargs: Any) -> None:
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor) and _key(value) in known]
        running[:] = [known[_key(value)] for value in given[:1]] or running

    handles = [  # some heads call a part of the headless model, some callers the headless model itself
        module.register_forward_pre_hook(note, with_kwargs=True) for module in {model, model.base_model}
    ]
    try:
        stacks = [[model.get_submodule(block.path) for block in stack.blocks] for stack in architecture.stacks]
        ended = stacks if architecture.family.towers else stacks[-1:]
        of = {id(block): n for n, stack in enumerate(ended) for block in stack}

        def answer(block: nn.Module) -> Any:
            return lambda _hidden_states, *_args, **_kwargs: wrap(block, running[0][of[id(block)]])

        with (
            answering([block for stack in ended for block in stack], answer),
            _echoing([block for stack in stacks[: len(stacks) - len(ended)] for block in stack], [], [], wrap),
        ):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _key(X: Tensor) -> tuple[int, torch.Size]:
    return X.data_ptr(), X.shape


@dataclass(frozen=True)
class Wrap:
    """What a block gives, from the stream after it: that, or a tuple of it and what is handed on, or of it and nothing
    for scores nobody wants."""

    tuples: Mapping[int, tuple[str, ...]]  # of blocks that give one: what they hand on in it

    def __call__(self, block: nn.Module, state: Tensor) -> Any:
        return self.as_given(block, state, {})

    def as_given(self, block: nn.Module, state: Tensor, call: Mapping[str, Any]) -> Any:
        """The same of a block that does not run: what it was handed it hands on."""
        handed = [call.get(name) for name in self.tuples.get(id(block), ())]
        return (state, *(handed or [None])) if id(block) in self.tuples else state


def _wrapping(model: PreTrainedModel, architecture: Architecture) -> Wrap:
    stacks = [stack for stack in architecture.stacks if stack.layout.tuples]
    return Wrap({id(model.get_submodule(b.path)): stack.layout.hands_on for stack in stacks for b in stack.blocks})


@contextmanager
def _echoing(
    blocks: Sequence[nn.Module], states: list[Tensor], calls: list[dict[str, Any]], wrap: Wrap
) -> Iterator[None]:
    """Let every block hand back its input and note how it was called, the first time if it is run several times.

    What blocks hand on besides the stream does not depend on it: the first of a stack, who is given none of it, runs to
    find it, and the others hand it on.
    """

    def echo(block: nn.Module) -> Any:
        names = [p for p in inspect.signature(block.forward).parameters if p != "hidden_states"]
        run, noted = block.forward, list[bool]()

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
            call = {**dict(zip(names, args, strict=False)), **kwargs}
            if not noted:
                states.append(hidden_states)
                calls.append(call)
                noted.append(True)
            handed = wrap.tuples.get(id(block), ())
            if handed and all(call.get(name) is None for name in handed):
                return (hidden_states, *run(hidden_states, *args, **kwargs)[1:])
            return wrap.as_given(block, hidden_states, call)

        return forward

    with answering(blocks, echo):
        yield
