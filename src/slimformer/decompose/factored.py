"""A table of rows by two thin matrices, W ≈ A B.

Of an embedding or a head of words not all rows count alike, nor all columns: row v is used with frequency f_v, and an
error δ of a row costs δᵀ C δ, C being the second moments of what a head reads, or the metric of what an embedding
writes. The error to be made small is therefore

    e(A, B) = Σ_v f_v (W − A B)_v C (W − A B)_vᵀ = ‖F^½ (W − A B) L‖²,      C + λI = L Lᵀ,

and with the eigenvectors q_i of (W L)ᵀ F (W L), largest eigenvalue ℓ_i first, its least value at rank r is reached by

    A = W L Q_r,      B = Q_rᵀ L⁻¹,      e(r) = Σ_{i>r} ℓ_i

(Eckart–Young). A row that never occurs is projected like all others, a row of zeros stays one, and rank d gives W back.
The factors are nested: one factorisation serves every rank. With other moments C', of data that were not fitted, the
error of the same factors is Σ_{i>r} ℓ_i y_iᵀ C' y_i, where y_i are the columns of L⁻ᵀ Q.

A table used at both ends has one A, because both would choose the same one: their errors add up to that of the sum of
the two C, as long as rows count alike.

Reference: Srebro & Jaakkola (2003), *Weighted low-rank approximations*, for weights that separate; Chen et al.,
GroupReduce (2018), for frequencies of words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.linalg.damped import damped

ROWS = 8192  # taken to double precision at once


@dataclass(frozen=True)
class Factored:
    """A = W X_r and B = Y_rᵀ for every rank r: the first r columns of X = L Q and of Y = L⁻ᵀ Q, energies ℓ."""

    X: Float[Tensor, "d d"]
    Y: Float[Tensor, "d d"]
    energies: Float[Tensor, " d"]

    def at(self, W: Float[Tensor, "v d"], r: int) -> tuple[Float[Tensor, "v r"], Float[Tensor, "r d"]]:
        """A and B of rank r, in the precision of W. Cost V d r."""
        return W @ self.X[:, :r].to(W), self.Y[:, :r].mT.to(W)

    def errors(self, C: Float[Tensor, "d d"]) -> Float[Tensor, " d1"]:
        """The error at rank 0 … d where the moments are C. Cost d³."""
        left = self.energies * torch.einsum("ij,ij->j", self.Y, C @ self.Y)
        return torch.cat([left.flip(0).cumsum(0).flip(0), left.new_zeros(1)])


def factored(W: Float[Tensor, "v d"], f: Float[Tensor, " v"], C: Float[Tensor, "d d"], *, ridge: float) -> Factored:
    """The factors of every rank. Cost V d² + d³.

    >>> W, C = torch.eye(3)[:, :2].double(), torch.diag(torch.tensor([4.0, 1.0])).double()
    >>> of = factored(W, torch.ones(3).double(), C, ridge=0.0)
    >>> [round(float(e), 6) for e in of.errors(C)]
    [5.0, 1.0, 0.0]
    """
    L = torch.linalg.cholesky(damped(C, ridge))
    M = torch.zeros_like(C)
    for rows, share in zip(W.split(ROWS), f.double().split(ROWS), strict=True):  # no copy of a whole table
        M += rows.double().mT @ (share[:, None] * rows.double())
    values, Q = torch.linalg.eigh(L.mT @ M @ L)
    Q = Q.flip(1)
    return Factored(L @ Q, torch.linalg.solve_triangular(L.mT, Q, upper=True), values.flip(0).clamp_min(0))
