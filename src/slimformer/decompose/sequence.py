"""Fewer keys: attention over k rows in place of n, made by grouping or projecting along the sequence.

Linformer (Wang et al., arXiv 2006.04768) replaces keys and values by E K and F V, E, F ∈ ℝ^{k×n}, the same for every
input. A trained model that never saw such a projection has no row space that all inputs share, so here the rows also
come from the input itself. Keys in groups c of n_c tokens, k̄_c and v̄_c their means, S_c the covariance of the keys in a
group, s the scale of the scores:

    out(q) = Σ_c softmax_c( s q·k̄_c + log n_c + ½ s² qᵀ S_c q ) v̄_c

log n_c says that a group counts as often as it has members. The last term is the second cumulant of the scores in the
group: log mean exp(s q·k) = s q·k̄ + ½ s² qᵀ S q + …; S is kept as a diagonal. It is exact for groups of one, pads have
no weight, and the cost is n k (3d) in place of n² (2d) multiplications for each head, with n k d for each sweep of
k-means.

All functions take a batch and heads: K is b × h × n × d; a mask is b × n, True for real tokens, or b × h × n weights.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ROWS = 8192  # tokens whose distances are in memory together
SWEEPS = 3
RIDGE = 1e-3
STEPS, RTOL = 200, 1e-6  # of conjugate gradients

Mask = Bool[Tensor, "b n"] | Float[Tensor, "b h n"]


def segments(mask: Bool[Tensor, "b n"], k: int) -> Int[Tensor, "b n"]:
    """Mean pooling as an assignment: the r-th of m real tokens belongs to group ⌊r k / m⌋, and to group r if m ≤ k."""
    r = (mask.long().cumsum(1) - 1).clamp_min(0)
    m = mask.sum(1, keepdim=True).clamp_min(1)
    return torch.where(m <= k, r, r * k // m)


def clusters(
    K: Float[Tensor, "b h n d"],
    mask: Mask,
    k: int,
    sweeps: int = SWEEPS,
    start: Int[Tensor, "b h n"] | None = None,
) -> Int[Tensor, "b h n"]:
    """The group of every key, by `sweeps` of Lloyd's k-means in every head. O(sweeps · n k d), nothing at random.

    The first centres are k real keys at even distances along the sequence, or the means of the groups in `start` (of
    the layer before, or of the step before: a warm start). A sequence of k real tokens or fewer gets groups of one.
    Pads are sent to group 0 and must be pooled with weight 0.
    """
    weight = _weight(mask, K)
    real = weight > 0
    rank, count = (real.long().cumsum(2) - 1).clamp_min(0), real.sum(2, keepdim=True)
    if bool((count <= k).all()):
        return rank * real
    if start is None:
        centres, alive = _spaced(K, real, k)
    else:
        centres, mass = pooled(K, start, k, weight)
        alive = mass > 0
    groups = start if start is not None else torch.zeros_like(rank)
    for sweep in range(sweeps):
        if sweep:
            means, mass = pooled(K, groups, k, weight)
            centres = torch.where((mass > 0)[..., None], means, centres)
        groups = _nearest(K, centres, alive)
    return torch.where(count <= k, rank, groups) * real


def pooled(
    x: Float[Tensor, "b h n d"], assignment: Int[Tensor, "b h n"], k: int, mask: Mask
) -> tuple[Float[Tensor, "b h k d"], Float[Tensor, "b h k"]]:
    """Mean of every group, and its mass; both 0 where a group is empty. O(n d)."""
    weight = _weight(mask, x)
    b, h, _, d = x.shape
    mass = weight.new_zeros(b, h, k).scatter_add(2, assignment, weight)
    total = x.new_zeros(b, h, k, d).scatter_add(2, assignment[..., None].expand_as(x), x * weight[..., None])
    return total / mass.clamp_min(torch.finfo(x.dtype).tiny)[..., None], mass


def spread(
    x: Float[Tensor, "b h n d"],
    means: Float[Tensor, "b h k d"],
    assignment: Int[Tensor, "b h n"],
    mask: Mask,
) -> Float[Tensor, "b h k d"]:
    """Diagonal of the covariance in every group, for the second-order term. O(n d)."""
    away = x - means.gather(2, assignment[..., None].expand_as(x))
    return pooled(away.square(), assignment, means.shape[2], mask)[0]


def jl_projection(n: int, k: int, *, seed: int = 0) -> Float[Tensor, "k n"]:
    """R with entries N(0, 1/k), the E = F of the paper's first theorem. E RᵀR = I, but ‖RᵀR w − w‖ ≈ √(n/k) ‖w‖."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(k, n, generator=generator, dtype=torch.float64) / k**0.5


def least_squares_values(
    P: Float[Tensor, "s h m k"],
    V: Float[Tensor, "s h n p"],
    Y: Float[Tensor, "s h m p"],
    E: Float[Tensor, "#h k n"],
    *,
    ridge: float = RIDGE,
    steps: int = STEPS,
) -> Float[Tensor, "h k n"]:
    """F = argmin Σ_s ‖Y_s − P_s F V_s‖² + λ ‖F − E‖², by conjugate gradients, P_s attention over the k projected keys.

        Σ_s P_sᵀP_s F V_s V_sᵀ + λF = Σ_s P_sᵀ Y_s V_sᵀ + λE,        λ = ridge · mean diagonal of the left side

    From F = E on, so stopping early stays near E. A step costs Σ_s 2 k n p + k² p for each head; no kn × kn matrix is
    formed.
    """
    gram = P.mT @ P
    λ = ridge * (gram.diagonal(dim1=2, dim2=3).mean(-1) * V.square().sum(-1).mean(-1)).sum(0)[:, None, None]

    def left(F: Tensor) -> Tensor:
        return (gram @ (F @ V) @ V.mT).sum(0) + λ * F

    F = E.expand(P.shape[1], *E.shape[1:]).to(V.dtype).clone()
    right = (P.mT @ Y @ V.mT).sum(0) + λ * F
    r = right - left(F)
    direction, rr = r.clone(), _squares(r)
    enough = RTOL**2 * _squares(right)
    for _ in range(steps):
        if bool((rr <= enough).all()):
            break
        q = left(direction)
        tiny = torch.finfo(q.dtype).tiny
        α = rr / (direction * q).sum((1, 2), keepdim=True).clamp_min(tiny)
        F, r = F + α * direction, r - α * q
        old, rr = rr, _squares(r)
        direction = r + rr / old.clamp_min(tiny) * direction
    return F


def relative_error(Y: Float[Tensor, "*b n p"], approximation: Float[Tensor, "*b n p"]) -> Float[Tensor, "*b"]:
    """‖Y − Ŷ‖ / ‖Y‖ in the Frobenius norm, for every matrix; 1 is what an output of zeros has."""
    return (Y - approximation).norm(dim=(-2, -1)) / Y.norm(dim=(-2, -1)).clamp_min(torch.finfo(Y.dtype).tiny)


def _squares(x: Float[Tensor, "h k n"]) -> Float[Tensor, "h 1 1"]:
    return x.square().sum((1, 2), keepdim=True)


def _weight(mask: Mask, x: Float[Tensor, "b h n d"]) -> Float[Tensor, "b h n"]:
    weight = mask if mask.ndim == 3 else mask[:, None]
    return weight.to(x.dtype).expand(x.shape[:3])


def _spaced(
    K: Float[Tensor, "b h n d"], real: Bool[Tensor, "b h n"], k: int
) -> tuple[Float[Tensor, "b h k d"], Bool[Tensor, "b h k"]]:
    """k real keys at even distances, and which of the k there are."""
    order = (~real).long().argsort(dim=2, stable=True)
    count, c = real.sum(2, keepdim=True), torch.arange(k, device=K.device)
    nth = torch.where(count > k, (2 * c + 1) * count // (2 * k), c).clamp_max(K.shape[2] - 1)
    return K.gather(2, order.gather(2, nth)[..., None].expand(-1, -1, -1, K.shape[3])), c < count


def _nearest(
    K: Float[Tensor, "b h n d"], centres: Float[Tensor, "b h k d"], alive: Bool[Tensor, "b h k"]
) -> Int[Tensor, "b h n"]:
    """argmin_c |k − c|², that is argmax_c k·c − ½|c|², a few thousand tokens at a time."""
    offset = (-0.5 * centres.square().sum(-1)).masked_fill(~alive, -torch.inf)[..., None, :]
    return torch.cat([(rows @ centres.mT + offset).argmax(-1) for rows in K.split(ROWS, 2)], 2)
