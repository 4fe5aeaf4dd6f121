"""Attention written out in full, for a layer of a few numbers: the judge of all rewrites of its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from slimformer.linalg.moments import Moments


@dataclass(frozen=True)
class Layer:
    """Weights (outputs × inputs) and biases of H query heads on K key/value heads, of widths that may differ."""

    heads: int
    kv: int
    W_q: Tensor
    b_q: Tensor
    W_k: Tensor
    b_k: Tensor
    W_v: Tensor
    b_v: Tensor
    W_o: Tensor
    b_o: Tensor
    scale: float = 1.0
    frequencies: Tensor | None = None  # planes, or key heads × planes

    def queries(self, X: Tensor) -> Tensor:
        """heads × tokens × d, turned where there are rotary positions."""
        return self._turned(_heads(X @ self.W_q.mT + self.b_q, self.heads))

    def keys(self, X: Tensor) -> Tensor:
        return self._turned(_heads(X @ self.W_k.mT + self.b_k, self.kv))

    def values(self, X: Tensor) -> Tensor:
        return _heads(X @ self.W_v.mT + self.b_v, self.kv)

    def scores(self, X: Tensor) -> Tensor:
        """heads × tokens × tokens."""
        return self.scale * self.queries(X) @ _each(self.keys(X), self.heads).mT

    def weights(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        s = self.scores(X)
        return (s if mask is None else s.masked_fill(~mask, -torch.inf)).softmax(-1)

    def contexts(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        """What the output projection reads: tokens × (heads · d)."""
        z = self.weights(X, mask) @ _each(self.values(X), self.heads)
        return z.transpose(0, 1).flatten(1)

    def __call__(self, X: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.contexts(X, mask) @ self.W_o.mT + self.b_o

    def _turned(self, x: Tensor) -> Tensor:
        """(x_f + i x_{f + d/2}) e^{iθ_f p} at position p."""
        if self.frequencies is None:
            return x
        θ = self.frequencies.expand(self.kv, -1).repeat_interleave(len(x) // self.kv, 0)
        angle = torch.arange(x.shape[1])[:, None] * θ[:, None]
        c = torch.complex(*x.unflatten(-1, (2, -1)).unbind(-2)) * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([c.real, c.imag], -1)


def make(heads: int = 4, kv: int = 4, d: int = 6, D: int = 16, *, rotary: bool = False) -> Layer:
    """Random weights of full rank; the coordinates of a head differ in size, so that some are worth more."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    def writer(n: int) -> Tensor:
        return torch.logspace(0.2, -0.6, d, dtype=torch.float64).repeat(n)[:, None] * random(n * d, D) / D**0.5

    θ = 100.0 ** -(torch.arange(d // 2, dtype=torch.float64) / (d // 2)) if rotary else None
    return Layer(
        heads, kv, writer(heads), 0.3 * random(heads * d), writer(kv), 0.3 * random(kv * d),
        writer(kv), 0.3 * random(kv * d), random(D, heads * d) / (heads * d) ** 0.5, random(D), d**-0.5, θ,
    )  # fmt: skip


def inputs(D: int = 16, *, n: int = 40) -> Tensor:
    """Anisotropic rows with a mean: some directions are loud."""
    loud = torch.logspace(0.5, -1, D, dtype=torch.float64)
    mix = torch.linalg.qr(torch.randn(D, D, dtype=torch.float64, generator=torch.Generator().manual_seed(5))).Q
    return (torch.randn(n, D, dtype=torch.float64) * loud) @ mix + 0.5


def of_inputs(D: int = 16, *, n: int = 4000) -> Moments:
    return Moments.of(inputs(D, n=n))


def causal(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


def padded(n: int) -> Tensor:
    """Nobody sees the last five."""
    return (torch.arange(n) < n - 5).expand(n, n)


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(0, 1)


def _each(x: Tensor, heads: int) -> Tensor:
    return x.repeat_interleave(heads // len(x), 0)
