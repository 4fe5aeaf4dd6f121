"""Which ranks MoDeGPT gives the modules of every block, and what they cost.

Every module of a block keeps the same share. Blocks that turn the stream less keep less: their sparsity is

    φ_i = min(c softmax(−influence / ε)_i, SPARSEST),     influence_i = 1 − E cos(x_i, x_{i+1}),

with the smallest c that meets the budget; a paper's mean sparsity is one such c. ε = ∞ gives all blocks the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulated_evidence import Evidence, NotOffered
from slimformer.plan.cost import Cost

SPARSEST = 0.9  # of a block


@dataclass(frozen=True)
class Ranks:
    """What a block keeps: dimensions of queries and keys, and of values, in every head; neurons."""

    qk: int
    vo: int
    neurons: int


def allocation(evidence: Evidence, budget: float, smoothing: float) -> list[Ranks]:
    """Ranks of every block: the least sparse within the budget; what rounding leaves goes to neurons."""
    influence = evidence.influence
    weights = (-(influence - influence.min()) / smoothing).exp().clamp_min(1e-6)
    most = int(budget * evidence.dense.macs + 1e-6)

    def at(strength: float) -> list[Ranks]:
        shares = 1 - (strength * weights).clamp_max(SPARSEST)
        return [ranks_at(evidence, i, float(share)) for i, share in enumerate(shares)]

    low, high = 0.0, SPARSEST / float(weights.min())
    if ranks_cost(evidence, at(high)).macs > most:
        raise NotOffered(f"a budget of {budget:g} is below what keeping {1 - SPARSEST:.0%} of every block costs")
    if ranks_cost(evidence, at(low)).macs <= most:
        return at(low)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if ranks_cost(evidence, at(middle)).macs <= most else (middle, high)
    return _fill(evidence, at(high), most)


def ranks_at(evidence: Evidence, block: int, share: float) -> Ranks:
    """A share of everything in a block, in steps of a rotary plane, a dimension, and a multiple of neurons."""
    heads, ffn = evidence.architecture.blocks[block].sites
    plane, multiple = plane_of(evidence), evidence.given.recipe.multiple_of
    neurons = ffn.units if share >= 1 else max(multiple, int(share * ffn.units) // multiple * multiple)
    return Ranks(
        plane * max(1, round(share * heads.unit / plane)), max(1, round(share * heads.unit)), min(neurons, ffn.units)
    )


def ranks_cost(evidence: Evidence, ranks: Sequence[Ranks]) -> Cost:
    """r dimensions a head cost D (heads + kv heads) + T heads: two projections, and scores or context."""
    total = Cost(0, 0)
    for i, rank in enumerate(ranks):
        heads, ffn = evidence.architecture.blocks[i].sites
        query, key, value = heads.writers
        D, H, K = heads.outer, heads.units, heads.units // heads.group
        macs = (rank.qk + rank.vo) * (D * (H + K) + evidence.given.seq_len * H)
        params = rank.qk * ((D + query.bias) * H + (D + key.bias) * K) + rank.vo * (D * H + (D + value.bias) * K)
        neuron = sum(D + writer.bias for writer in ffn.writers) + D
        total += Cost(macs + rank.neurons * D * (len(ffn.writers) + 1), params + rank.neurons * neuron)
    return total


def _fill(evidence: Evidence, ranks: list[Ranks], most: int) -> list[Ranks]:
    """Neurons, a few at a time and in turn, until the budget is spent."""
    multiple = evidence.given.recipe.multiple_of
    left = most - ranks_cost(evidence, ranks).macs
    open_blocks = list(range(len(ranks)))
    while open_blocks:
        for i in list(open_blocks):
            ffn = evidence.architecture.blocks[i].neurons[0]
            step = min(multiple, ffn.units - ranks[i].neurons)
            macs = step * ffn.outer * (len(ffn.writers) + 1)
            if not step or macs > left:
                open_blocks.remove(i)
                continue
            ranks[i], left = replace(ranks[i], neurons=ranks[i].neurons + step), left - macs
    return ranks


def plane_of(evidence: Evidence) -> int:
    """Dimensions of a head that must stay together: two with rotary positions, which turn planes."""
    return 2 if evidence.architecture.blocks[0].heads[0].attention.rotary else 1
