"""Ridge regression from moments: one eigendecomposition, every λ, exact leave-one-out.

    min_{W, b}  Σ w ‖y − W x − b‖² + n λ ‖W‖²          (x in scaled coordinates, b free)

With the centred covariance C = Q diag(v) Qᵀ the solution is W = Bᵀ Q diag(1 / (v + λ)) Qᵀ. A row with residual e and
leverage h = 1/n + zᵀ diag(1 / (v + λ)) z / n would, left out with weight u, be missed by e / (1 − u h). Classes are
indicators: their ridge is LDA with optimal scoring, up to shrinkage, when there are many rows.

References: Golub, Heath, Wahba (1979); Rifkin, Lippert (2007) for the leave-one-out formula; Hastie, Buja, Tibshirani
(1995) for classes as targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from slimformer.heads.class_moments import TargetMoments

LAMBDAS = tuple(10.0 ** (i / 2) for i in range(-12, 7))  # relative to the mean variance
BARELY = 1e-10  # nothing is inverted with less


@dataclass(frozen=True)
class Centred:
    """Covariance of the rows in its own axes, z = ((x − mean) / scale) Q, and with the targets."""

    mean: Float[Tensor, " d"]
    scale: Float[Tensor, " d"]
    Q: Float[Tensor, "d d"]
    values: Float[Tensor, " d"]
    B: Float[Tensor, "d q"]
    y: Float[Tensor, " q"]
    rows: float

    def turned(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return ((X.double() - self.mean) / self.scale) @ self.Q


def centred(moments: TargetMoments, *, standardize: bool = True) -> Centred:
    """Decompose the covariance. Cost d³. A constant coordinate keeps the scale 1 and gets no weight."""
    n = moments.rows
    mean, y = moments.x / n, moments.y / n
    C = moments.gram / n - torch.outer(mean, mean)
    B = moments.cross / n - torch.outer(mean, y)
    var = C.diagonal().clamp(min=0)
    real = var > 1e-12 * moments.gram.diagonal() / n
    scale = torch.where(real, var.sqrt(), torch.ones_like(var)) if standardize else torch.ones_like(var)
    C, B = torch.where(real & real[:, None], C, 0.0), torch.where(real[:, None], B, 0.0)
    values, Q = torch.linalg.eigh(C / scale / scale[:, None])
    return Centred(mean, scale, Q, values.clamp(min=0), Q.mT @ (B / scale[:, None]), y, n)


def damping(problem: Centred, relative: float) -> float:
    """λ = relative · mean variance."""
    level = float(problem.values.mean())
    return max(relative, BARELY) * (level if level > 0 else 1.0)


def ridge(problem: Centred, relative: float) -> tuple[Float[Tensor, "q d"], Float[Tensor, " q"]]:
    """W and b in the original coordinates."""
    W = (problem.Q @ (problem.B / (problem.values + damping(problem, relative))[:, None])).mT / problem.scale
    return W, problem.y - W @ problem.mean


def left_out_predictions(
    problem: Centred, Z: Float[Tensor, "n d"], Y: Float[Tensor, "n q"], u: Float[Tensor, " n"], relative: float
) -> Float[Tensor, "n q"]:
    """Predictions for every row by the fit without it, y − e / (1 − u h), exactly. Cost n d q.

    Z are the rows as `problem.turned` gives them.
    """
    inverse = 1 / (problem.values + damping(problem, relative))
    errors = Y - problem.y - Z @ (problem.B * inverse[:, None])
    leverage = (1 + (Z * Z) @ inverse) / problem.rows
    return Y - errors / (1 - u * leverage).clamp(min=1e-12)[:, None]
