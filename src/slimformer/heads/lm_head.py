"""A language-model head for another domain, in closed form from the states h and the tokens t that followed them.

    least squares    W = (HᵀH + λI)⁻¹ HᵀY with Y the indicators of the next token; scores are no log-probabilities, so
                     one temperature is fitted. The baseline: rare tokens are masked by frequent ones.
    discriminant     w_t = S⁻¹ m_t,  b_t = −½ m_tᵀ S⁻¹ m_t + log π_t,  S the covariance within tokens, with means and
                     priors drawn to what the pretrained head W⁰ says of them, m⁰_t = S w⁰_t and
                     log π⁰_t = ½ w⁰_tᵀ S w⁰_t:   m_t = (n_t m̄_t + τ m⁰_t) / (n_t + τ),  π_t ∝ n_t + τ' π⁰_t.
                     A token never seen keeps its weights; without data the head is the pretrained one.
    Böhning          W ← W + (½ HᵀH + λI)⁻¹ ((Y − P)ᵀH − λ (W − W⁰)), P the softmax now: ½ HᵀH bounds the curvature of
                     the log loss, so the loss with its penalty falls in every sweep, without a learning rate.

References: Böhning (1992); Bishop (2006), 4.2 for the discriminant with a softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments

ROWS = 1024  # positions whose logits are there at once


@dataclass(frozen=True)
class TokenMoments:
    """Σ h hᵀ of all states, and for every token of the vocabulary n_t and Σ_t h of the states it followed."""

    gram: Float[Tensor, "d d"]
    counts: Float[Tensor, " V"]
    sums: Float[Tensor, "V d"]

    @classmethod
    def of(cls, H: Float[Tensor, "n d"], t: Int[Tensor, " n"], vocabulary: int) -> TokenMoments:
        counts = torch.bincount(t, minlength=vocabulary).double()
        sums = torch.zeros(vocabulary, H.shape[1], dtype=torch.float64).index_add_(0, t, H.double())
        return cls(Moments.of(H).gram, counts, sums)

    def __add__(self, other: TokenMoments) -> TokenMoments:
        return TokenMoments(self.gram + other.gram, self.counts + other.counts, self.sums + other.sums)

    @property
    def within(self) -> Float[Tensor, "d d"]:
        """Covariance about the mean of each token."""
        seen = self.counts.clamp(min=1)[:, None]
        freedom = max(float(self.counts.sum()) - int((self.counts > 0).sum()), 1.0)
        return (self.gram - self.sums.mT @ (self.sums / seen)) / freedom


def least_squares_head(moments: TokenMoments, relative: float) -> Float[Tensor, "V d"]:
    """Ridge regression of the indicators of the next token. Cost V d²."""
    return torch.linalg.solve(damped(moments.gram, relative), moments.sums.mT).mT


def discriminant_head(
    moments: TokenMoments, W: Float[Tensor, "V d"], *, tau: float, prior: float, shrinkage: float = 0.1
) -> tuple[Float[Tensor, "V d"], Float[Tensor, " V"]]:
    """Weights and biases drawn to the pretrained head W by `tau` rows for means and `prior` rows in all for priors.

    Cost V d² + d³.
    """
    S = moments.within
    S = (1 - shrinkage) * S + shrinkage * S.diagonal().mean() * torch.eye(len(S), dtype=S.dtype)
    before = W.double() @ S  # what the pretrained head takes for the means
    n = moments.counts[:, None]
    means = (moments.sums + tau * before) / (n + tau)
    log_prior = (before * W.double()).sum(1) / 2
    expected = log_prior.log_softmax(0) + math.log(prior)  # in logarithms: most tokens are rarer than 10⁻³⁰⁰ here
    log_pi = torch.logaddexp(moments.counts.log(), expected)
    new = torch.linalg.solve(S, means.mT).mT
    return new, log_pi.log_softmax(0) - (new * means).sum(1) / 2


def bohning_step(
    W: Float[Tensor, "V d"], W0: Float[Tensor, "V d"], gram: Float[Tensor, "d d"],
    parts: Callable[[], Iterable[tuple[Tensor, Tensor]]], penalty: float,
) -> Float[Tensor, "V d"]:  # fmt: skip
    """One sweep over (states, next tokens). `penalty` is λ over the mean diagonal of HᵀH. Cost 2 n V d + V d².

    W may be in single precision: then logits are, and the sums over positions are not.
    """
    gradient = torch.zeros(W.shape, dtype=torch.float64)
    for H, t in parts():
        for h, y in zip(H.split(ROWS), t.split(ROWS), strict=True):
            P = (h.to(W.dtype) @ W.mT).softmax(1)
            P[torch.arange(len(y)), y] -= 1
            gradient -= (P.mT @ h.to(W.dtype)).double()
    ridge = penalty * float(gram.diagonal().mean())
    A = gram / 2 + ridge * torch.eye(len(gram), dtype=gram.dtype)
    step = torch.linalg.solve(A, (gradient - ridge * (W - W0).double()).mT).mT
    return (W.double() + step).to(W.dtype)


def constant(gram: Float[Tensor, "d d"], total: Float[Tensor, " d"]) -> Float[Tensor, " d"]:
    """v with vᵀh ≈ 1: least squares, to write a bias into a layer that has none."""
    return torch.linalg.solve(damped(gram, 1e-9), total)


def mean_loss(W: Float[Tensor, "V d"], H: Float[Tensor, "n d"], t: Int[Tensor, " n"]) -> float:
    """Mean of −log softmax(W h)_t, in nats."""
    return mean_losses(W, H, t, (1.0,))[0]


def mean_losses(
    W: Float[Tensor, "V d"], H: Float[Tensor, "n d"], t: Int[Tensor, " n"], betas: Sequence[float]
) -> list[float]:
    """The same of softmax(β W h) for several β, from one product."""
    totals = [0.0] * len(betas)
    for h, y in zip(H.split(ROWS), t.split(ROWS), strict=True):
        S = h.to(W.dtype) @ W.mT
        for i, beta in enumerate(betas):
            scores = S if beta == 1 else beta * S
            totals[i] += float(torch.nn.functional.cross_entropy(scores, y, reduction="sum"))
    return [total / len(H) for total in totals]
