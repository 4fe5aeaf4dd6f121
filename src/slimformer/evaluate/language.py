"""Two language models on the same text, in one pass: perplexity of both, and how far their predictions are apart.

Whole vocabularies are compared in float64, so KL and agreement are taken at every `stride`-th position only: of every
window, so that they rest on all documents, not on the first few.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from slimformer.calibrate.text import Batch
from slimformer.evaluate.fidelity import Divergence, compared, divergence_of
from slimformer.evaluate.perplexity import Perplexity, device_of, evaluating, nll_of, summary_of, windows_of
from slimformer.evaluate.units import Tally


def language_pair(
    dense: nn.Module, small: nn.Module, batches: Sequence[Batch], *, stride: int = 1
) -> tuple[Perplexity, Perplexity, Divergence]:
    """Perplexity of `dense` and `small` on all predicted tokens, divergence at every `stride`-th of them.

    Cost: one pass of both models.
    """
    windows, documents, apart = [Tally(), Tally()], [Tally(), Tally()], Tally()
    seen = 0
    with evaluating(dense, small):
        for part in windows_of(dense, batches):
            counted = part.counted.cpu()
            there = {name: tensor.to(device_of(small)) for name, tensor in part.inputs.items()}
            logits = [dense(**part.inputs).logits, small(**there).logits]
            for own, by_window, by_document in zip(logits, windows, documents, strict=True):
                nll = nll_of(own, part)
                columns = torch.stack([nll, torch.ones_like(nll)], 1)
                by_window.add(part.numbers[:, None].expand_as(counted)[counted], columns)
                by_document.add(part.documents[counted], columns)
            chosen = _every(counted, stride, seen)
            seen += int(counted.sum())
            row, position, columns = compared(logits[0], logits[1], chosen.to(logits[0].device))
            apart.add(part.documents[row, position], columns)
    both = [summary_of(w.table(), d.table()) for w, d in zip(windows, documents, strict=True)]
    return both[0], both[1], divergence_of(apart.table())


def _every(counted: torch.Tensor, stride: int, seen: int) -> torch.Tensor:
    """Of the counted positions every `stride`-th, counting on from those seen before."""
    order = counted.flatten().cumsum(0).view_as(counted) + seen
    return counted & (order % stride == 0)
