"""Which experts of a layer are worth keeping, and what may stand for those that go.

A layer writes y(x) = Σ_e c_e(x), c_e = w_e(x) f_e(x): what expert e makes of x, times the weight its router gives it, 0
where x is not sent to it. Two orders, best first:

    reap             mean of ‖c_e(x)‖ over the x that are sent to e
    least-squares    backward elimination: each time the expert goes whose loss costs least in E ‖y − Σ_f α_f c_f‖², α
                     the best weights of those that are left

The second needs no more than the Gram matrix G_ef = Σ_x ⟨c_e, c_f⟩ and sees that experts make up for each other. Both
take tokens to be sent where they were; those of an expert that goes are sent to others.

What goes may be dropped, or merged: the weights of an expert that stays become the mean of its own and of those that
are nearest to it, each counted by its tokens, their neurons matched first.

Cost n E² D for the Gram matrix, E³ for the elimination; O(k³) to match k neurons of two experts.
Reference: Lasby et al., REAP the Experts (arXiv 2510.13999); Li et al., Merge, then Compress (arXiv 2310.01334).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from slimformer.linalg.elimination import eliminate
from slimformer.linalg.precision import to_double

RIDGE = 1e-6


@dataclass(frozen=True)
class Contributions:
    """Sums over tokens of what experts add; they add up."""

    tokens: Int[Tensor, " E"]  # sent to each
    norms: Float[Tensor, " E"]  # Σ ‖c_e‖
    gram: Float[Tensor, "E E"]  # Σ ⟨c_e, c_f⟩

    @classmethod
    def of(cls, C: Float[Tensor, "E n D"]) -> Contributions:
        """Those of some tokens."""
        norms, flat = to_double(C.norm(dim=-1)).cpu(), C.flatten(1)
        return cls((norms > 0).sum(1), norms.sum(1), (flat @ flat.mT).cpu().double())

    def __add__(self, other: Contributions) -> Contributions:
        return Contributions(self.tokens + other.tokens, self.norms + other.norms, self.gram + other.gram)


def reap(seen: Contributions) -> list[int]:
    """Experts by the mean size of what they add to a token that is sent to them."""
    return _best_first(seen.norms / seen.tokens.clamp_min(1))


def least_squares(seen: Contributions) -> list[int]:
    """Experts by what their loss costs the sum, the others weighted anew."""
    if not bool(seen.gram.any()):
        return list(range(len(seen.gram)))
    order, _ = eliminate(seen.gram, torch.ones(1, len(seen.gram)), ridge=RIDGE)
    return [int(e) for e in order]


def _best_first(scores: Float[Tensor, " E"]) -> list[int]:
    return [int(e) for e in scores.argsort(descending=True, stable=True)]


ORDERS: dict[str, Callable[[Contributions], list[int]]] = {"reap": reap, "least-squares": least_squares}


def nearest(router: Float[Tensor, "E D"], kept: Sequence[int]) -> dict[int, int]:
    """For every expert that goes the one that stays whose row of the router points most in the same direction."""
    rows = torch.nn.functional.normalize(to_double(router).cpu(), dim=1)
    alike = rows @ rows[list(kept)].mT
    return {e: kept[int(alike[e].argmax())] for e in range(len(rows)) if e not in kept}


def merged(experts: Sequence[Float[Tensor, "k p"]], counts: Sequence[int]) -> Float[Tensor, "k p"]:
    """The mean of experts, a row for each neuron (gate, up and what is read of it), in the order of the first.

    Neurons of the others are matched with its own by the greatest sum of inner products.
    """
    first = to_double(experts[0])
    total, weights = counts[0] * first, list(counts)
    if not any(weights):
        return first
    for rows, count in zip(map(to_double, experts[1:]), weights[1:], strict=True):
        _, match = linear_sum_assignment((first @ rows.mT).numpy(), maximize=True)
        total = total + count * rows[torch.as_tensor(match)]
    return total / sum(weights)
