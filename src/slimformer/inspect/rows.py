"""How many keys attention needs, head by head, and whether the same ones would do for every input.

For one input a head's P (n × n) has a best approximation of every rank k, whose row space belongs to that input. A
projection along the sequence that is the same for all inputs (Linformer) needs more: that the P of *all* inputs lie
near one row space. The theorem the method rests on does not ask for it, and is false as printed (`identity_error`).
Here both are measured on a user's model, with 0 < share < 1:

    k_squares     smallest k with Σ_{i≤k} σ_i² ≥ share Σ σ_i²: the error of the best approximation, mean over inputs
    k_sum         the same with Σ σ_i, as in the paper's figure; it flatters
    k_null        k_squares of softmax of independent normal logits with the same spread
    k_shared      smallest k for which the k best directions of one half of the inputs keep the share of the other half
    own, shared   what k = k_squares directions keep of ‖P‖² of that half: of each input its own, and the shared ones
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.decompose.sequence import jl_projection
from slimformer.inspect.nulls import allowed, iid_attention, logit_spread
from slimformer.linalg.spectra import energies, singular_values
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture
from slimformer.nn.long_context import Seen, observing

SHARE = 0.95
NUMBERS = ("k_squares", "k_sum", "k_null", "k_shared", "own", "shared")


@dataclass(frozen=True)
class RowSpaces:
    """One block at one length, by head; `n` is the length and so the most k can be."""

    block: int
    n: int
    k_squares: Float[Tensor, " h"]
    k_sum: Float[Tensor, " h"]
    k_null: Float[Tensor, " h"]
    k_shared: Float[Tensor, " h"]
    own: Float[Tensor, " h"]
    shared: Float[Tensor, " h"]

    def to_json(self) -> dict[str, Any]:
        numbers = {name: [round(float(x), 4) for x in getattr(self, name)] for name in NUMBERS}
        return {"block": self.block, "n": self.n, **numbers}


@dataclass
class _Tally:
    """Spectra of every sequence so far, and ΣPᵀP over the even and over the odd ones."""

    σ: list[Tensor] = field(default_factory=list)
    grams: list[Tensor] = field(default_factory=list)
    null: Tensor | None = None

    def add(self, P: Float[Tensor, "h n n"], *, causal: bool, seed: int) -> None:
        if not self.σ:
            mask = allowed(P.shape[-1], causal=causal)
            self.null = singular_values(iid_attention(logit_spread(P[None], mask).mean(0), mask, seed=seed))
            self.grams = [torch.zeros_like(P), torch.zeros_like(P)]
        self.grams[len(self.σ) % 2] += P.mT @ P
        self.σ.append(singular_values(P))


@torch.inference_mode()
def row_spaces(
    model: PreTrainedModel,
    architecture: Architecture,
    batches: Sequence[Batch],
    *,
    share: float = SHARE,
    seed: int = 0,
    progress: Progress = silent,
) -> list[RowSpaces]:
    """Every block that has attention, on sequences of one length without padding, one to a batch; two at least.

    Cost: one pass, and h O(n³) for every sequence and block; memory of two n × n matrices for each head of the model.
    """
    model.eval()
    tallies = [_Tally() for _ in range(architecture.n_blocks)]

    def observer(tally: _Tally) -> Callable[[Seen], None]:
        return lambda seen: tally.add(attention_matrix(seen)[0].float().cpu(), causal=seen.causal, seed=seed)

    cache = {"use_cache": False} if architecture.family.causal else {}
    with observing(model, [observer(tally) for tally in tallies]):
        for done, batch in enumerate(batches):
            model.base_model(**batch.to(model.device).inputs, **cache)
            progress("row spaces", done + 1, len(batches))
    return [_spaces(i, tally, share) for i, tally in enumerate(tallies) if tally.σ and len(tally.σ[0])]


def attention_matrix(seen: Seen) -> Float[Tensor, "b h n n"]:
    """P as the softmax of the scores of one call."""
    key = seen.key.repeat_interleave(seen.query.shape[1] // seen.key.shape[1], 1)
    scores = seen.query @ key.mT * seen.scale
    if seen.causal:
        scores = scores.masked_fill(~allowed(scores.shape[-1], causal=True).to(scores.device), -torch.inf)
    return scores.softmax(-1)


def shared_energies(fit: Float[Tensor, "h n n"], held: Float[Tensor, "h n n"]) -> Float[Tensor, "h n"]:
    """Share of ‖P‖² of the held inputs (ΣPᵀP) in the k best key directions of the fitted ones, for every k. O(h n³)."""
    V = torch.linalg.eigh(fit.double()).eigenvectors.flip(-1)
    energies = torch.einsum("hjk,hji,hik->hk", V, held.double(), V).cumsum(-1)
    return energies / energies[:, -1:]


def smallest(curve: Float[Tensor, "*b n"], share: float) -> Float[Tensor, "*b"]:
    """The first k at which a curve that rises to 1 has reached `share`."""
    return ((curve < share - 1e-9).sum(-1) + 1).clamp_max(curve.shape[-1]).float()


def identity_error(n: int, k: int, *, vectors: int = 64, seed: int = 0) -> float:
    """‖P RᵀR w − P w‖ / ‖P w‖ for P = I and random w: about √(n/k), where the paper's theorem promises less than 1.

    P = I is softmax of a large multiple of I, so it is attention; the theorem's proof bounds the error by ‖p‖‖w‖ for a
    row p, not by |p·w|, and never uses where P comes from.
    """
    R = jl_projection(n, k, seed=seed)
    w = torch.randn(n, vectors, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    return float((R.mT @ (R @ w) - w).norm() / w.norm())


def _spaces(i: int, tally: _Tally, share: float) -> RowSpaces:
    σ = torch.stack(tally.σ)
    k = smallest(energies(σ), share).mean(0)
    shared = shared_energies(*tally.grams)
    held = σ[1::2].square().sum(0).cumsum(-1)  # of the inputs whose share in the directions of the others is known
    own = held / held[:, -1:].clamp_min(torch.finfo(held.dtype).tiny)
    at = (k.ceil().long() - 1)[:, None]
    assert tally.null is not None
    return RowSpaces(
        i, σ.shape[-1], k, smallest(energies(σ, power=1), share).mean(0), smallest(energies(tally.null), share),
        smallest(shared, share), own.gather(1, at)[:, 0].float(), shared.gather(1, at)[:, 0].float(),
    )  # fmt: skip
