"""How much memory it takes to compress a model block by block, counted before anything is done.

Counted is anonymous memory, which only its owner can give back: matrices, activations, weights in another precision
than that of their file. Weights and states that are mapped from files are not, because the system drops them when
memory is short. With d the widest site, m the width of the stream and n the tokens of a batch, the phases need

    open        what is outside the blocks, where it is stored in another precision than it is used in
    data        a text several times over while it is cut into documents
    read        a part of a weight while it is hashed
    collect     4 Gram matrices d² (two splits, that of the batch, and the sum), activations n (6 d + 12 m)
    profile     8 matrices d² (moments, their copies in another order, factors), 3 readers m d
    cut         6 matrices d², 5 readers m d, a copy of a block
    correct     11 matrices d² if nothing were cut, 16 readers m d, activations, a copy of a block
    outputs     2 tables of logits, and a few rows of them in double precision
    write       what is outside the blocks once more, as it is stored

in double precision, activations and blocks in that of the model; and everywhere what blocks are called with, what is
outside the blocks and a block, where they are stored in another precision than they are used in. These are upper
bounds, kept by tests.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from slimformer.errors import NotEnoughMemory
from slimformer.messages.words import option
from slimformer.models import Architecture
from slimformer.models.architecture import PART
from slimformer.plan.settings import CutSettings

DOUBLE = 8
SLACK, KEPT = 1.05, 96 * 10**6  # what allocators keep for themselves; an arena of its own for each busy thread
MARGIN = 1.02
LOGITS, SHORT = 2**26, 128  # logits at a time where results are evaluated; positions where a correction is
COPIED = ((256, 12), (64, 56))  # positions that are compared at once, and bytes a logit takes there: for nll, for KL
FIRST = ("open", "data", "read")  # phases that know nothing of blocks


@dataclass(frozen=True)
class Estimate:
    """Bytes of anonymous memory: what is there already, and the most each phase adds."""

    before: int
    phases: dict[str, int]
    batch_size: int

    @property
    def peak(self) -> int:
        """At the worst moment."""
        return self.before + KEPT + int(SLACK * max(self.phases.values()))

    @property
    def worst(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: self.phases[phase])

    def to_json(self) -> dict[str, object]:
        return {"before": self.before, "phases": self.phases, "peak": self.peak, "batch_size": self.batch_size}

    def __str__(self) -> str:
        parts = ", ".join(f"{phase} {in_words(size)}" for phase, size in self.phases.items())
        return f"{in_words(self.peak)} at most, in {self.worst} ({in_words(self.before)} are in use; {parts})"

    @property
    def enough(self) -> int:
        """An amount that will do although a process has never quite the same in use: rounded up, with a margin."""
        needed = math.ceil(MARGIN * self.peak) + KEPT // 2
        step = int(10 ** max(0, len(str(needed)) - 3))  # three digits are said, so that what is said is what is meant
        return math.ceil(needed / step) * step


@dataclass(frozen=True)
class Load:
    """Bytes that depend on a checkpoint and on the precision worked in, `item` bytes a number.

    `block` is the largest block in that precision, `block_copied` what of a block and `outside_copied` what of the rest
    is no mapped file, `stored` the rest as it will be written, `data` what reading the data takes, `calls` what blocks
    are called with beside states.
    """

    item: int
    block: int
    block_copied: int = 0
    outside_copied: int = 0
    stored: int = 0
    data: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Work:
    """What is to be done, as far as memory goes: the metric, moments of neurons with their input, probes, correction;
    and how many positions are read at a time."""

    seq_len: int
    metric: bool
    joint: bool
    probed: bool
    refined: bool
    batch_size: int = 1

    @classmethod
    def of(cls, settings: CutSettings, seq_len: int, *, refined: bool) -> Work:
        """What a cut with these settings needs."""
        greedy = settings.allocation == "greedy"
        return cls(seq_len, greedy or settings.metric == "fisher", settings.ffn != "neurons", settings.probed, refined)


def estimate_memory(
    architecture: Architecture, load: Load, work: Work, *, vocabulary: int, before: int, windows: bool = True
) -> Estimate:
    """The most memory each phase takes; `windows` are read in short beginnings where outputs are compared."""
    d, m = max(site.width for site in architecture), architecture.hidden
    gram, reader, n = d * d * DOUBLE, m * d * DOUBLE, work.batch_size * work.seq_len
    activations = n * (6 * d + 12 * m) * load.item
    shown = min(n, max(work.seq_len, LOGITS // max(1, vocabulary)))
    if work.refined or work.probed:
        shown = max(shown, work.batch_size * min(work.seq_len, SHORT) if windows else n)
    phases = {
        "open": PART * 4 * load.item,
        "data": load.data,
        "read": PART * 4 * load.item,
        "collect": 4 * gram + activations,
        "profile": 8 * gram + 3 * reader,
        "cut": 6 * gram + 5 * reader + load.block,
        "outputs": vocabulary * (2 * shown * load.item + max(min(n, rows) * size for rows, size in COPIED)),
        "write": load.stored,
    }
    if work.refined:
        phases["correct"] = 11 * gram + 16 * reader + activations + load.block
    always = load.calls + load.block_copied + load.outside_copied
    first = load.outside_copied  # before there are blocks and calls
    sizes = {phase: size + (first if phase in FIRST else always) for phase, size in phases.items()}
    return Estimate(before, sizes, work.batch_size)


def require_memory(estimate: Estimate, memory: int) -> None:
    """Refuse before the work what could not be kept to."""
    if estimate.peak > memory:
        others = [advice for advice, phases in _advice().items() if estimate.worst in phases]
        raise NotEnoughMemory(
            f"{option('memory')} {in_words(memory)} is not enough: this model needs {estimate}; "
            f"give {' or '.join([f'{in_words(estimate.enough)} or more', *others])}"
        )


def _advice() -> dict[str, tuple[str, ...]]:
    """What else helps, and in which phases."""
    return {
        f"a smaller {option('seq_len')}": ("collect", "outputs", "correct"),
        option("refine", False): ("correct",),
        f"less {option('data')}": ("data",),
    }


def in_words(size: int) -> str:
    """Bytes in a unit one can read."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"
