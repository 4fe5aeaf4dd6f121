"""Features of the sphere that a norm defines: how their directions are drawn (`nn.stand_ins` computes them).

A LayerNorm writes x = γ s + β with |s| = √D and Σ s = 0; an RMSNorm x = γ s with |s| = √D. So what follows a norm is a
function on a sphere, once γ and β are undone, and could be expanded there. Features φ(s) of unit s, p of them:

    Fourier       √(2/p) cos(wᵀs/ℓ + a)      w normal, a uniform    kernel exp(−|s−s'|²/2ℓ²)     Rahimi & Recht 2007
    arc-cosine    √(2/p) max(0, wᵀs)^k       w normal               arc-cosine kernels           Cho & Saul 2009
    Gegenbauer    √(N(D, k)/p) P_k(wᵀs)      w uniform, |w| = 1     all harmonics of degree k    Han et al. 2022
    harmonics     |z| Y_j(z/|z|)             z = Qᵀ(s − s̄)          explicit, of degree 2 … k, on the q leading
                                                                    principal directions Q

The coefficients come from least squares on the data, with x itself among the regressors (degree one) and a constant
(degree zero). Orthogonality of harmonics would give them as integrals, but only under the uniform distribution, and
activations are far from it. With sums of pairs (φ, y) nothing depends on how the data came in batches.

A feature costs D multiplications for its direction and m for its column of coefficients: as much as a neuron without a
gate. By Funk & Hecke a neuron σ(wᵀs) *is* a sum of zonal functions Σ_k c_k P_k(wᵀs) about its own direction. So these
are networks with random first layers, where the one to be replaced has a trained one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import TooManyHarmonics
from slimformer.linalg.moments import Moments
from slimformer.linalg.sphere import unit_rows
from slimformer.nn.stand_ins import feature_count, features, harmonic_count, on_sphere

MOST_DIMENSIONS = 8  # for explicit harmonics


@dataclass(frozen=True)
class Features:
    """Features of the unit sphere: a kind, directions, offsets (Fourier), degree, and the γ and β to undo."""

    kind: str
    W: Float[Tensor, "p D"]
    a: Float[Tensor, " p"]
    degree: int
    gain: Float[Tensor, " D"]
    shift: Float[Tensor, " D"]

    @property
    def count(self) -> int:
        """How many numbers they give for a token."""
        return feature_count(self.kind, len(self.W), self.degree)

    def __call__(self, X: Float[Tensor, "n D"]) -> Float[Tensor, "n p1"]:
        """φ of what a norm wrote. Cost n D p."""
        return features(self.kind, self.degree, self.W, self.a, on_sphere(X, self.gain, self.shift))


def fourier_features(
    count: int, gain: Float[Tensor, " D"], shift: Float[Tensor, " D"], *, seed: int = 0, length: float = 1.0
) -> Features:
    """Random Fourier features of the Gaussian kernel of width ℓ."""
    W, a = _normal(count, len(gain), seed).to(gain) / length, _uniform(count, seed + 1).to(gain)
    return Features("fourier", W, a, 1, gain, shift)


def arc_cosine_features(
    count: int, gain: Float[Tensor, " D"], shift: Float[Tensor, " D"], *, seed: int = 0, degree: int = 1
) -> Features:
    """Random features of the arc-cosine kernel: steps (degree 0), ReLU (1), squared ReLU (2) …"""
    W = _normal(count, len(gain), seed).to(gain)
    return Features("arc-cosine", W, torch.zeros_like(W[:, 0]), degree, gain, shift)


def gegenbauer_features(
    count: int, gain: Float[Tensor, " D"], shift: Float[Tensor, " D"], *, seed: int = 0, degree: int = 2
) -> Features:
    """Zonal features P_k about random directions."""
    W = unit_rows(_normal(count, len(gain), seed)).to(gain)
    return Features("gegenbauer", W, torch.zeros_like(W[:, 0]), degree, gain, shift)


def harmonic_features(
    seen: Moments, gain: Float[Tensor, " D"], shift: Float[Tensor, " D"], *, directions: int, degree: int
) -> Features:
    """Explicit harmonics of degree 2 … `degree` on the leading principal directions of s.

    `seen` are the moments of s (`on_sphere`). Degrees zero and one are the constant and the linear part of the map.
    """
    if directions > MOST_DIMENSIONS:
        raise TooManyHarmonics(
            f"explicit harmonics on {directions:,} directions were asked for: {harmonic_count(directions, degree):,} "
            f"of degree {degree} alone, for a map of {len(gain):,} inputs; give {MOST_DIMENSIONS} directions at most"
        )
    Q = torch.linalg.eigh(seen.second(centred=True)).eigenvectors.flip(1)[:, :directions].mT
    offset = -(Q @ seen.mean)
    return Features("harmonics", Q.contiguous().to(gain), offset.to(gain), degree, gain, shift)


def _normal(p: int, D: int, seed: int) -> Float[Tensor, "p D"]:
    return torch.randn(p, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _uniform(p: int, seed: int) -> Float[Tensor, " p"]:
    return 2 * torch.pi * torch.rand(p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
