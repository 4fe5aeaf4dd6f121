"""Attention that means nothing, to hold the real one against.

A spectrum says something only when compared with that of a matrix nobody would call structured. Three, all with the
mask and the length of the real one:

    iid logits       softmax(s Z), Z standard normal: no structure, the same spread s of logits
    rank-d logits    softmax(s Q Kᵀ / √d), Q and K standard normal, n × d: what a head of width d is bound to have
    shuffled rows    every row of the real P in random order: the same entropies, no common columns

s² is the mean over rows of the variance of log P, which is that of the logits. Σσ at n/4 of the first is already about
0.5 where n/4 of the values are 0.25 of them: softmax makes all entries positive, and positive matrices have a large σ₁.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

FLOOR = 1e-30  # what softmax in single precision rounds to zero counts as this


def allowed(n: int, *, causal: bool) -> Bool[Tensor, "n n"]:
    """Which keys a query sees."""
    every = torch.ones(n, n, dtype=torch.bool)
    return every.tril() if causal else every


def logit_spread(P: Float[Tensor, "*b n n"], mask: Bool[Tensor, "n n"]) -> Float[Tensor, "*b"]:
    """s: root mean over rows of the variance of log P over the keys a query sees, of rows that see several."""
    logits = P.double().clamp_min(FLOOR).log() * mask
    count = mask.sum(1).double()
    mean = logits.sum(-1) / count
    square = ((logits - mean[..., None]).square() * mask).sum(-1) / count
    several = count > 1
    return square[..., several].mean(-1).sqrt()


def iid_attention(s: Float[Tensor, " h"], mask: Bool[Tensor, "n n"], *, seed: int) -> Float[Tensor, "h n n"]:
    """softmax(s Z), the same Z for every s."""
    Z = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return _softmax(s[:, None, None] * Z, mask)


def low_rank_attention(
    s: Float[Tensor, " h"], mask: Bool[Tensor, "n n"], d: int, *, seed: int
) -> Float[Tensor, "h n n"]:
    """softmax(s Q Kᵀ / √d), the same Q and K for every s; its entries have the spread s on average."""
    Q, K = torch.randn(2, len(mask), d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).unbind()
    return _softmax(s[:, None, None] * (Q @ K.mT) / d**0.5, mask)


def shuffled_attention(P: Float[Tensor, "h n n"], mask: Bool[Tensor, "n n"], *, seed: int) -> Float[Tensor, "h n n"]:
    """Every row of P with the keys it sees in an order of its own, another one for every head."""
    keys = torch.rand(P.shape, generator=torch.Generator().manual_seed(seed))
    return P.gather(-1, keys.masked_fill(~mask, 2.0).argsort(-1)) * mask


def _softmax(logits: Float[Tensor, "h n n"], mask: Bool[Tensor, "n n"]) -> Float[Tensor, "h n n"]:
    return logits.masked_fill(~mask, -torch.inf).softmax(-1)
