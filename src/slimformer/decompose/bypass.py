"""Neurons with a linear path beside them: W h ≈ N h_J + B A x + c, neurons J and a map of low rank from the input x.

What a feed-forward part does is in part linear in its input, and a linear map of rank r may cost less than the neurons
that would say the same. Both are fitted together. With z = [h; x] and everything that h_J predicts taken off (partial
regression, Frisch–Waugh), what is left is a regression of ỹ = W h | h_J on x̃ = x | h_J:

    S = E x̃ x̃ᵀ,   T = E ỹ x̃ᵀ,   M = T S⁻¹,        of rank r at best   M_r = U_r U_rᵀ M,

U_r being the first eigenvectors of T S⁻¹ Tᵀ (reduced-rank regression: Eckart–Young in the metric of x̃). N follows by
least squares given M_r. The energy explained is the sum of the first r eigenvalues, so the error left is what was
discarded. r = 0 is the selection of neurons alone (`reduction.select`), J = ∅ the linear map of rank r.

All sizes k from one factorisation. Put z in the order P of the neurons' worth, then x, and factor E z zᵀ + λI = L Lᵀ.
Given the first k neurons every coordinate is left with L[:, k:] η[k:], η being what each adds to those before it. So
S, T and E ỹ ỹᵀ at k are one block each of Z[:, k:] Z[:, k:]ᵀ, Z = [W L_h; L_x], which are summed up from behind; with
K = E η ηᵀ of other data in the middle they give the error on these, for all r at once, because U turns the outputs:

    e(k, r) = Σ_i (Uᵀ E ỹỹᵀ U)_ii − Σ_{i ≤ r} (2 Uᵀ T Mᵀ U − Uᵀ M S Mᵀ U)_ii.

Reference: Frisch & Waugh (1933); Izenman (1975) for reduced rank. Cost O((n + D)³) once and O(D³) for every k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from slimformer.decompose.reduction import Curve, coordinates
from slimformer.errors import RankTooHigh
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments

WIDTHS = 16  # numbers of neurons for which a path is looked at, evenly spread
EVEN = 8  # these are multiples of that
RANKS = (1 / 32, 1 / 16, 1 / 8, 1 / 4)  # of the width of the input
STEP = 4  # ranks are multiples of that


@dataclass(frozen=True)
class Joint:
    """Hidden units h ∈ ℝⁿ with the input x ∈ ℝᴰ they come from, and the map W that reads h.

    `fit` and `held` are moments of z = [h; x]. With a `bias` after W means cost nothing. `root` is R of
    `decompose.metric`: errors are measured as ‖R ·‖².
    """

    name: str
    W: Float[Tensor, "m n"]
    fit: Moments
    held: Moments
    bias: bool = False
    root: Float[Tensor, "m m"] | None = None

    @property
    def n(self) -> int:
        return self.W.shape[1]

    @property
    def D(self) -> int:
        return self.fit.width - self.n

    @property
    def seen(self) -> Float[Tensor, "m n"]:
        """The reader in the metric, R W."""
        return self.W.double() if self.root is None else self.root @ self.W.double()


@dataclass(frozen=True)
class Bypass:
    """W h ≈ N h_J + B A x + c. The coordinates of A x are of unit size on the fitted data."""

    J: Int[Tensor, " k"]
    N: Float[Tensor, "m k"]
    B: Float[Tensor, "m r"]
    A: Float[Tensor, "r D"]
    c: Float[Tensor, " m"]


def widths(n: int) -> tuple[int, ...]:
    """Numbers of neurons, below all of them, that may have a path beside them."""
    return tuple(sorted({k for j in range(WIDTHS) if (k := EVEN * round(n * j / WIDTHS / EVEN)) < n}))


def ranks(D: int) -> tuple[int, ...]:
    """Ranks a path beside neurons may have."""
    return tuple(sorted({min(D, max(STEP, STEP * -(-round(D * share) // STEP))) for share in RANKS}))


def linear_ranks(D: int) -> tuple[int, ...]:
    """Ranks a path may have that has no neurons beside it: as above, and every sixteenth."""
    return tuple(sorted({*ranks(D), *(min(D, max(STEP, STEP * round(D * j / 16 / STEP))) for j in range(1, 17)), D}))


def bypass_curves(joint: Joint, order: Sequence[int], *, ridge: float) -> dict[int, Curve]:
    """By rank r: the error left at every number of neurons of `widths`, kept in `order`, with a path of that rank.

    Sizes are those the tokens can serve.
    """
    errors_by_size = {k: errors for k, *errors in errors_at_every_rank(joint, order, widths(joint.n), ridge=ridge)}
    out = {}
    for r in linear_ranks(joint.D):
        legal = widths(joint.n) if r in ranks(joint.D) else (0,)
        sizes = tuple(k for k in legal if k + r <= joint.fit.count)
        fit, held = (tuple(float(errors_by_size[k][i][min(r, len(joint.W))]) for k in sizes) for i in (0, 1))
        out[r] = Curve("bypass", tuple(int(u) for u in order), sizes, sizes, fit, held, (0.0,) * len(sizes))
    return out


def errors_at_every_rank(
    joint: Joint, order: Sequence[int], sizes: Sequence[int], *, ridge: float
) -> Iterator[tuple[int, Float[Tensor, " m1"], Float[Tensor, " m1"]]]:
    """For each of the sizes k, from large to small, e(k, r) for r = 0 … m on the fitted and on the held data."""
    joint, _ = _levelled(joint)
    n, m = joint.n, len(joint.W)
    P = torch.cat([coordinates(order, 1), torch.arange(n, joint.fit.width)])
    L = torch.linalg.cholesky(damped(joint.fit.second(centred=joint.bias)[P][:, P], ridge))
    Z = torch.cat([joint.seen[:, P[:n]] @ L[:n], L[n:]])
    half = torch.linalg.solve_triangular(L, _held(joint)[P][:, P], upper=False)
    K = torch.linalg.solve_triangular(L, half.mT, upper=False)
    inside = held = Z.new_zeros(len(Z), len(Z))
    end = len(L)
    for k in sorted(sizes, reverse=True):
        new, after = slice(k, end), slice(end, None)
        inside = inside + Z[:, new] @ Z[:, new].mT
        cross = Z[:, new] @ (K[new, after] @ Z[:, after].mT)
        held = held + Z[:, new] @ K[new, new] @ Z[:, new].mT + cross + cross.mT
        end = k
        M, U = _regression(inside[:m, m:], inside[m:, m:])
        yield k, _left(inside, M, U), _left(held, M, U)


def _regression(T: Float[Tensor, "m D"], S: Float[Tensor, "D D"]) -> tuple[Float[Tensor, "m D"], Float[Tensor, "m m"]]:
    """M = T S⁻¹ and the directions U of what it explains, most first."""
    M = torch.cholesky_solve(T.mT, torch.linalg.cholesky(damped(S, 0.0))).mT
    explained = M @ T.mT
    return M, torch.linalg.eigh((explained + explained.mT) / 2).eigenvectors.flip(-1)


def _left(G: Float[Tensor, "q q"], M: Float[Tensor, "m D"], U: Float[Tensor, "m m"]) -> Float[Tensor, " m1"]:
    """e(k, r) for r = 0 … m from the second moments G of [ỹ; x̃]."""
    m = len(M)
    V = U.mT @ M
    gain = 2 * ((U.mT @ G[:m, m:]) * V).sum(1) - ((V @ G[m:, m:]) * V).sum(1)
    total = G[:m, :m].diagonal().sum()
    return torch.cat([total[None], total - gain.cumsum(0)]).clamp_min(0)


def bypass(joint: Joint, order: Sequence[int], k: int, r: int, *, ridge: float) -> Bypass:
    """The reduction to the first k neurons of `order` and a path of rank r. Cost O((k + D)³ + n (k + D)²)."""
    J, n = coordinates(sorted(order[:k]), 1), joint.n
    if k + r > joint.fit.count:
        raise RankTooHigh(
            f"{joint.name}: asked to keep {k} neurons and a path of rank {r}, but {joint.fit.count} calibration tokens "
            "span no more directions than that; calibrate on more text"
        )
    joint, scale = _levelled(joint)
    C, W = damped(joint.fit.second(centred=joint.bias), ridge), joint.W.double()
    E = torch.cholesky_solve(C[J], torch.linalg.cholesky(C[J][:, J])).mT if k else C.new_zeros(len(C), 0)
    E[J] = torch.eye(k, dtype=E.dtype)  # what is kept is known, ridge or not
    left = C[:, n:] - E @ C[J][:, n:]
    M, U = _regression(joint.seen @ left[:n], left[n:])
    A = U[:, :r].mT @ M
    B = U[:, :r] if joint.root is None else torch.linalg.solve_triangular(joint.root, U[:, :r], upper=True)
    N = W @ E[:n] - B @ (A @ E[n:])
    μ = joint.fit.mean
    c = W @ μ[:n] - N @ μ[J] - B @ (A @ μ[n:]) if joint.bias else torch.zeros(len(W), dtype=torch.float64)
    size = ((A @ C[n:, n:]) * A).sum(1).clamp_min(1e-30).sqrt()
    return Bypass(J, N, B * size, A / size[:, None] * scale, c)


def on_path(joint: Moments, J: Int[Tensor, " k"], A: Float[Tensor, "r D"]) -> Moments:
    """Moments of [h_J; A x] from those of [h; x]."""
    n = joint.width - A.shape[1]
    T = torch.zeros(len(J) + len(A), joint.width, dtype=torch.float64)
    T[torch.arange(len(J)), J] = 1
    T[len(J) :, n:] = A.double()
    return Moments(joint.count, T @ joint.sum, T @ joint.gram @ T.mT)


def first_part(joint: Moments, n: int) -> Moments:
    """Moments of h from those of [h; x]."""
    return Moments(joint.count, joint.sum[:n], joint.gram[:n, :n].contiguous())


def _levelled(joint: Joint) -> tuple[Joint, float]:
    """x multiplied by what makes it as large as h, so that one ridge means the same for both; and that factor."""
    size = joint.fit.second(centred=joint.bias).diagonal()
    h, x = float(size[: joint.n].mean()), float(size[joint.n :].mean())
    scale = (h / x) ** 0.5 if h > 0 and x > 0 else 1.0
    d = torch.ones(joint.fit.width, dtype=torch.float64)
    d[joint.n :] = scale
    fit, held = (Moments(m.count, m.sum * d, m.gram * d * d[:, None]) for m in (joint.fit, joint.held))
    return replace(joint, fit=fit, held=held), scale


def _held(joint: Joint) -> Float[Tensor, "q q"]:
    """Second moments of the held data about the mean that was fitted."""
    C = joint.held.second(centred=joint.bias)
    shift = joint.held.mean - joint.fit.mean
    return C + torch.outer(shift, shift) if joint.bias else C
