"""What the tables at both ends are used for: how often each row, and with what.

The head h ↦ W h reads states with second moments E h hᵀ. A small change Δ of W moves the outputs by the divergence

    KL ≈ ½ Var_v (Δ h)_v ≤ ½ Σ_v p_v (Δ h)_v²,     on average ½ Σ_v f_v Δ_v (E h hᵀ) Δ_vᵀ nats a token,

where p_v, the probability of token v, is taken by its mean, the frequency f_v. The embedding writes its rows, each
with the frequency of its token in the text; with the Fisher metric G = E g gᵀ there, g being gradients of −log p, its
change costs ½ Σ_v f_v Δ_v G Δ_vᵀ (`decompose.factored`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.counts import tokens_in_batches
from slimformer.calibrate.metric import ROWS, first_tokens, surprise
from slimformer.calibrate.text import Batch
from slimformer.linalg.moments import Moments, Sums
from slimformer.models.hooks import listening, nudged
from slimformer.models.outputs import outcomes
from slimformer.models.walk import real_rows

SEEN = 0.9  # of the weight goes to tokens as often as they occur, the rest to all alike


def token_shares(batches: Sequence[Batch], rows: int) -> Tensor:
    """How often every row of a table is used, as shares of all tokens; none is zero."""
    counts = torch.zeros(rows, dtype=torch.float64)
    for token, count in tokens_in_batches(batches).items():
        counts[token] = count
    return SEEN * counts / counts.sum().clamp_min(1) + (1 - SEEN) / rows


@torch.no_grad()
def read_by_head(model: PreTrainedModel, batches: Sequence[Batch]) -> tuple[Moments, Tensor]:
    """Second moments of what the head of words reads at real positions, and the mean probability it gives every token.

    Cost: a forward pass.
    """
    head: Any = model.get_output_embeddings()
    sums, p, mask = Sums(), torch.zeros(len(head.weight), dtype=torch.float64), None

    def add(states: Tensor) -> None:
        sums.add(real_rows(states, mask))

    with listening(model, inputs={_name(model, head): add}):
        for batch in batches:
            for i in range(0, len(batch.inputs["input_ids"]), ROWS):
                here = batch.rows(slice(i, i + ROWS)).to(model.device)
                mask = here.mask
                scores, counted = outcomes(model(**here.inputs), mask)
                p += scores[counted].float().softmax(-1).sum(0).cpu()
    return sums.moments(), p / p.sum()


def embedding_metric(model: PreTrainedModel, batches: Sequence[Batch], *, seed: int) -> Tensor:
    """G = E g gᵀ where the embedding writes, an output, on the first tokens. Cost: a forward and a backward pass."""
    generator, table = torch.Generator().manual_seed(seed), model.get_input_embeddings()
    total, outputs = Moments.zero(model.config.get_text_config().hidden_size), 0
    for batch in first_tokens(batches):
        here = batch.to(model.device)
        with torch.enable_grad(), nudged(model, [name := _name(model, table)]) as zeros:
            loss, count = surprise(model(**here.inputs), here.mask, generator)
            (gradient,) = torch.autograd.grad(loss, zeros[name])
        total, outputs = total + Moments.of(real_rows(gradient, here.mask)), outputs + count
    return total.gram / max(outputs, 1)


def _name(model: PreTrainedModel, end: Any) -> str:
    return next(name for name, module in model.named_modules() if module is end)
