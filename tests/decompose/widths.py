"""Small widths with the rows behind them, and least squares on these rows as the judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slimformer.decompose import Width
from slimformer.linalg.moments import Moments

RIDGE = 1e-12


@dataclass(frozen=True)
class Rows:
    """A width, and what it was made from: fitted rows X, held rows Y."""

    width: Width
    X: Tensor
    Y: Tensor


def make(unit: int = 1, group: int = 1, *, units: int = 8, bias: bool = False, m: int = 5, n: int = 90) -> Rows:
    """Correlated rows with a mean; held rows come from a slightly different distribution."""
    d = units * unit
    mix = torch.randn(d, d, dtype=torch.float64)
    X = torch.randn(n, d, dtype=torch.float64) @ mix + 1
    Y = (torch.randn(n // 2, d, dtype=torch.float64) @ mix + 1.2) * 1.1
    return of(X, Y, torch.randn(m, d, dtype=torch.float64), unit, group, bias)


def of(X: Tensor, Y: Tensor, W: Tensor, unit: int = 1, group: int = 1, bias: bool = False) -> Rows:
    return Rows(Width("blocks.0.site", W, Moments.of(X), Moments.of(Y), unit, group, bias), X, Y)


def lost(X: Tensor, W: Tensor, kept: Tensor, *, bias: bool) -> float:
    """min over A (and b, if there is a bias) of mean ‖W x − A x_J − b‖², by least squares on the rows."""
    Y, Z = (X @ W.mT).numpy(), X[:, kept].numpy()
    if bias:
        Z = np.concatenate([Z, np.ones((len(Z), 1))], axis=1)
    A = np.linalg.lstsq(Z, Y, rcond=None)[0]
    return float(np.square(Y - Z @ A).sum() / len(X))
