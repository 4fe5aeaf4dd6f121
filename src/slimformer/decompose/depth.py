"""Fewer blocks: a run of them is dropped, or replaced by a linear map that the writer before it absorbs.

Before the run the feed-forward part of block i writes m, added to the stream y; after the run the stream is l. With the
run gone the best the writer can do is T m + c in place of m:

    least squares   min E ‖l − y − T m − c‖²:      T = C_rm (C_mm + λI)⁻¹,   r = l − y,   c = r̄ − T m̄,
    cosine          max E cos(l, y + T m + c):     the same with weights, again and again (IRLS).

For the cosine put s = ‖ĥ‖, ĥ = y + T m + c, u = l / ‖l‖ and κ = u·ĥ / s. Its gradient in T vanishes where

    Σ (u / s − κ ĥ / s²) mᵀ = 0,   that is, T solves the regression of (s / κ) u − y on m with weights κ / s²,

which holds s and κ of the last round. Directions matter more than lengths where norms read the stream. W ← T W and
b ← T b + c cost nothing, so a run costs nothing.

Which runs. With e(i, n) the held-out error of replacing the n blocks after block i, the best disjoint runs that drop N
blocks in all are found exactly, by dynamic programming over the blocks.

Reference: Men et al., ShortGPT (2024) for dropping; Shopkhoev et al., ReplaceMe (2025) for the map and both objectives
(there the cosine is climbed by gradients). Cost O(tokens D² + D³) for a map, each round of the cosine as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped

RIDGES = (1e-4, 1e-2, 1.0)  # λ over the mean diagonal, chosen on held-out rows
SWEEPS = 12
LEAST = 0.05  # cosines below count as that: weights must stay positive
Run = tuple[int, int]  # the block that stays, and how many after it go


@dataclass(frozen=True)
class Rows:
    """Tokens at one run: the stream y before the feed-forward part, what that writes, m, and the stream l after."""

    y: Float[Tensor, "n D"]
    m: Float[Tensor, "n D"]
    l: Float[Tensor, "n D"]


@dataclass(frozen=True)
class Map:
    """T m + c in place of m."""

    T: Float[Tensor, "D D"]
    c: Float[Tensor, " D"]

    def after(self, rows: Rows) -> Float[Tensor, "n D"]:
        """The stream that stands for l."""
        return rows.y + rows.m @ self.T.mT + self.c


def identity(D: int) -> Map:
    """Nothing but dropping the run."""
    return Map(torch.eye(D, dtype=torch.float64), torch.zeros(D, dtype=torch.float64))


def relative_error(rows: Rows, fitted: Map) -> float:
    """E ‖l − ĥ‖² / ‖l‖²: errors count relative to the stream they are in."""
    missed = (rows.l - fitted.after(rows)).square().sum(1)
    return float((missed / rows.l.square().sum(1).clamp_min(1e-30)).mean())


def mean_cosine(rows: Rows, fitted: Map) -> float:
    """E cos(l, ĥ)."""
    return float(torch.cosine_similarity(rows.l, fitted.after(rows), dim=1).mean())


def least_squares(fit: Rows, held: Rows, *, bias: bool) -> Map:
    """The map of least relative error on the held rows over a few λ, fitted with the weights that error has.

    None at all is one of the candidates: on few rows a map may do harm.
    """
    weight = 1 / fit.l.square().sum(1).clamp_min(1e-30)
    candidates = [_weighted(fit.m, fit.l - fit.y, weight, bias=bias, ridge=ridge) for ridge in RIDGES]
    return min([*candidates, identity(fit.m.shape[1])], key=lambda each: relative_error(held, each))


def cosine(fit: Rows, held: Rows, start: Map, *, bias: bool) -> Map:
    """The map of largest mean cosine on the held rows that IRLS finds from `start`; `start` where nothing is better."""
    u = fit.l / fit.l.norm(dim=1, keepdim=True).clamp_min(1e-30)
    best, most = start, mean_cosine(held, start)
    for ridge in RIDGES:
        now = start
        for _ in range(SWEEPS):
            h = now.after(fit)
            s = h.norm(dim=1).clamp_min(1e-30)
            κ = ((u * h).sum(1) / s).clamp_min(LEAST)
            now = _weighted(fit.m, (s / κ)[:, None] * u - fit.y, κ / s.square(), bias=bias, ridge=ridge)
            if (reached := mean_cosine(held, now)) > most:
                best, most = now, reached
    return best


def _weighted(
    m: Float[Tensor, "n D"], r: Float[Tensor, "n D"], weight: Float[Tensor, " n"], *, bias: bool, ridge: float
) -> Map:
    """Weighted ridge regression of r on m, shrunk towards the identity: what is not known stays as it was."""
    weight = weight / weight.sum()
    mean_m, mean_r = (weight @ x if bias else torch.zeros_like(x[0]) for x in (m, r))
    m, r = m - mean_m, r - mean_r
    C = damped((m * weight[:, None]).mT @ m, ridge)
    eye = torch.eye(len(C), dtype=C.dtype)
    T = eye + torch.cholesky_solve((m * weight[:, None]).mT @ (r - m), torch.linalg.cholesky(C)).mT
    return Map(T, mean_r - T @ mean_m)


def best_runs(errors: Mapping[Run, float], blocks: int, gone: int) -> list[Run]:
    """The disjoint runs of least total error that drop `gone` of so many blocks; block 0 stays. Cost O(blocks² gone²).

    `errors` are those of (i, n), for n ≥ 1; runs that are not named are not to be had.
    """
    # at[b][g]: least error, and the runs, when the first b blocks are settled and g of them are gone
    at: list[dict[int, tuple[float, list[Run]]]] = [{0: (0.0, [])}, *({} for _ in range(blocks))]
    for i in range(blocks):
        for g, (error, runs) in at[i].items():
            for n in range(min(gone - g, blocks - i - 1) + 1):
                if n and (i, n) not in errors:
                    continue
                total = error + (errors[i, n] if n else 0.0)
                known = at[i + 1 + n].get(g + n)
                if known is None or total < known[0]:
                    at[i + 1 + n][g + n] = (total, [*runs, *([(i, n)] if n else [])])
    return at[blocks][gone][1]
