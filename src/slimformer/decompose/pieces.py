"""Embeddings of pieces, corrected for the words that are written in them.

A word with the embedding e_w is gone, and what stands for it in a text are k pieces with embeddings e_p. If their mean
were e_w, whatever takes a mean over positions (pooling, attention to like keys) would see what it saw. Pieces have work
of their own, so they may move a little only:

    min over Δ   Σ_w f_w ‖ (1/k) Σ_{p ∈ w} (e_p + Δ_p) − e_w ‖²  +  λ Σ_p n_p ‖Δ_p‖²

with f_w how often the word occurs, n_p how often the piece does. With M the matrix of shares (words × pieces),

    (Mᵀ F M + λ N) Δ = Mᵀ F (e_w − M e_p).

M has a few entries in a row, so the matrix is sparse. Cost: one sparse factorisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csc_matrix, diags
from scipy.sparse.linalg import splu
from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """What texts say: shares of pieces in words (`M`), how often words (`f`) and pieces (`n`) occur."""

    M: csc_matrix
    f: NDArray[np.float64]
    n: NDArray[np.float64]


def refit_pieces(
    E: Float[Tensor, "p d"], words: Float[Tensor, "w d"], evidence: Evidence, ridge: float
) -> Float[Tensor, "p d"]:
    """Embeddings of pieces that are closer to the words they stand for, in double precision."""
    M, F, old = evidence.M, diags(evidence.f), E.double().numpy()
    left = (M.T @ F @ M + ridge * diags(np.maximum(evidence.n, 1.0))).tocsc()
    right = M.T @ (F @ (words.double().numpy() - M @ old))
    return torch.from_numpy(old + splu(left).solve(np.ascontiguousarray(right)))


def shares(written: list[tuple[int, ...]], pieces: int) -> csc_matrix:
    """M: of each word the share of every piece that it is written in."""
    rows = [i for i, word in enumerate(written) for _ in word]
    columns = [piece for word in written for piece in word]
    values = [1 / len(word) for word in written for _ in word]
    return csc_matrix((values, (rows, columns)), shape=(len(written), pieces))
