"""The subspace in which inner products change least.

Embeddings x are compared by inner products. Of all projections on k directions, that on the eigenvectors V of the
largest eigenvalues of E x xᵀ changes the Gram matrix of the embeddings least (Eckart–Young; not centred, because the
mean counts in an inner product as well). Embeddings V x are nested: the first j of k are the best j.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def directions(C: Float[Tensor, "d d"], k: int) -> tuple[Float[Tensor, "k d"], float]:
    """V, and the share of E ‖x‖² it keeps. Cost d³.

    >>> V, share = directions(torch.diag(torch.tensor([1.0, 3.0])).double(), 1)
    >>> V.abs().tolist(), share
    ([[0.0, 1.0]], 0.75)
    """
    values, vectors = torch.linalg.eigh(C)
    leading = values.flip(0)[:k].clamp_min(0)
    V = vectors.flip(1)[:, :k].mT
    signs = V.gather(1, V.abs().argmax(1, keepdim=True)).sign()  # the same on every machine
    return V * signs, float(leading.sum() / values.clamp_min(0).sum())
