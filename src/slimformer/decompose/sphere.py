"""Functions on the sphere that a norm defines, as features for least squares.

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

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.errors import TooManyHarmonics
from slimformer.linalg.moments import Moments
from slimformer.linalg.sphere import MOST_DIMENSIONS, harmonic_count, harmonics, legendre, unit_rows

RTOL_GAIN = 1e-3  # of the largest |γ|: a coordinate with a smaller one is all but switched off, and cannot be undone


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
        if self.kind == "harmonics":
            return sum(harmonic_count(len(self.W), k) for k in range(2, self.degree + 1))
        return len(self.W)

    def __call__(self, X: Float[Tensor, "n D"]) -> Float[Tensor, "n p1"]:
        """φ of what a norm wrote. Cost n D p."""
        return KINDS[self.kind](self, on_sphere(X, self.gain, self.shift))


def on_sphere(X: Float[Tensor, "*n D"], gain: Float[Tensor, " D"], shift: Float[Tensor, " D"]) -> Float[Tensor, "*n D"]:
    """s of x = γ s + β, of length one. Coordinates whose γ is all but zero are left out."""
    usable = gain.abs() > RTOL_GAIN * gain.abs().max()
    return unit_rows(((X - shift) / gain.where(usable, 1.0)).where(usable, 0.0))


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
    return Features("arc_cosine", W, torch.zeros_like(W[:, 0]), degree, gain, shift)


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


def _fourier(features: Features, S: Float[Tensor, "n D"]) -> Float[Tensor, "n p"]:
    return (2 / len(features.W)) ** 0.5 * torch.cos(S @ features.W.mT + features.a)


def _arc_cosine(features: Features, S: Float[Tensor, "n D"]) -> Float[Tensor, "n p"]:
    T = S @ features.W.mT
    powers = (T > 0).to(T) if features.degree == 0 else T.clamp_min(0) ** features.degree
    return (2 / len(features.W)) ** 0.5 * powers


def _gegenbauer(features: Features, S: Float[Tensor, "n D"]) -> Float[Tensor, "n p"]:
    p, D = features.W.shape
    scale = (harmonic_count(D, features.degree) / p) ** 0.5
    return scale * legendre(S @ features.W.mT, D, features.degree)


def _harmonic(features: Features, S: Float[Tensor, "n D"]) -> Float[Tensor, "n p"]:
    """|z| Y(z/|z|): of the degree one in |z|, so that a token far out does not own the fit."""
    Z = S @ features.W.mT + features.a
    length = Z.norm(dim=1, keepdim=True)
    known = 1 + Z.shape[1]  # degrees zero and one
    return length * harmonics(unit_rows(Z), features.degree)[:, known:]


KINDS: dict[str, Callable[[Features, Tensor], Tensor]] = {
    "fourier": _fourier, "arc_cosine": _arc_cosine, "gegenbauer": _gegenbauer, "harmonics": _harmonic,
}  # fmt: skip


def _normal(p: int, D: int, seed: int) -> Float[Tensor, "p D"]:
    return torch.randn(p, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _uniform(p: int, seed: int) -> Float[Tensor, " p"]:
    return 2 * torch.pi * torch.rand(p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
