"""Spectra of attention matrices, head by head, at a chosen length, compared with attention that means nothing.

P (n × n) is what a head gives for one sequence of n real tokens. Reported for k = n/4, as in the figure of Linformer
(Wang et al., arXiv 2006.04768), with Σσ as there and with Σσ², which is the error of the best approximation:

    energy_sum       Σ_{i≤k} σ_i  / Σ σ          mean over sequences
    energy_squares   Σ_{i≤k} σ_i² / Σ σ²
    shared           tr(Vᵀ (Σ PᵀP) V) / tr(Σ PᵀP), V the k best directions of every other sequence, Σ over the others:
                     what one projection of the keys for all inputs could keep. It is what a fixed one needs.

Matrices are read off the model's own attention (its eager form), none is computed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.errors import TooFewTokens
from slimformer.inspect.nulls import allowed, iid_attention, logit_spread, low_rank_attention, shuffled_attention
from slimformer.linalg.spectra import effective_rank, energies, singular_values
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture
from slimformer.models.hooks import listening
from slimformer.models.ranks import heads_of
from slimformer.models.walk import forward, rehearse

PIXELS = 64  # a side of a map of mean attention at most
NULLS = ("iid", "low_rank", "shuffled")


@dataclass(frozen=True)
class HeadSpectra:
    """Spectra of a group of attention matrices, sequences × heads, boiled down: numbers by head, curves by layer."""

    energy_sum: Float[Tensor, " h"]
    energy_squares: Float[Tensor, " h"]
    effective_rank: Float[Tensor, " h"]  # of σ²
    effective_rank_sum: Float[Tensor, " h"]  # of σ
    curve_sum: Float[Tensor, " n"]
    curve_squares: Float[Tensor, " n"]

    @classmethod
    def of(cls, σ: Float[Tensor, "s h n"]) -> HeadSpectra:
        """Means over sequences; the curves over heads as well."""
        k = max(1, σ.shape[-1] // 4) - 1
        one, two = energies(σ, power=1), energies(σ)
        ranks = (effective_rank(σ).mean(0), effective_rank(σ, power=1).mean(0))
        return cls(one[..., k].mean(0), two[..., k].mean(0), *ranks, one.mean((0, 1)), two.mean((0, 1)))

    def to_json(self) -> dict[str, list[float]]:
        return {name: [round(float(x), 4) for x in value] for name, value in vars(self).items()}


@dataclass(frozen=True)
class BlockAttention:
    """The attention of one block at one length."""

    block: int
    real: HeadSpectra
    nulls: dict[str, HeadSpectra]
    shared: Float[Tensor, " h"] | None  # none with a single sequence
    spread: Float[Tensor, " h"]  # of the logits
    entropy: Float[Tensor, " h"]  # mean over rows, as a share of its maximum
    mean_map: Float[Tensor, "p p"]

    def to_json(self) -> dict[str, Any]:
        """As `slimformer inspect --json` prints it."""
        by_head = {"logit_spread": self.spread, "entropy": self.entropy}
        if self.shared is not None:
            by_head["shared"] = self.shared
        return {
            "block": self.block,
            **self.real.to_json(),
            **{name: [round(float(x), 4) for x in value] for name, value in by_head.items()},
            "nulls": {name: null.to_json() for name, null in self.nulls.items()},
            "mean_map": [[float(f"{x:.3g}") for x in row] for row in self.mean_map.tolist()],
        }


@torch.inference_mode()
def attention_spectra(
    model: PreTrainedModel,
    architecture: Architecture,
    batches: Sequence[Batch],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Iterator[BlockAttention]:
    """One block after the other, over sequences of one length without padding; blocks without heads are left out.

    Cost: one pass through the blocks, and 4 h O(n³) for every sequence; memory of one block's matrices.
    """
    model.eval()
    with _eager(model):
        streams = list(rehearse(model, architecture, batches))
        for visit in forward(model, architecture):
            i, matrices = visit.i, list[Tensor]()
            for stream in streams:
                with listening(model, outputs={heads_of(architecture, i).module: partial(_keep, matrices)}):
                    visit.advance(stream)
            progress("attention", i + 1, architecture.n_blocks)
            if matrices:  # a block that was cut to no heads has none
                site = heads_of(architecture, i)
                width = site.unit if site.fixed else site.writers[0].rows
                P = torch.cat(matrices)
                yield block_attention(i, P, width=width, causal=architecture.family.causal, seed=seed)


def block_attention(i: int, P: Float[Tensor, "s h n n"], *, width: int, causal: bool, seed: int = 0) -> BlockAttention:
    """All that is reported of one block's attention matrices."""
    n = P.shape[-1]
    mask = allowed(n, causal=causal)
    s = logit_spread(P, mask).mean(0)
    null = {
        "iid": iid_attention(s, mask, seed=seed)[None],
        "low_rank": low_rank_attention(s, mask, max(1, width), seed=seed)[None],
        "shuffled": shuffled_attention(P[0], mask, seed=seed)[None],
    }
    side = min(PIXELS, n)
    return BlockAttention(
        i,
        HeadSpectra.of(singular_values(P)),
        {name: HeadSpectra.of(singular_values(Q)) for name, Q in null.items()},
        shared_energy(P) if len(P) > 1 else None,
        s,
        _entropy(P, mask),
        adaptive_avg_pool2d(P.mean((0, 1))[None], (side, side))[0],
    )


def shared_energy(P: Float[Tensor, "s h n n"]) -> Float[Tensor, " h"]:
    """What the n/4 best key directions of the even sequences keep of ‖P‖² of the odd ones, head by head. O(h n³)."""
    k = max(1, P.shape[-1] // 4)
    fit, held = (torch.einsum("shij,shik->hjk", part, part).double() for part in (P[::2], P[1::2]))
    V = torch.linalg.eigh(fit).eigenvectors[..., -k:]
    energy = torch.einsum("hjk,hji,hik->h", V, held, V)
    return energy / held.diagonal(dim1=1, dim2=2).sum(1)


def full_rows(batches: Sequence[Batch], length: int, most: int) -> list[Batch]:
    """The first `most` sequences that have `length` real tokens, one to a batch; images all have."""
    chosen: list[Batch] = []
    for batch in batches:
        rows = next(iter(batch.inputs.values()))
        whole = [True] * len(rows) if batch.mask is None else (batch.mask.sum(1) == length).tolist()
        if batch.mask is not None and batch.mask.shape[1] != length:
            continue
        for j, full in enumerate(whole):
            if full and len(chosen) < most:
                mask = None if batch.mask is None else batch.mask[j : j + 1]
                chosen.append(Batch({name: x[j : j + 1] for name, x in batch.inputs.items()}, mask))
    if not chosen:
        raise TooFewTokens(
            f"no text of the data has {length:,} tokens, so there is no attention of that length; give a smaller "
            f"{option('lengths')} or longer texts"
        )
    return chosen


def _keep(matrices: list[Tensor], output: Any) -> None:
    """Of what attention gives, its matrices."""
    if output[1] is not None and output[1].shape[1]:
        matrices.append(output[1].float().cpu())


def _entropy(P: Float[Tensor, "s h n n"], mask: Tensor) -> Float[Tensor, " h"]:
    count = mask.sum(1)
    several = count > 1
    rows = -torch.xlogy(P, P).sum(-1)[..., several] / count[several].log()
    return rows.mean((0, 2))


@contextmanager
def _eager(model: PreTrainedModel) -> Iterator[None]:
    """Let attention hand out its matrices; fused kernels never have them."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
