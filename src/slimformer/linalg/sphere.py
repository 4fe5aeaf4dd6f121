"""Polynomials on the sphere S^{q−1} ⊂ ℝ^q: Legendre polynomials of the dimension, and explicit spherical harmonics.

Harmonics of degree k are the homogeneous polynomials of degree k with Laplacian zero; on the sphere those of different
degree are orthogonal. Their number is

    N(q, k) = C(k+q−1, k) − C(k+q−3, k−2),

with q = 384: 384, 73 919, about 9.5 million for k = 1, 2, 3. So in the dimensions of a network they can only be had as
sums over all of one degree, which a single polynomial of the angle gives (addition theorem):

    Σ_j Y_kj(x) Y_kj(y) = N(q, k) P_k(xᵀy),    (k+q−2) P_{k+1}(t) = (2k+q−2) t P_k(t) − k P_{k−1}(t),  P_0 = 1, P_1 = t,

P_k the Gegenbauer polynomial with P_k(1) = 1. Means are over the uniform distribution: E Y_kj Y_k'j' = 1 if equal, else
0; E P_k(xᵀy)² = 1 / N(q, k).

Explicit ones, for few dimensions, one coordinate at a time: with x = (t, x'), r² = |x|² and a harmonic Y_j of degree j
in the remaining q − 1 coordinates, r^n C_n^α(t/r) Y_j(x') with n = k − j and α = j + (q−2)/2 is a harmonic of degree k.
The homogeneous form of the three-term recurrence,

    n C_n = 2 (n+α−1) t C_{n−1} − (n+2α−2) r² C_{n−2},

divides by nothing and knows no angles, so poles are points like all others. In the plane they are Re, Im (x + iy)^k.

Reference: Müller, *Spherical harmonics* (1966); Dai & Xu (2013), chapter 1.
"""

from __future__ import annotations

from math import comb, exp, lgamma, log, pi

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import TooManyHarmonics

MOST_DIMENSIONS = 8


def unit_rows(X: Float[Tensor, "*n q"]) -> Float[Tensor, "*n q"]:
    """x / |x|; nothing stays nothing."""
    return X / X.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny ** 0.5)


def harmonic_count(q: int, k: int) -> int:
    """N(q, k): how many independent harmonics of degree k there are on the sphere in ℝ^q."""
    if q == 1:
        return 1 if k < 2 else 0
    return comb(k + q - 1, k) - (comb(k + q - 3, k - 2) if k >= 2 else 0)


def legendre(t: Float[Tensor, "*n"], q: int, k: int) -> Float[Tensor, "*n"]:
    """P_k(t), the zonal polynomial of degree k in dimension q ≥ 2, with P_k(1) = 1. Cost k multiplications each."""
    before, P = torch.ones_like(t), t
    if k == 0:
        return before
    for i in range(1, k):
        before, P = P, ((2 * i + q - 2) * t * P - i * before) / (i + q - 2)
    return P


def harmonics(X: Float[Tensor, "n q"], degree: int) -> Float[Tensor, "n N"]:
    """All harmonics of degree 0 … `degree` at the rows of X, orthonormal over the unit sphere, degree after degree.

    Rows need not be of length one: a harmonic of degree k grows as |x|^k. Cost O(n N).
    """
    q = X.shape[1]
    if q > MOST_DIMENSIONS:
        raise TooManyHarmonics(
            f"in {q:,} dimensions there are {harmonic_count(q, degree):,} spherical harmonics of degree {degree}; "
            f"explicit ones are for {MOST_DIMENSIONS} dimensions at most (zonal features have no such limit)"
        )
    return torch.cat(_by_degree(X, degree), 1)


def _by_degree(X: Float[Tensor, "n q"], degree: int) -> list[Float[Tensor, "n N"]]:
    """One array for each degree."""
    q = X.shape[1]
    if q == 1:
        return [X.new_ones(len(X), 1), X, *(X.new_ones(len(X), 0) for _ in range(degree - 1))][: degree + 1]
    if q == 2:
        return _circular(X, degree)
    inner = _by_degree(X[:, 1:], degree)
    found: list[list[Float[Tensor, "n N"]]] = [[] for _ in range(degree + 1)]
    t, square = X[:, :1], X.square().sum(1, keepdim=True)
    for j, Y in enumerate(inner):
        α = j + (q - 2) / 2
        before, C = torch.zeros_like(t), torch.ones_like(t)
        for n in range(degree - j + 1):
            if n > 0:
                before, C = C, (2 * (n + α - 1) * t * C - (n + 2 * α - 2) * square * before) / n
            found[j + n].append(C * Y * _norm(q, n, α))
    return [torch.cat(parts, 1) for parts in found]


def _circular(X: Float[Tensor, "n 2"], degree: int) -> list[Float[Tensor, "n N"]]:
    """1, then √2 Re and √2 Im of (x + iy)^k."""
    real, imaginary = torch.ones_like(X[:, :1]), torch.zeros_like(X[:, :1])
    found = [real]
    x, y = X[:, :1], X[:, 1:]
    for _ in range(degree):
        real, imaginary = real * x - imaginary * y, real * y + imaginary * x
        found.append(2**0.5 * torch.cat([real, imaginary], 1))
    return found


def _norm(q: int, n: int, α: float) -> float:
    """1 / √E (C_n^α Y_j)² over the sphere in ℝ^q, Y_j normalised over that of one dimension less.

    E = ∫ (C_n^α)² (1−t²)^(α−½) dt / ∫ (1−t²)^((q−3)/2) dt, the integrals in closed form.
    """
    whole = 0.5 * log(pi) + lgamma((q - 1) / 2) - lgamma(q / 2)
    part = log(pi) + (1 - 2 * α) * log(2) + lgamma(n + 2 * α) - lgamma(n + 1) - log(n + α) - 2 * lgamma(α)
    return exp(0.5 * (whole - part))
