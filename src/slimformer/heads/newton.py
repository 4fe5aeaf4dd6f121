"""Logistic regression by Newton steps from a closed-form start: each step is one weighted ridge regression.

    J(W, b) = 1/n Σ w (−log softmax(W z + b)_y) + μ/2 ‖W‖²        z = (x − mean) / scale, b free

Softmax does not see what all classes share, so W and b are kept in contrasts, W = E Θ with E an orthonormal basis of
1⊥. With z̃ = (z, 1), r = Eᵀ(p − y) and C = Eᵀ(diag p − p pᵀ)E of a row, one pass sums

    gradient   1/n Σ w r z̃ᵀ               curvature   1/n Σ w C ⊗ z̃ z̃ᵀ

and the step solves (curvature + μ) Δ = −(gradient + μ Θ): iterated reweighted least squares. Where classes × features
are too many for the curvature, Böhning's bound C ⪯ ½ I stands in for it; that takes more steps, and none can fail. A
step that would raise J is halved, at last the bound is taken, so J never rises.

A row left out moves its scores by L (I − u C L)⁻¹ u r with L = z̃ᵀ (curvature + μ)⁻¹ z̃ / n and u its weight: exact for
the weighted regression of the last step, and for J up to third order.

References: Böhning (1992); Hastie, Tibshirani, Friedman (2009), 4.4.1; Rad, Maleki (2020) for leaving out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.heads.class_moments import TargetMoments
from slimformer.linalg.moments import Moments

Parts = Callable[[], Iterable[tuple[Tensor, Tensor, Tensor]]]  # rows, class numbers and weights; the same every time
EXACT = 2048  # contrasts × features up to which the curvature is summed; two classes always are
ROOM = 2**22  # numbers that rows in hand may take for their curvatures
CONVERGED = 1e-10  # a step that promises less than this share of J is the last
HALVINGS = 6  # of a step by the curvature; where that says nothing, as with all p at 0 or 1, the bound takes over
TINY = 1e-12  # nothing is inverted with less


@dataclass(frozen=True)
class Scaling:
    """z = (x − mean) · inverse; a constant coordinate is 0. `gram` is the covariance of z."""

    mean: Float[Tensor, " d"]
    inverse: Float[Tensor, " d"]
    gram: Float[Tensor, "d d"]

    @property
    def level(self) -> float:
        """The mean variance."""
        return float(self.gram.diagonal().mean()) or 1.0

    def __call__(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n e"]:
        """z̃: the rows scaled, and a one."""
        Z = (X.double() - self.mean) * self.inverse
        return torch.cat([Z, torch.ones_like(Z[:, :1])], 1)


@dataclass(frozen=True)
class Sums:
    """Loss without penalty, gradient and curvature at some Θ, all over the number of rows; no curvature: the bound."""

    rows: float
    loss: float
    gradient: Float[Tensor, "q e"]
    curvature: Float[Tensor, "qe qe"] | None


@dataclass(frozen=True)
class Polished:
    """Where the steps ended: Θ, the sums there, J after every step (the start first)."""

    theta: Float[Tensor, "q e"]
    sums: Sums
    losses: tuple[float, ...]


def scaling(moments: TargetMoments, *, standardize: bool = True) -> Scaling:
    """The coordinates of the penalty, as ridge regression has them."""
    n = moments.rows
    mean = moments.x / n
    C = moments.gram / n - torch.outer(mean, mean)
    var = C.diagonal().clamp(min=0)
    real = var > 1e-12 * moments.gram.diagonal() / n
    inverse = torch.where(real, 1 / var.clamp(min=1e-300).sqrt() if standardize else torch.ones_like(var), 0.0)
    return Scaling(mean, inverse, C * inverse * inverse[:, None])


def contrasts(K: int) -> Float[Tensor, "K q"]:
    """E with EᵀE = I and 1ᵀE = 0 (Helmert's), q = K − 1."""
    k = torch.arange(1, K, dtype=torch.float64)
    below = torch.ones(K, K - 1, dtype=torch.float64).triu()
    below[torch.arange(1, K), torch.arange(K - 1)] = -k
    return below / (k * (k + 1)).sqrt()


def into_contrasts(W: Float[Tensor, "K d"], b: Float[Tensor, " K"], z: Scaling) -> Float[Tensor, "q e"]:
    """Θ with the same softmax as W x + b. What weighs on constant coordinates goes to the bias."""
    E = contrasts(len(W))
    scale = torch.where(z.inverse > 0, 1 / z.inverse.clamp(min=1e-300), 0.0)
    return E.mT @ torch.cat([W * scale, (b + W @ z.mean)[:, None]], 1)


def out_of_contrasts(theta: Float[Tensor, "q e"], z: Scaling) -> tuple[Float[Tensor, "K d"], Float[Tensor, " K"]]:
    """W and b in the original coordinates; they sum to zero over the classes."""
    full = contrasts(len(theta) + 1) @ theta
    W = full[:, :-1] * z.inverse
    return W, full[:, -1] - W @ z.mean


def sums(parts: Parts, theta: Float[Tensor, "q e"], z: Scaling) -> Sums:
    """One pass. Cost n d q, and n d² q² / 2 for the curvature; memory (q d)² whatever n."""
    q, e = theta.shape
    E, exact = contrasts(q + 1), q == 1 or q * e <= EXACT
    rows, loss = 0.0, 0.0
    gradient = torch.zeros(q, e, dtype=torch.float64)
    blocks = torch.zeros(q, e, q, e, dtype=torch.float64) if exact else None
    for X, y, w in parts():
        for x, t, u in _few(q * q if exact else q, X, y, w):
            Z = z(x)
            log_p = (Z @ theta.mT @ E.mT).log_softmax(1)
            rows, loss = rows + float(u.sum()), loss - float(u @ log_p.gather(1, t[:, None])[:, 0])
            p = log_p.exp()
            gradient += ((p @ E - E[t]) * u[:, None]).mT @ Z
            if blocks is not None:
                _add_curvature(blocks, Z, curvatures(p, E) * u[:, None, None])
    curvature = None if blocks is None else blocks.reshape(q * e, q * e) / rows
    return Sums(rows, loss / rows, gradient / rows, curvature)


def curvatures(p: Float[Tensor, "n K"], E: Float[Tensor, "K q"]) -> Float[Tensor, "n q q"]:
    """C = Eᵀ(diag p − p pᵀ)E of every row."""
    m = p @ E
    return torch.einsum("nk,ka,kb->nab", p, E, E) - m[:, :, None] * m[:, None, :]


def _few(each: int, *rows: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The rows, so many at once that `each` numbers for one of them find room."""
    return zip(*(part.split(max(1, min(4096, ROOM // each))) for part in rows), strict=True)


def _add_curvature(blocks: Tensor, Z: Float[Tensor, "n e"], C: Float[Tensor, "n q q"]) -> None:
    for a in range(len(blocks)):
        blocks[a, :, a] += Moments.of(Z * C[:, a, a].clamp(min=0).sqrt()[:, None]).gram
        for b in range(a):
            G = Z.mT @ (Z * C[:, a, b, None])
            blocks[a, :, b] += G
            blocks[b, :, a] += G


def penalised(totals: Sums, theta: Float[Tensor, "q e"], mu: float) -> float:
    """J."""
    return totals.loss + mu / 2 * float((theta[:, :-1] ** 2).sum())


def step(totals: Sums, theta: Float[Tensor, "q e"], z: Scaling, mu: float) -> tuple[Float[Tensor, "q e"], float]:
    """Δ, and the fall of J that the quadratic promises. Cost (q d)³ / 3, with the bound d³ / 3."""
    q, e = theta.shape
    penalty = _penalty(e, mu)
    gradient = totals.gradient + penalty * theta
    if totals.curvature is not None:
        A = _damped(totals.curvature, penalty.repeat(q))
        delta = -torch.linalg.solve(A, gradient.flatten()).view(q, e)
    else:
        delta = -torch.linalg.solve(_damped(_bound(z, 0.5), penalty), gradient.mT).mT
    return delta, -float((gradient * delta).sum()) / 2


def _penalty(e: int, mu: float) -> Float[Tensor, " e"]:
    """μ for every coordinate, nothing for the bias."""
    penalty = torch.full((e,), mu, dtype=torch.float64)
    penalty[-1] = 0
    return penalty


def _damped(A: Tensor, penalty: Tensor) -> Tensor:
    return A + torch.diag(penalty + TINY * A.diagonal().mean() + 1e-300)


def _bound(z: Scaling, curvature: float) -> Float[Tensor, "e e"]:
    """curvature · 1/n Σ z̃ z̃ᵀ; z has the mean zero, so the bias stands apart."""
    A = torch.zeros(len(z.mean) + 1, len(z.mean) + 1, dtype=torch.float64)
    A[:-1, :-1], A[-1, -1] = z.gram, 1.0
    return curvature * A


def polish(parts: Parts, theta: Float[Tensor, "q e"], z: Scaling, *, mu: float, steps: int) -> Polished:
    """At most `steps` steps from Θ, none of which raises J. Cost: one pass each, one before, one for a halving."""
    totals = sums(parts, theta, z)
    end = Polished(theta, totals, (penalised(totals, theta, mu),))
    for _ in range(steps):
        lower = _lower(parts, end, z, mu)
        if lower is None:
            break
        end = lower
    return end


def _lower(parts: Parts, end: Polished, z: Scaling, mu: float) -> Polished | None:
    """One step further, or none where J cannot fall any more."""
    delta, promised = step(end.sums, end.theta, z, mu)
    if promised <= CONVERGED * end.losses[-1]:
        return None
    safe = step(replace(end.sums, curvature=None), end.theta, z, mu)[0]
    for move in (*(delta / 2**i for i in range(HALVINGS)), safe):
        there = end.theta + move
        totals = sums(parts, there, z)
        J = penalised(totals, there, mu)
        if end.losses[-1] >= J:
            return Polished(there, totals, (*end.losses, J))
    return None


def mean_curvature(p: Float[Tensor, "n K"], w: Float[Tensor, " n"]) -> float:
    """Mean of tr C / q = (1 − Σ p²) / (K − 1): what a squared error counts, log loss counts about this often."""
    return float(w @ (1 - (p * p).sum(1)) / w.sum()) / (p.shape[1] - 1)


def left_out(
    end: Polished, z: Scaling, X: Float[Tensor, "n d"], y: Int[Tensor, " n"], u: Float[Tensor, " n"], mu: float
) -> Float[Tensor, "n K"]:
    """Scores of every row by the weighted regression without it. Cost (q d)³ + n (q d)²; with the bound d³ + n d².

    With the bound the curvature is taken as its mean over rows, κ I ⊗ 1/n Σ z̃ z̃ᵀ.
    """
    q, e = end.theta.shape
    E = contrasts(q + 1)
    penalty = _penalty(e, mu)
    kappa = max(mean_curvature((z(X) @ end.theta.mT @ E.mT).softmax(1), u), TINY)
    A = end.sums.curvature
    A = _damped(_bound(z, kappa), penalty) if A is None else _damped(A, penalty.repeat(q))
    inverse = torch.linalg.inv(A) / end.sums.rows
    out = []
    for x, t, w in _few(q * q * e if len(A) > e else e, X, y, u):
        Z = z(x)
        scores = Z @ end.theta.mT @ E.mT
        p = scores.softmax(1)
        r = (p @ E - E[t]) * w[:, None]
        if end.sums.curvature is None:
            h = ((Z @ inverse) * Z).sum(1)
            moved = r * (h / (1 - w * kappa * h).clamp(min=TINY))[:, None]
        else:
            L = _leverages(inverse, Z, q)
            room = (1 + 1e-9) * torch.eye(q, dtype=torch.float64) - w[:, None, None] * curvatures(p, E) @ L
            moved = (L @ torch.linalg.solve(room, r[..., None]))[..., 0]
        out.append(scores + moved @ E.mT)
    return torch.cat(out)


def _leverages(inverse: Float[Tensor, "qe qe"], Z: Float[Tensor, "n e"], q: int) -> Float[Tensor, "n q q"]:
    e = Z.shape[1]
    half = (Z @ inverse.view(q, e, q * e).movedim(1, 0).reshape(e, q * q * e)).view(-1, q, q, e)
    return (half @ Z[:, None, :, None])[..., 0]
