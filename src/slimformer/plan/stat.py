"""The published allocation of STAT: one global threshold for neurons, one for heads, and a split between the two.

Neuron j of block l scores |r_jj| · w_l; a head scores the error that is left without it (and those after it), times
w_l. The largest scores of all blocks are kept. For every mean head count H from the budget's share of the heads up to
all of them the budget fixes the number of neurons; of all H the one is taken whose head cutoff (0 when no head goes) is
nearest to twice the mean ‖R_l[k_l:, k_l:]‖ of the neurons dropped.

    BERT    w_l = 1 + √(L − l + 1), l = 0 … L − 1: early blocks count more
    OPT     w_l = 1 / an exponential fit, over depth, of the first value of each curve; head scores times 1.125^(H … 1)

Three things differ from the released programs. The head errors are put back in their own order (the release applies
its permutation twice where it means to undo it). The share of the feed-forward part is exact for the model and
sequence length (the release uses 0.6623 and 0.5714, which are right for one width and length each). For OPT the tails
are divided by the same fit as the scores (the release compares head scores that are with tails that are not).

Reference: Flynn et al., arXiv 2406.00061, and the program released with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from slimformer.errors import UnknownMethod
from slimformer.plan.allocate import Sizes, by_kind, top_up
from slimformer.plan.profile import Ladder

Step = tuple[float, int, int]  # score, index of the ladder, units kept when it is taken


def stat_bert(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """STAT's allocation for encoders: square-root depth weights."""
    heads, neurons = by_kind(ladders)
    last = max(ladder.site.block for ladder in ladders)
    of_heads, of_neurons = ([1 + math.sqrt(last + 2 - l.site.block) for l in each] for each in (heads, neurons))
    even = [1.0] * len(neurons)
    return _thresholds(ladders, budget, _head_steps(heads, of_heads), _neuron_steps(neurons, of_neurons), even)


def stat_opt(ladders: Sequence[Ladder], *, budget: int) -> Sizes:
    """STAT's allocation for decoders: curves divided by an exponential fit of their first value."""
    heads, neurons = by_kind(ladders)
    _require_pivots(neurons)
    for_neurons = [1 / fit for fit in _exponential_fit([sum(ladder.curve.pivots[:1]) for ladder in neurons])]
    for_heads = [1 / fit for fit in _exponential_fit([math.sqrt(ladder.curve.fit[0]) for ladder in heads])]
    steps = [
        (score * 1.125 ** (heads[l].site.units - units + 1), l, units)
        for score, l, units in _head_steps(heads, for_heads)
    ]
    return _thresholds(ladders, budget, _best_first(steps), _neuron_steps(neurons, for_neurons), for_neurons)


def _head_steps(heads: Sequence[Ladder], weight: Sequence[float]) -> list[Step]:
    """Going from size a to size b of block l is worth the error that a leaves."""
    steps = []
    for l, ladder in enumerate(heads):
        left = dict(zip(ladder.curve.sizes, ladder.curve.fit, strict=True))
        below = [0, *(size.units for size in ladder.sizes)]
        steps += [(weight[l] * math.sqrt(left[a]), l, b) for a, b in itertools.pairwise(below)]
    return _best_first(steps)


def _neuron_steps(neurons: Sequence[Ladder], weight: Sequence[float]) -> list[Step]:
    _require_pivots(neurons)
    steps = [(weight[l] * r, l, j + 1) for l, ladder in enumerate(neurons) for j, r in enumerate(ladder.curve.pivots)]
    return _best_first(steps)


def _best_first(steps: Sequence[Step]) -> list[Step]:
    """Largest score first; of equal scores (zero, beyond the rank) the smaller size, because sizes are nested."""
    return sorted(steps, key=lambda step: (-step[0], *step[1:]))


def _require_pivots(neurons: Sequence[Ladder]) -> None:
    for ladder in neurons:
        if len(ladder.curve.pivots) < ladder.site.units:
            raise UnknownMethod(
                f"STAT's allocation needs pivots, which {ladder.curve.method} has not; use interpolative"
            )


def _thresholds(
    ladders: Sequence[Ladder],
    budget: int,
    head_steps: list[Step],
    neuron_steps: list[Step],
    tail_weight: Sequence[float],
) -> Sizes:
    heads, neurons = by_kind(ladders)
    per_neuron = max(1.0, *(ladder.cost[-1] / max(1, ladder.site.units) for ladder in neurons))
    best: tuple[float, list[int], list[int]] | None = None
    all_heads = math.ceil(sum(ladder.site.units for ladder in heads) / len(heads))
    fewest = max(1, int(budget / sum(ladder.cost[-1] for ladder in ladders) * all_heads))
    for mean_heads in range(fewest, all_heads + 1):
        at_heads, cutoff = _take(head_steps, mean_heads * len(heads), len(heads))
        cutoff = cutoff if mean_heads < all_heads else 0.0
        at_heads = [_round_down(ladder, units) for ladder, units in zip(heads, at_heads, strict=True)]
        spent = sum(ladder.cost[i] for ladder, i in zip(heads, at_heads, strict=True))
        n = int((budget - spent) / per_neuron)
        if n < sum(ladder.sizes[0].units for ladder in neurons):
            continue
        keep, _ = _take(neuron_steps, n, len(neurons))
        tails = [tail_weight[l] * ladder.curve.tail[keep[l]] for l, ladder in enumerate(neurons)]
        gap = abs(cutoff - 2 * float(np.mean(tails)))
        if best is None or gap < best[0]:
            best = (
                gap,
                at_heads,
                [_round_down(ladder, units) for ladder, units in zip(neurons, keep, strict=True)],
            )
    if best is None:  # the budget leaves room for the smallest sizes only
        return top_up(ladders, {ladder.site.name: ladder.sizes[0] for ladder in ladders}, budget)
    sizes = {l.site.name: l.sizes[i] for l, i in zip([*heads, *neurons], best[1] + best[2], strict=True)}
    return top_up(ladders, _within(ladders, sizes, budget), budget)


def _take(steps: Sequence[Step], units: int, n: int) -> tuple[list[int], float]:
    """Units kept in each of n blocks, and the last score taken, when the best `units` of all are kept."""
    keep, total, cutoff = [0] * n, 0, 0.0
    for score, l, reached in steps:
        if total >= units:
            break
        total += reached - keep[l]
        keep[l], cutoff = reached, score
    return keep, cutoff


def _round_down(ladder: Ladder, units: int) -> int:
    fitting = [i for i, size in enumerate(ladder.sizes) if size.units <= units]
    return fitting[-1] if fitting else 0


def _within(ladders: Sequence[Ladder], sizes: Sizes, budget: int) -> Sizes:
    """Floors can push the sum over the budget: then the largest sites give a rung until it fits."""
    at = {ladder.site.name: ladder.sizes.index(sizes[ladder.site.name]) for ladder in ladders}

    def over() -> bool:
        return sum(ladder.cost[at[ladder.site.name]] for ladder in ladders) > budget

    while over():
        largest = max((l for l in ladders if at[l.site.name] > 0), key=lambda l: l.cost[at[l.site.name]])
        at[largest.site.name] -= 1
    return {ladder.site.name: ladder.sizes[at[ladder.site.name]] for ladder in ladders}


def _exponential_fit(first: Sequence[float]) -> list[float]:
    """exp of the straight line through log first value over depth. Blocks that are empty or dead have no say."""
    depth = [l for l, value in enumerate(first) if value > 0]
    if len(depth) < 2:
        return [next((value for value in first if value > 0), 1.0)] * len(first)
    slope, start = np.polyfit(depth, np.log([first[l] for l in depth]), 1)
    return [math.exp(start + slope * l) for l in range(len(first))]
