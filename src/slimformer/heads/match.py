"""Two models, one space: closed-form maps between the features they give to the same inputs.

Rows x (source) and y (target) are pairs. Each side is centred and put on the unit sphere, then taken to a common space
by a matrix, A on the left and B on the right; likeness is the cosine there.

    ridge         A = C_yx (C_xx + λI)⁻¹,  B = I
    procrustes    A = s U Vᵀ with C_yx = U S Vᵀ,  s = tr S / tr C_xx,  B = I            (Schönemann 1966)
    cca           A = P^½ Uᵀ C̃_xx^−½, B = P^½ Vᵀ C̃_yy^−½ with C̃_xx^−½ C_xy C̃_yy^−½ = U P Vᵀ, C̃ = C + λI: every
                  canonical direction weighs as much as it correlates      (Hotelling 1936; CSA, Li et al. 2024)
    scale-free    A x ≈ λ_i y with λ_i > 0 free: the largest mean cosine, by weighted least squares with weights c / s²
                  and targets (s / c) y, where s = |A x| and c is the cosine; started at ridge
    relative      x ↦ cosines with the fitted sources, y ↦ cosines with the fitted targets, small ones set to zero
                  (Moschella et al. 2023; ASIF, Norelli et al. 2023)

λ is relative to the mean variance; it (for `relative` the share of cosines kept) is chosen on pairs set aside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import RowsUnusable
from slimformer.heads.asked import MAPS

STRENGTHS = (1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 3.0)
SHARES = (1.0, 0.3, 0.1, 0.03)
SWEEPS = 10
LEAST_COSINE = 0.05
SET_ASIDE = 0.2
MOST_ANCHORS = 2000


@dataclass(frozen=True)
class Side:
    """What is done to the rows of one model: centre, project to the sphere, multiply, keep the largest `kept`."""

    centre: Float[Tensor, " d"]
    A: Float[Tensor, "k d"]
    kept: int = 0

    def embed(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
        """Unit vectors in the common space."""
        Z = on_sphere(X.double() - self.centre) @ self.A.mT
        if self.kept:
            least = Z.topk(min(self.kept, Z.shape[1]), 1).values[:, -1:]
            Z = Z.where(least <= Z, 0.0)
        return on_sphere(Z)


@dataclass(frozen=True)
class Match:
    """A fitted map: embed both sides, compare by cosines."""

    method: str
    strength: float
    source: Side
    target: Side

    def scores(self, X: Float[Tensor, "n d"], Y: Float[Tensor, "m e"]) -> Float[Tensor, "n m"]:
        """Cosine of every source with every target."""
        return self.source.embed(X) @ self.target.embed(Y).mT


def on_sphere(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rows of length one; a row of nothing stays so."""
    return X / X.norm(dim=1, keepdim=True).clamp(min=1e-12)


Sides = tuple[Side, Side]
Fit = Callable[[Tensor, Tensor, Tensor, Tensor, float], Sides]


def match(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n e"],
    method: str = "cca",
    *,
    strength: float | None = None,
    seed: int = 0,
) -> Match:
    """Fit a map on pairs. Without `strength` it is chosen by the mean rank on a fifth of them, then all are used.

    Cost: n (d² + e² + d e) + d³ + e³ for each strength tried; `scale-free` takes ten times that.
    """
    if method not in METHODS:
        raise RowsUnusable(f"there is no method {method!r}; choose from {', '.join(METHODS)}")
    if len(X) != len(Y) or len(X) < 2:
        raise RowsUnusable(f"{len(X)} sources and {len(Y)} targets are not two or more pairs")
    if not bool(torch.isfinite(X).all() and torch.isfinite(Y).all()):
        raise RowsUnusable("the features hold NaN or infinite values")
    X, Y = X.double(), Y.double()
    grid = (1.0,) if method == "procrustes" else SHARES if method == "relative" else STRENGTHS
    if strength is None:
        strength = grid[0] if len(grid) == 1 or len(X) < 10 else _chosen(X, Y, method, grid, seed)
    return Match(method, strength, *_fitted(X, Y, method, strength))


def _fitted(X: Tensor, Y: Tensor, method: str, strength: float) -> Sides:
    a, b = X.mean(0), Y.mean(0)
    return METHODS[method](on_sphere(X - a), on_sphere(Y - b), a, b, strength)


def _chosen(X: Tensor, Y: Tensor, method: str, grid: tuple[float, ...], seed: int) -> float:
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    aside, rest = order.tensor_split([max(2, int(SET_ASIDE * len(X)))])

    def badness(strength: float) -> float:
        fitted = Match(method, strength, *_fitted(X[rest], Y[rest], method, strength))
        S = fitted.scores(X[aside], Y[aside])
        return -float((1 / ranks(S)).mean() + (1 / ranks(S.mT)).mean())

    return min(grid, key=badness)


def ranks(S: Float[Tensor, "n n"]) -> Float[Tensor, " n"]:
    """Of every row the rank of its own column: 1 + those that score higher + half of those that score the same."""
    own = S.diagonal()[:, None]
    return 1 + (own < S).sum(1).double() + ((own == S).sum(1).double() - 1) / 2


def without_hubs(S: Float[Tensor, "n m"], k: int = 10) -> Float[Tensor, "n m"]:
    """CSLS: 2 s − mean of the k best of the row − mean of the k best of the column (Conneau et al. 2018)."""
    rows = S.topk(min(k, S.shape[1]), 1).values.mean(1, keepdim=True)
    columns = S.topk(min(k, S.shape[0]), 0).values.mean(0, keepdim=True)
    return 2 * S - rows - columns


def _ridge(X: Tensor, Y: Tensor, a: Tensor, b: Tensor, strength: float) -> Sides:
    return Side(a, _least_squares(X, Y, strength)), Side(b, _eye(Y.shape[1]))


def _least_squares(X: Tensor, Y: Tensor, strength: float, w: Tensor | None = None) -> Tensor:
    V = X if w is None else X * w[:, None]
    G = V.mT @ X
    return torch.linalg.solve(G + strength * float(G.diagonal().mean()) * _eye(len(G)), V.mT @ Y).mT


def _procrustes(X: Tensor, Y: Tensor, a: Tensor, b: Tensor, _: float) -> Sides:
    U, S, Vt = torch.linalg.svd(Y.mT @ X, full_matrices=False)
    return Side(a, (S.sum() / X.square().sum()) * U @ Vt), Side(b, _eye(Y.shape[1]))


def _cca(X: Tensor, Y: Tensor, a: Tensor, b: Tensor, strength: float) -> Sides:
    P, Q = _whitening(X, strength), _whitening(Y, strength)
    U, rho, Vt = torch.linalg.svd(P @ (X.mT @ Y) @ Q, full_matrices=False)
    half = rho.clamp(min=0).sqrt()[:, None]
    return Side(a, half * (U.mT @ P)), Side(b, half * (Vt @ Q))


def _whitening(X: Tensor, strength: float) -> Tensor:
    """(C + λI)^−½."""
    values, Q = torch.linalg.eigh(X.mT @ X)
    values = values.clamp(min=0)
    return (Q / (values + max(strength, 1e-9) * values.mean()).sqrt()) @ Q.mT


def _scale_free(X: Tensor, Y: Tensor, a: Tensor, b: Tensor, strength: float) -> Sides:
    A = _least_squares(X, Y, strength)
    for _ in range(SWEEPS):
        Z = X @ A.mT
        s = Z.norm(dim=1).clamp(min=1e-9)
        c = ((Z * Y).sum(1) / s).clamp(min=LEAST_COSINE)
        w = c / s**2
        A = _least_squares(X, (s / c)[:, None] * Y, strength, w / w.mean())
        A = A / A.norm()  # the scale is free, so it is fixed
    return Side(a, A), Side(b, _eye(Y.shape[1]))


def _relative(X: Tensor, Y: Tensor, a: Tensor, b: Tensor, share: float) -> Sides:
    X, Y = X[:MOST_ANCHORS], Y[:MOST_ANCHORS]
    anchors = 0 if share >= 1 else max(1, int(share * len(X)))
    return Side(a, X, anchors), Side(b, Y, anchors)


def _eye(d: int) -> Tensor:
    return torch.eye(d, dtype=torch.float64)


METHODS: dict[str, Fit] = dict(zip(MAPS, (_ridge, _procrustes, _cca, _scale_free, _relative), strict=True))
