"""Ways to give a trained attention fewer keys, each a function of one call of attention."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

from slimformer.decompose.sequence import jl_projection, least_squares_values
from slimformer.decompose.sequence_stream import Grouping, Memory, stream_attention, whole_attention
from slimformer.nn.projected_keys import ProjectedKeys

STEPS, RATE, ROWS = 200, 0.2, 4
CG_STEPS, RIDGE = 30, 1e-2
GROUPED: dict[str, dict[str, Any]] = {
    "window": {},
    "mean": {"kind": "mean"},
    "plain": {"metric": False},
    "no-mass": {"mass": False},
    "cluster": {},
    "second": {"second_order": True},
}


@dataclass(frozen=True)
class Layer:
    """What one attention is given; there are no pads."""

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    causal: bool

    def exact(self) -> Tensor:
        group = self.query.shape[1] // self.key.shape[1]
        key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (self.key, self.value))
        return sdpa(self.query, key, value, is_causal=self.causal, scale=self.scale)

    def real(self) -> Tensor:
        return torch.ones(len(self.key), self.key.shape[2], dtype=torch.bool)


Attend = Callable[[int, Layer], Tensor]


@dataclass
class Fitted:
    """Where projections are fitted: the model, texts of its own, and how to put an attention into it."""

    model: Any
    texts: Tensor
    attention: Callable[[Attend], AbstractContextManager[None]]
    seconds: float = 0.0


def methods(name: str, k: int, window: int | None, n: int, fitted: Fitted) -> Attend:
    """The attention called `name`; projections are fitted first."""
    start = time.process_time()
    made = _made(name, k, window, n, fitted)
    fitted.seconds = time.process_time() - start
    return made


def _made(name: str, k: int, window: int | None, n: int, fitted: Fitted) -> Attend:
    if name in GROUPED:
        return grouped(Grouping(k=k, window=window or 256, **GROUPED[name]), only_window=name == "window")
    if name == "jl":
        R = jl_projection(n, k)[None].float()
        return lambda _, x: sdpa(x.query, R @ x.key, R @ x.value, scale=x.scale)
    if name == "oracle":
        return lambda _, x: oracle((x.query @ x.key.mT * x.scale).softmax(-1), x.value, k)
    made = _learned(k, n, fitted) if name == "learned" else _least_squares(k, n, fitted)
    return lambda i, x: made[i].attend(x.query, x.key, x.value, x.real(), scale=x.scale)


def oracle(P: Tensor, V: Tensor, k: int) -> Tensor:
    """P_k V with P_k the best approximation of rank k of this input's own P: what no k rows can know beforehand."""
    U, σ, W = torch.linalg.svd(P, full_matrices=False)
    return (U[..., :k] * σ[..., None, :k]) @ (W[..., :k, :] @ V)


def grouped(how: Grouping, *, only_window: bool = False) -> Attend:
    """Groups made from the input itself; causal where the attention is."""

    def attend(_: int, x: Layer) -> Tensor:
        if not x.causal:
            return whole_attention(x.query, x.key, x.value, x.real(), how, scale=x.scale)
        if only_window:
            return _sinks_and_window(x, how)
        memory = Memory.empty(x.key, x.value, x.scale)
        return stream_attention(x.query, x.key, x.value, x.real(), memory, how)[0]

    return attend


def _sinks_and_window(x: Layer, how: Grouping) -> Tensor:
    """The first tokens and the last half to whole window, nothing else (StreamingLLM): what groups must improve on."""
    n, block = x.key.shape[2], how.window // 2
    place = torch.arange(n)
    first = (place // block - 1).clamp_min(0) * block
    seen = (place[None] <= place[:, None]) & ((place[None] >= first[:, None]) | (place[None] < how.sinks))
    group = x.query.shape[1] // x.key.shape[1]
    key, value = (y.repeat_interleave(group, 1) for y in (x.key, x.value))
    return sdpa(x.query, key, value, seen, scale=x.scale)


def _learned(k: int, n: int, fitted: Fitted) -> list[ProjectedKeys]:
    """Adam on the relative squared error of every attention, the model frozen."""
    made = _projections("learned", k, n, fitted)
    optimizer = torch.optim.Adam([p for each in made for p in each.parameters()], lr=RATE)

    def see(i: int, x: Layer) -> Tensor:
        exact = x.exact()
        with torch.enable_grad():
            out = made[i].attend(x.query, x.key, x.value, x.real(), scale=x.scale)
            ((out - exact).square().sum() / exact.square().sum()).backward()
        return exact

    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RATE * (1 - 0.9 * step / STEPS)
        rows = fitted.texts.roll(-step * ROWS, 0)[:ROWS]
        with torch.no_grad(), fitted.attention(see):
            fitted.model(input_ids=rows)
        optimizer.step()
        optimizer.zero_grad()
    return made


@torch.no_grad()
def _least_squares(k: int, n: int, fitted: Fitted) -> list[ProjectedKeys]:
    """Mean pooling for keys, and the values by conjugate gradients, layer by layer."""
    made = _projections("least-squares", k, n, fitted)

    def see(i: int, x: Layer) -> Tensor:
        exact = x.exact()
        E, mass = made[i].key_rows(x.real())
        P = ((x.query * x.scale) @ (E @ x.key).mT + mass.log()[..., None, :]).softmax(-1)
        F = least_squares_values(P, x.value, exact, made[i].values.detach(), ridge=RIDGE, steps=CG_STEPS)
        made[i].values.copy_(F)
        return exact

    with fitted.attention(see):
        fitted.model(input_ids=fitted.texts)
    return made


def _projections(kind: str, k: int, n: int, fitted: Fitted) -> list[ProjectedKeys]:
    config = fitted.model.config
    return [ProjectedKeys(kind, config.num_attention_heads, k, n) for _ in range(config.num_hidden_layers)]
