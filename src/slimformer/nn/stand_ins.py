"""What stands in the place of a feed-forward part: a linear map of what it read, or one with features of the sphere.

    ŷ = A [x, φ(s)] + b          s the point of the unit sphere that a norm made x = γ s + β of

    fourier       √(2/p) cos(wᵀs + a)
    arc-cosine    √(2/p) max(0, wᵀs)^k
    gegenbauer    √(N(D, k)/p) P_k(wᵀs), all harmonics of degree k about directions w
    harmonics     |z| Y_j(z/|z|), z = W s + a: explicit ones of degree 2 … k in few dimensions

This file travels: behind `nn/ragged.py` it is the second half of `modeling_slimformer.py` in checkpoints that have such
parts. It therefore imports torch and that file only. How directions are drawn and maps are fitted is not its business.

Polynomials of the sphere S^{q−1} ⊂ ℝ^q. P_k is the one of the angle with P_k(1) = 1:

    (k+q−2) P_{k+1}(t) = (2k+q−2) t P_k(t) − k P_{k−1}(t),     Σ_j Y_kj(x) Y_kj(y) = N(q, k) P_k(xᵀy),

N(q, k) the number of harmonics of degree k. Explicit ones, one coordinate at a time: with x = (t, x'), r² = |x|² and a
harmonic Y_j of degree j in the other q − 1 coordinates, r^n C_n^α(t/r) Y_j(x') with n = k − j and α = j + (q−2)/2 is
one of degree k. The homogeneous form of the three-term recurrence,

    n C_n = 2 (n+α−1) t C_{n−1} − (n+2α−2) r² C_{n−2},

divides by nothing and knows no angles, so poles are points like all others. In the plane they are Re, Im (x + iy)^k.
Orthonormal over the uniform distribution: E Y_kj Y_k'j' = 1 if equal, else 0.

Reference: Müller, *Spherical harmonics* (1966); Dai & Xu (2013), chapter 1.
"""

from __future__ import annotations

from math import comb, exp, lgamma, log, pi
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from slimformer.nn.ragged import BESIDE

KEY = "replaced"  # of the tables in config.json
RTOL_GAIN = 1e-3  # of the largest |γ|: a coordinate with a smaller one is all but switched off, and cannot be undone


class StandIn(nn.Module):
    """A [x, φ(s)] + b. What it is goes into config.json: `by`, `bias`, and of features `kind`, `count`, `degree`."""

    W: nn.Parameter
    a: nn.Parameter
    gain: nn.Parameter
    shift: nn.Parameter

    def __init__(self, width: int, said: dict[str, Any]) -> None:
        super().__init__()
        self.stands_in = said
        columns = 0
        if kind := said.get("kind"):
            p = int(said["count"])
            for name, shape in (("W", (p, width)), ("a", (p,)), ("gain", (width,)), ("shift", (width,))):
                self.register_parameter(name, nn.Parameter(torch.zeros(shape), requires_grad=False))
            columns = feature_count(kind, p, said["degree"])
        self.out = nn.Linear(width + columns, width, bias=said["bias"])

    @property
    def macs(self) -> int:
        """Multiplications for a token; those of a recurrence are not counted."""
        return self.out.weight.numel() + (self.W.numel() if "kind" in self.stands_in else 0)

    def forward(self, hidden_states: Tensor) -> Tensor:
        kind, x = self.stands_in.get("kind"), hidden_states
        if kind:
            wide = torch.promote_types(x.dtype, torch.float32)  # a cosine of half precision is none
            W, a, gain, shift = (each.to(wide) for each in (self.W, self.a, self.gain, self.shift))
            made = features(kind, self.stands_in["degree"], W, a, on_sphere(x.to(wide), gain, shift))
            x = torch.cat([x, made.to(x.dtype)], -1)
        return self.out(x)


def put_stand_in(block: nn.Module, table: dict[str, Any], i: int) -> tuple[str, ...]:
    """Put what `table` says of block i in the place of its feed-forward part; the modules that are gone with it.

    Doing it twice changes nothing.
    """
    said = table["blocks"].get(str(i))
    if said is None:
        return ()
    path, inert = table["path"], tuple(table["inert"])
    old = block.get_submodule(path)
    if not hasattr(old, "stands_in"):
        like = next(old.parameters())
        for name in inert:
            block.set_submodule(name, nn.Identity())
        with torch.device(like.device):
            block.set_submodule(path, StandIn(table["width"], said).to(like.dtype))
    return (path, *inert)


BESIDE[KEY] = put_stand_in


def feature_count(kind: str, p: int, degree: int) -> int:
    """How many numbers features of p directions give."""
    return sum(harmonic_count(p, k) for k in range(2, degree + 1)) if kind == "harmonics" else p


def features(kind: str, degree: int, W: Tensor, a: Tensor, s: Tensor) -> Tensor:
    """φ(s), … × p (see above). Cost n D p."""
    t = s @ W.mT + (a if kind in ("fourier", "harmonics") else 0)
    if kind == "fourier":
        return (2 / len(W)) ** 0.5 * torch.cos(t)
    if kind == "arc-cosine":
        powers = (t > 0).to(t) if degree == 0 else t.clamp_min(0) ** degree
        return (2 / len(W)) ** 0.5 * powers
    if kind == "gegenbauer":
        return (harmonic_count(W.shape[1], degree) / len(W)) ** 0.5 * legendre(t, W.shape[1], degree)
    if kind == "harmonics":  # of degree one in |z|, so that a token far out does not own the fit
        known = 1 + t.shape[-1]  # degrees zero and one
        return t.norm(dim=-1, keepdim=True) * harmonics(_unit(t), degree)[..., known:]
    raise ValueError(f"there are no features of the kind {kind!r}: a newer slimformer wrote this checkpoint")


def on_sphere(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    """s of x = γ s + β, of length one. Coordinates whose γ is all but zero are left out."""
    usable = gain.abs() > RTOL_GAIN * gain.abs().max()
    return _unit(((x - shift) / gain.where(usable, torch.ones_like(gain))).where(usable, torch.zeros_like(gain)))


def harmonic_count(q: int, k: int) -> int:
    """N(q, k): how many independent harmonics of degree k there are on the sphere in ℝ^q."""
    if q == 1:
        return 1 if k < 2 else 0
    return comb(k + q - 1, k) - (comb(k + q - 3, k - 2) if k >= 2 else 0)


def legendre(t: Tensor, q: int, k: int) -> Tensor:
    """P_k(t), the zonal polynomial of degree k in dimension q ≥ 2, with P_k(1) = 1. Cost k multiplications each."""
    before, P = torch.ones_like(t), t
    if k == 0:
        return before
    for i in range(1, k):
        before, P = P, ((2 * i + q - 2) * t * P - i * before) / (i + q - 2)
    return P


def harmonics(x: Tensor, degree: int) -> Tensor:
    """All harmonics of degree 0 … `degree` at x (… × q), orthonormal over the unit sphere, degree after degree.

    x need not be of length one: a harmonic of degree k grows as |x|^k. There are N(q, 0) + … + N(q, degree).
    """
    return torch.cat(_by_degree(x, degree), -1)


def _by_degree(x: Tensor, degree: int) -> list[Tensor]:
    """One array for each degree."""
    q = x.shape[-1]
    if q == 1:
        return [torch.ones_like(x), x, *(x[..., :0] for _ in range(degree - 1))][: degree + 1]
    if q == 2:
        return _circular(x, degree)
    inner = _by_degree(x[..., 1:], degree)
    found: list[list[Tensor]] = [[] for _ in range(degree + 1)]
    t, square = x[..., :1], x.square().sum(-1, keepdim=True)
    for j, Y in enumerate(inner):
        α = j + (q - 2) / 2
        before, C = torch.zeros_like(t), torch.ones_like(t)
        for n in range(degree - j + 1):
            if n > 0:
                before, C = C, (2 * (n + α - 1) * t * C - (n + 2 * α - 2) * square * before) / n
            found[j + n].append(C * Y * _norm(q, n, α))
    return [torch.cat(parts, -1) for parts in found]


def _circular(x: Tensor, degree: int) -> list[Tensor]:
    """1, then √2 Re and √2 Im of (x + iy)^k."""
    real, imaginary = torch.ones_like(x[..., :1]), torch.zeros_like(x[..., :1])
    found = [real]
    u, v = x[..., :1], x[..., 1:]
    for _ in range(degree):
        real, imaginary = real * u - imaginary * v, real * v + imaginary * u
        found.append(2**0.5 * torch.cat([real, imaginary], -1))
    return found


def _norm(q: int, n: int, α: float) -> float:
    """1 / √E (C_n^α Y_j)² over the sphere in ℝ^q, Y_j normalised over that of one dimension less.

    E = ∫ (C_n^α)² (1−t²)^(α−½) dt / ∫ (1−t²)^((q−3)/2) dt, the integrals in closed form.
    """
    whole = 0.5 * log(pi) + lgamma((q - 1) / 2) - lgamma(q / 2)
    part = log(pi) + (1 - 2 * α) * log(2) + lgamma(n + 2 * α) - lgamma(n + 1) - log(n + α) - 2 * lgamma(α)
    return exp(0.5 * (whole - part))


def _unit(x: Tensor) -> Tensor:
    """x / |x|; nothing stays nothing."""
    return F.normalize(x, dim=-1, eps=torch.finfo(x.dtype).tiny ** 0.5)
