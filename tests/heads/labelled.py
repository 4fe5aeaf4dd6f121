"""Labelled rows for the tests of heads."""

from __future__ import annotations

import torch


def blobs(n=60, d=5, classes=3, *, seed=0, spread=1.2):
    """Rows of a few overlapping Gaussian classes with unequal sizes and a common covariance."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.arange(1.0, classes + 1), n, replacement=True, generator=generator)
    y[: 2 * classes] = torch.arange(classes).repeat(2)  # every class at least twice
    means = spread * torch.randn(classes, d, generator=torch.Generator().manual_seed(100), dtype=torch.float64)
    mix = torch.randn(d, d, generator=torch.Generator().manual_seed(101), dtype=torch.float64) / d**0.5
    X = means[y] + torch.randn(n, d, generator=generator, dtype=torch.float64) @ (torch.eye(d) + mix)
    return X.numpy(), y.numpy()


def lines(n=50, d=4, q=2, *, seed=0):
    """Rows and noisy linear targets."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(n, d, generator=generator, dtype=torch.float64) + 3
    A = torch.randn(d, q, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return X.numpy(), (X @ A + torch.randn(n, q, generator=generator, dtype=torch.float64)).numpy()
