"""Pieces that stand for words that are gone: refitted on a text, chosen on the select split, never worse there.

The embeddings of pieces move towards those of the words they are written for (`decompose.pieces`); how far is chosen by
what the model then does to whole texts, and leaving them as they are is among the choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import CHARACTERS, Data, first_characters
from slimformer.calibrate.rewritten import rewritten
from slimformer.decompose.pieces import Evidence, refit_pieces, shares
from slimformer.evaluate.by_text import compare_texts
from slimformer.evaluate.elsewhere import LOSSES
from slimformer.models.load import Loaded
from slimformer.rewrite.surgery import set_table

RIDGES = (1.0, 0.1, 0.01)  # how dear it is to move a piece, against a word as frequent
CHOOSING = 4096  # tokens, about, on which strengths are compared


def refitted(
    dense: Loaded, small: Loaded, order: Sequence[int], documents: Iterable[Document], data: Data
) -> tuple[Loaded, dict[str, Any]]:
    """The smaller model with the embeddings that do best, and what was tried. Cost: five passes over some texts."""
    texts = first_characters(data.texts["select"], CHARACTERS * CHOOSING)
    result = rewritten(documents, dense.processor, small.processor, order)
    table: Any = dense.model.get_input_embeddings()
    E, written = table.weight.detach().cpu(), list(result.words)
    M = shares([pieces for _, pieces in written], len(order))
    f = np.array([result.words[word] for word in written], dtype=np.float64)
    n = np.array([result.pieces[piece] for piece in range(len(order))], dtype=np.float64)
    words, pieces = E[torch.tensor([token for token, _ in written], dtype=torch.long)], E[torch.tensor(list(order))]
    candidates = {"none": small}
    losses = {"none": loss(dense, small, texts, data.seq_len)}
    for ridge in RIDGES if written else ():
        moved = replace(small, model=deepcopy(small.model))
        set_table(moved.model, refit_pieces(pieces, words, Evidence(M, f, n), ridge))
        candidates[f"{ridge:g}"], losses[f"{ridge:g}"] = moved, loss(dense, moved, texts, data.seq_len)
    chosen = min(losses, key=lambda name: losses[name])
    return candidates[chosen], {"ridge": chosen, "losses": losses, "words": len({token for token, _ in written})}


def loss(dense: Loaded, small: Loaded, texts: Sequence[Document], seq_len: int) -> float:
    """What the smaller model loses on whole texts: bits per byte, KL, or 1 − cosine of pooled states."""
    metrics = {metric.name: metric for metric in compare_texts(dense, small, texts, seq_len)}
    metric = metrics[next(name for name in LOSSES if name in metrics)]
    change = metric.small - (metric.dense or 0.0)
    return change if metric.better == "lower" else -change
