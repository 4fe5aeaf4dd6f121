"""How much memory it takes to compress a model block by block, counted before anything is done.

Counted is anonymous memory, which only its owner can give back: matrices, activations, weights in another precision
than that of their file. Weights and states that are mapped from files are not, because the system drops them when
memory is short. With d the widest site, m the width of the stream and n the tokens of a batch, the phases need

    collect     4 Gram matrices d² (two splits, that of the batch, and the sum), activations n (6 d + 12 m)
    profile     8 matrices d² (moments, their copies in another order, factors), 3 readers m d
    cut         6 matrices d², 5 readers m d, a copy of a block
    correct     11 matrices d² if nothing were cut, 16 readers m d, activations, a copy of a block
    outputs     3 tables of logits, and what is outside the blocks once more when it is written

in double precision, activations and blocks in that of the model; and everywhere a block, where it is stored in another
precision than it is used in. These are upper bounds, kept by a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from slimformer.errors import NotEnoughMemory
from slimformer.models import Architecture

DOUBLE = 8
SLACK, KEPT = 1.05, 64 * 10**6  # what allocators keep for themselves


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


def estimate_memory(
    architecture: Architecture, *, seq_len: int, batch_size: int, item: int, block_bytes: int, outside_bytes: int,
    vocabulary: int, before: int, calls: int = 0, mapped: bool = True, refined: bool = False,
) -> Estimate:  # fmt: skip
    """The most memory each phase takes. `item` is the size of a number in the precision worked in, `block_bytes` the
    largest block in it; `outside_bytes` is what is not in a block, `calls` what blocks are called with beside states;
    `mapped` weights are used as they are stored.
    """
    d, m = max(site.width for site in architecture), architecture.hidden
    gram, reader, n = d * d * DOUBLE, m * d * DOUBLE, batch_size * seq_len
    activations = n * (6 * d + 12 * m) * item
    logits = min(n, max(seq_len, 2**26 // max(1, vocabulary))) * vocabulary * item
    phases = {
        "collect": 4 * gram + activations,
        "profile": 8 * gram + 3 * reader,
        "cut": 6 * gram + 5 * reader + block_bytes,
        "outputs": 3 * logits + outside_bytes,
    }
    always = calls + (0 if mapped else block_bytes)
    if refined:
        phases["correct"] = 11 * gram + 16 * reader + activations + block_bytes
    return Estimate(before, {phase: size + always for phase, size in phases.items()}, batch_size)


def require_memory(estimate: Estimate, memory: int) -> None:
    """Refuse before the work what could not be kept to."""
    if estimate.peak > memory:
        raise NotEnoughMemory(
            f"--memory {in_words(memory)} is not enough: this model needs {estimate}; give {in_words(estimate.peak)} "
            "or more, a smaller --seq-len, or --no-refine"
        )


def in_words(size: int) -> str:
    """Bytes in a unit one can read."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"
