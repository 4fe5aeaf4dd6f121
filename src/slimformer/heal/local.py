"""The local phase: block after block learns to give the dense states, from what the healed blocks before it send.

Teacher and student are walked side by side. With h the student's own state before its block f_θ, and t the dense state
after the block (or after the blocks it stands for, where whole blocks are gone):

    min_θ  Σ ‖f_θ(h) − t‖²        AdamW, the rate falling to 0; the epoch that is best on the select split is kept

Where no epoch is better than none, the block stays as it was. A second model is never run in whole, and nothing but
one block learns at a time, so memory is that of two streams (tokens × hidden size) and one block with its gradients.

Cost: for every token three forward passes of a block and epoch. Reference: knowledge distillation by blocks as in
Minitron (2024) and LLM-Streamline (2024).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.heal.trained import put_back, snapshot, trained_parameters, training_only
from slimformer.heal.work import Work, agreed
from slimformer.models import Architecture, describe
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Visit, forward, real_rows, rehearse
from slimformer.rewrite.correct import Pair

EPOCHS, MOST_EPOCHS = 3, 16  # as long as there is other text to see; at most, where there is not
RATES = (1e-3, 3e-4, 1e-4)
BYTES = 1e9  # of streams in memory
EVALUATED = 1.1  # what looking at the select split adds to the time


@dataclass(frozen=True)
class LocalPlan:
    """How many of the batches are learned from, how often; `rate` is that of the first block that learned, 0 before."""

    batches: int
    epochs: int
    rate: float = 0.0


@dataclass(frozen=True)
class HealedBlock:
    """The relative squared error of the stream after a block on the select split, before and after it learned."""

    block: int
    before: float
    after: float
    epochs: int


@dataclass(frozen=True)
class Walk:
    """Both models, the streams of every batch through them, and how many dense blocks each small one stands for."""

    small: PreTrainedModel
    dense: PreTrainedModel
    spans: tuple[int, ...]
    kind: str = "all"
    seed: int = 0
    residence: Residence = IN_MEMORY

    @property
    def architecture(self) -> Architecture:
        return describe(self.small)

    def streams(self, batches: Mapping[str, Sequence[Batch]]) -> list[Pair]:
        """Both models at their first block. Each says itself how its blocks are called: angles follow from sizes."""
        models = ((self.dense, "dense", self.residence), (self.small, "small", self.residence.of_copy))
        states = [
            [
                stream.fork(name)
                for split, part in batches.items()
                for stream in rehearse(model, describe(model), part, split, home)
            ]
            for model, name, home in models
        ]
        return [Pair(teacher, student) for teacher, student in zip(*states, strict=True)]

    def parameters(self, i: int) -> dict[str, nn.Parameter]:
        """What learns in block i."""
        path = f"{self.architecture.blocks[i].path}."
        return {name: p for name, p in trained_parameters(self.small, self.kind).items() if name.startswith(path)}


def spans_of(blocks_left: Sequence[int], blocks: int) -> tuple[int, ...]:
    """For every block that was kept of so many, the number of dense blocks from where it starts to where the next does.

    >>> spans_of((0, 1, 4), 6)
    (1, 3, 2)
    """
    starts = (0, *blocks_left[1:])
    return tuple(end - start for start, end in zip(starts, (*starts[1:], blocks), strict=True))


@torch.no_grad()
def heal_blocks(
    walk: Walk, batches: Mapping[str, Sequence[Batch]], plan: LocalPlan, work: Work,
    progress: Callable[[int, HealedBlock], None] = lambda _i, _block: None,
) -> tuple[LocalPlan, list[HealedBlock]]:  # fmt: skip
    """Let every block of `walk.small` learn in place; the plan with the rate that was found, and what each block won.

    Blocks that an earlier run has finished are taken from its notes.
    """
    walk.small.eval()
    pairs = walk.streams({"fit": batches["fit"][: plan.batches], "select": batches["select"]})
    teachers = forward(walk.dense, describe(walk.dense), walk.residence)
    done: list[HealedBlock] = []
    for visit in forward(walk.small, walk.architecture, walk.residence.of_copy):
        for _ in range(walk.spans[visit.i]):
            teacher = next(teachers)
            for pair in pairs:
                teacher.advance(pair.teacher)
        parameters = walk.parameters(visit.i)
        known = work.recall(f"block-{visit.i:03d}")
        if known is None:
            for pair in pairs:
                visit.enter(pair.student)
            plan, trained = _learn_at_some_rate(walk, visit, pairs, plan)
            note = {"block": asdict(trained), "rate": plan.rate}
            work.keep(f"block-{visit.i:03d}", note, snapshot(parameters))
        else:
            note, values = known
            trained, plan = HealedBlock(**note["block"]), LocalPlan(plan.batches, plan.epochs, note["rate"])
            put_back(parameters, values)
        visit.residence.settle(visit.i)
        for pair in pairs:
            visit.advance(pair.student)
        done.append(trained)
        progress(visit.i, trained)
    return plan, done


@torch.no_grad()
def local_plan(walk: Walk, fit: Sequence[Batch], budget: tuple[str, float]) -> LocalPlan:
    """What a budget allows: as many batches as can be seen `EPOCHS` times and whose streams have room in memory.

    Minutes are turned into tokens by the pace of a step of every block.
    """
    unit, amount = budget
    sizes = [batch.tokens for batch in fit]
    (first,) = rehearse(walk.small, walk.architecture, fit[:1], "room", IN_MEMORY)
    room = min(len(fit), max(1, int(BYTES / (2 * first.state.nbytes))))  # batches are about as large as each other
    if unit == "epochs":
        return LocalPlan(room, int(amount))
    tokens = amount if unit == "tokens" else agreed(60 * amount * _pace(walk, fit[:1]))
    seen = max(1, sum(EPOCHS * sum(sizes[: n + 1]) <= tokens for n in range(room)))
    return LocalPlan(seen, max(1, min(MOST_EPOCHS, round(tokens / sum(sizes[:seen])))))


@torch.no_grad()
def _pace(walk: Walk, batches: Sequence[Batch]) -> float:
    """Tokens (images) that all blocks learn from in a second, by one step of each."""
    walk.small.eval()
    (pair,) = walk.streams({"fit": batches})
    teachers = forward(walk.dense, describe(walk.dense), walk.residence)
    steps = passes = 0.0
    for visit in forward(walk.small, walk.architecture, walk.residence.of_copy):
        started = time.perf_counter()
        for _ in range(walk.spans[visit.i]):
            next(teachers).advance(pair.teacher)
        passes += time.perf_counter() - started
        started, parameters = time.perf_counter(), walk.parameters(visit.i)
        before = snapshot(parameters)
        visit.enter(pair.student)
        with training_only(walk.small, parameters):
            optimizer = torch.optim.AdamW(parameters.values() or [torch.zeros(1)], lr=RATES[-1])
            for _ in range((2 if visit.i == 0 else 1) if parameters else 0):  # the first run of anything is slow
                started = time.perf_counter()
                _step(visit, pair, pair.teacher.state, optimizer)
            steps += time.perf_counter() - started
        put_back(parameters, before)
        visit.residence.settle(visit.i)
        started = time.perf_counter()
        visit.advance(pair.student)
        passes += time.perf_counter() - started
    return batches[0].tokens / (EVALUATED * steps + passes / EPOCHS)


def _learn_at_some_rate(
    walk: Walk, visit: Visit, pairs: Sequence[Pair], plan: LocalPlan
) -> tuple[LocalPlan, HealedBlock]:
    """Train one block in place at the rate of the blocks before it, or the next lower one that helps.

    Where none is known yet, that which is best on the select split after one epoch; where none helps, none is known
    after it either, and the block stays as it was.
    """
    rates = [rate for rate in RATES if not plan.rate or rate <= plan.rate]
    if not plan.rate:
        parameters = walk.parameters(visit.i)
        before, tried = snapshot(parameters), {}
        for rate in rates:
            tried[rate] = _learn(walk, visit, pairs, LocalPlan(plan.batches, 1, rate)).after
            put_back(parameters, before)
        rates = sorted(rates, key=lambda rate: tried[rate])[:1]
    for rate in rates:
        trained = _learn(walk, visit, pairs, LocalPlan(plan.batches, plan.epochs, rate))
        if trained.after < trained.before:
            return LocalPlan(plan.batches, plan.epochs, plan.rate or rate), trained
    return plan, trained


def _learn(walk: Walk, visit: Visit, pairs: Sequence[Pair], plan: LocalPlan) -> HealedBlock:
    """Train one block in place; what it was before comes back where no epoch is better."""
    fit, select = ([pair for pair in pairs if pair.student.split == split] for split in ("fit", "select"))
    parameters = walk.parameters(visit.i)
    start = best = _error(visit, select)
    values, seen = snapshot(parameters), 0
    if not parameters or not start:
        return HealedBlock(visit.i, start, start, 0)
    generator = torch.Generator().manual_seed(walk.seed * 1000 + visit.i)
    scale = 1 / max(start, 1e-12)  # losses of one size, whatever the block writes
    with training_only(walk.small, parameters):
        optimizer = torch.optim.AdamW(parameters.values(), lr=plan.rate, weight_decay=0.0)
        steps = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / (plan.epochs * len(fit)))
        while seen < plan.epochs and (best < start or seen <= plan.epochs / 2):  # the rate falls, and with it errors
            for n in torch.randperm(len(fit), generator=generator).tolist():
                _step(visit, fit[n], fit[n].teacher.state, optimizer, scale)
                steps.step()
            now = _error(visit, select)
            if now < best:
                best, values = now, snapshot(parameters)
            seen += 1
    put_back(parameters, values)
    return HealedBlock(visit.i, start, best, seen)


def _step(visit: Visit, pair: Pair, target: Tensor, optimizer: torch.optim.Optimizer, scale: float = 1.0) -> None:
    with torch.enable_grad():
        given = visit.through(pair.student.state.detach(), pair.student.calls[visit.i])
        x, y = real_rows(target, pair.rows), real_rows(given, pair.rows)
        loss = scale * (x - y).square().sum() / x.square().sum().clamp_min(1e-12)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _error(visit: Visit, pairs: Sequence[Pair]) -> float:
    """Σ ‖f(h) − t‖² / Σ ‖t‖² over real positions."""
    moved = size = 0.0
    for pair in pairs:
        given = visit.through(pair.student.state, pair.student.calls[visit.i])
        x, y = real_rows(pair.teacher.state, pair.rows), real_rows(given, pair.rows)
        moved, size = moved + float((x - y).square().sum()), size + float(x.square().sum())
    return moved / max(size, 1e-30)
