"""The metric of the outputs: what an error written into the residual stream costs at the end of the network.

A small error δ of what a block writes changes the distribution p of the outputs by

    KL ≈ ½ δᵀ G δ,     G = E g gᵀ,     g = ∂ log p(y) / ∂(what was written),   y drawn from p,

the Fisher information of that place. With Rᵀ R = G the error of a reader in the metric is ½ E ‖R W (x − x̂)‖²: reading
through R W in place of W lets every method of this package count nats instead of squares. The least-squares refit of W
is the same in any metric; the order of units, the bases of values and the allocation are not.

G is estimated from few tokens, so it is shrunk towards a multiple of the identity. Errors of one token are taken alone:
those that all tokens share add up, and the true divergence is larger, by a factor that differs little between sites
(what is left of it, probes measure).

Reference: Amari (1998) for the metric; sampled outcomes and not the labels of the data make it that of the model
(Kunstner et al., 2019). Cost O(m³) for a stream of width m.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

SHRINK = 0.3


def metric_root(G: Float[Tensor, "m m"], *, shrink: float = SHRINK) -> Float[Tensor, "m m"]:
    """R, upper triangular, with Rᵀ R = (1 − a) G + a tr(G)/m I; the identity where G says nothing at all."""
    m = len(G)
    mean = G.diagonal().mean()
    eye = torch.eye(m, dtype=G.dtype, device=G.device)
    if not mean > 0:
        return eye
    return torch.linalg.cholesky((1 - shrink) * G + shrink * mean * eye).mT
