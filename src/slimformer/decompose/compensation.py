"""Settle the columns of a weight one after another; those not settled yet make up for what each one loses.

    min tr((W − Ŵ) H (W − Ŵ)ᵀ),    H = Σ x xᵀ / n + λI,    ŵ_j restricted to what may be stored

When column j is settled at ŵ_j, the best the free columns F = {k > j} can do is known in closed form (optimal brain
surgeon). With H⁻¹ = UᵀU, U upper triangular, the inverses that shrink with F are never formed:

    e_j = (w_j − ŵ_j) / U_jj,    W_:F ← W_:F − e_j U_jF,    and in the end W − Ŵ = E U, error = ‖E‖².

So every column adds ‖e_j‖², which is its exact least-squares loss. Rounding (`decompose.rounding`) and sparsity
(`decompose.sparse`) differ only in how a column is settled.

Frantar, Ashkboos, Hoefler, Alistarh: GPTQ, arXiv 2210.17323. Frantar, Alistarh: SparseGPT, arXiv 2301.00774.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped

BLOCK = 128  # columns settled before those beyond are told; a product of matrices, not of vectors
DAMPING = 0.01  # of the mean diagonal, as in both papers

Settle = Callable[
    [int, Tensor], Tensor
]  # (j, weight with all columns of this block up to date) → what column j becomes


def inverse_root(H: Float[Tensor, "d d"]) -> Float[Tensor, "d d"]:
    """U, upper triangular, with H⁻¹ = UᵀU: one factorisation from below, H = R Rᵀ with R upper, and U = R⁻¹.

    H is never inverted itself. Cost d³ / 3 multiplications for each of the two steps.
    """
    R = torch.linalg.cholesky(H.flip(0, 1)).flip(0, 1)
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    return torch.linalg.solve_triangular(R, eye, upper=True)


def damped_root(C: Float[Tensor, "d d"], relative: float = DAMPING) -> Float[Tensor, "d d"]:
    """The same for a Gram matrix that may be singular, in double precision: H = C + λI."""
    return inverse_root(damped(C.double(), relative))


def compensate(
    W: Float[Tensor, "o d"], U: Float[Tensor, "d d"], settle: Settle, *, block: int = BLOCK
) -> tuple[Float[Tensor, "o d"], Float[Tensor, " d"]]:
    """Ŵ and what each column lost, ‖e_j‖². `settle(j, W)` sees column j, and all others of its block, as they are now.

    Cost o d² multiplications, nearly all of them in products of a block with what lies beyond it.
    """
    W = W.clone()
    lost = W.new_zeros(W.shape[1])
    for a in range(0, W.shape[1], block):
        b = min(a + block, W.shape[1])
        E = W.new_zeros(len(W), b - a)
        for j in range(a, b):
            fixed = settle(j, W)
            e = (W[:, j] - fixed) / U[j, j]
            W[:, j + 1 : b].addr_(e, U[j, j + 1 : b], alpha=-1)
            W[:, j] = fixed
            E[:, j - a] = e
        W[:, b:].addmm_(E, U[a:b, b:], alpha=-1)
        lost[a:b] = E.square().sum(0)
    return W, lost


def whole_groups(g: int) -> int:
    """About `BLOCK` columns, so that no group of g lies across the border of a block."""
    return g * max(1, BLOCK // g)


def gram_error(W: Float[Tensor, "o d"], other: Float[Tensor, "o d"], H: Float[Tensor, "d d"]) -> float:
    """tr((W − Ŵ) H (W − Ŵ)ᵀ): the squared error of the outputs, summed over them."""
    D = (W - other).to(H)
    return float(((D @ H) * D).sum())
