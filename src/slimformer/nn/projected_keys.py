"""Keys and values projected along the sequence by matrices that are the same for every input (Linformer)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from slimformer.decompose.sequence import segments

FIXED = ("learned", "least-squares")
SINKS = 4
START = 8.0  # logit of a token's own segment: of k = 128 it has 96 % of its weight, so training starts at mean pooling


class ProjectedKeys(nn.Module):
    """softmax(s q·(E K) + log m) (F V) for up to `length` tokens, E and F of h × k × length.

    `learned`: logits A; a token belongs to group c with weight a_cj = softmax_c(A_cj), and over the real tokens
    m_c = Σ_j a_cj, E_cj = a_cj / m_c. So rows of E sum to one, pads have no part, and shorter sequences are defined. F
    has logits of its own. Both start at mean pooling.

    `least-squares`: E is mean pooling, F a matrix fitted in closed form (`decompose.sequence.least_squares_values`).
    """

    def __init__(self, kind: str, heads: int, k: int, length: int) -> None:
        super().__init__()
        self.kind, self.k, self.length = kind, k, length
        onto = _even(length, k)
        if kind == "learned":
            start = START * onto
            self.keys = nn.Parameter(start.expand(heads, k, length).clone())
            self.values = nn.Parameter(start.expand(heads, k, length).clone())
        else:
            self.values = nn.Parameter((onto / onto.sum(1, keepdim=True).clamp_min(1)).expand(heads, -1, -1).clone())

    def attend(self, query: Tensor, key: Tensor, value: Tensor, real: Tensor, *, scale: float) -> Tensor:
        """O(n k (4d)) for each head: two projections, scores and context."""
        E, mass = self.key_rows(real)
        V = self._value_rows(real) @ value
        scores = (query * scale) @ (E @ key).mT
        never = torch.finfo(scores.dtype).min / 4
        return (scores + mass.log().clamp_min(never)[..., None, :]).softmax(-1) @ V

    def key_rows(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """E (b × h × k × n) and log-mass weights (b × h × k) for these tokens."""
        n = self._fitting(real)
        share = (
            self.keys[..., :n].softmax(1)
            if self.kind == "learned"
            else _even(self.length, self.k)[None, :, :n].to(real.device)
        )
        return _rows(share.to(self.values.dtype), real)

    def _value_rows(self, real: Tensor) -> Tensor:
        n = self._fitting(real)
        if self.kind == "learned":
            return _rows(self.values[..., :n].softmax(1), real)[0]
        return self.values[..., :n] * real[:, None, None, :].to(self.values.dtype)

    def _fitting(self, real: Tensor) -> int:
        n, most = real.shape[1], self.values.shape[-1]
        if n > most:
            raise ValueError(f"{n} tokens, and the projections of this model are {most} long; cut the text")
        return n


def _even(length: int, k: int) -> Tensor:
    """Mean pooling: which token belongs to which of k groups (k × length). The first tokens have one each: much of the
    attention of trained models is parked there."""
    alone = min(SINKS, k - 1, length)
    rest = segments(torch.ones(1, length - alone, dtype=torch.bool), k - alone)[0] + alone
    return torch.nn.functional.one_hot(torch.cat([torch.arange(alone), rest]), k).mT.float()


def _rows(share: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    weight = share[None] * real[:, None, None, :].to(share.dtype)
    mass = weight.sum(-1)
    return weight / mass.clamp_min(torch.finfo(mass.dtype).tiny)[..., None], mass
