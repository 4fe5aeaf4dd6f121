"""Texts as the GPTQ line of papers cuts them, so that perplexities can be compared with theirs.

| task      | rows                      | text                                                          |
|-----------|---------------------------|---------------------------------------------------------------|
| wikitext2 | test                      | rows joined by two line ends                                  |
| ptb       | validation                | sentences joined by two line ends                             |
| ptb-new   | test                      | sentences joined by a space                                   |
| c4        | first shard of validation | 256 windows: a random row that is long enough, a random place |
| c4-new    | first shard of validation | first 1100 rows joined by a space, at most 256 windows        |

The text is tokenized in one piece with the special tokens the tokenizer adds by itself and cut into windows of
`seq_len` (2048 in the papers) side by side; what is left over is dropped. Every window is read on its own and its first
token is not predicted. Windows are equally long, so the mean over windows the papers take is the mean over tokens.

References: Frantar et al. 2023 (GPTQ); Frantar, Alistarh 2023 (SparseGPT).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import TooFewTokens
from slimformer.messages.words import option

WINDOWS = 256
ROWS = 1100  # of C4, enough for 256 windows of 2048 tokens
JOINED = {"wikitext2": "\n\n", "ptb": "\n\n", "ptb-new": " ", "c4-new": " "}


def token_windows(task: str, rows: Sequence[str], tokenizer: Any, seq_len: int) -> Tensor:
    """Windows × seq_len, the same for every model with that tokenizer."""
    if task == "c4":
        return _drawn(rows, tokenizer, seq_len)
    text = JOINED[task].join(rows[:ROWS] if task == "c4-new" else rows)
    stream = _encoded(text, tokenizer)
    if task == "c4-new":
        stream = stream[: WINDOWS * seq_len]
    count = len(stream) // seq_len
    if count == 0:
        raise TooFewTokens(
            f"the text has {len(stream):,} tokens, less than one window of {seq_len:,}; lower {option('seq_len')}"
        )
    return stream[: count * seq_len].view(count, seq_len)


def _drawn(rows: Sequence[str], tokenizer: Any, seq_len: int) -> Tensor:
    """Windows at random places of random rows, the draws being those of the papers (Mersenne twister, seed 0)."""
    draw = random.Random(0)
    known: dict[int, Tensor] = {}
    windows: list[Tensor] = []
    while len(windows) < WINDOWS:
        i = draw.randint(0, len(rows) - 1)
        if i not in known:
            known[i] = _encoded(rows[i], tokenizer)
        if len(known) == len(rows) and max(map(len, known.values())) < seq_len:
            raise TooFewTokens(f"none of the {len(rows):,} documents has {seq_len:,} tokens; lower {option('seq_len')}")
        stream = known[i]
        if len(stream) >= seq_len:
            # a row of exactly one window is taken whole; the released programs stop there with an error
            start = draw.randint(0, len(stream) - seq_len - 1) if len(stream) > seq_len else 0
            windows.append(stream[start : start + seq_len])
    return torch.stack(windows)


def _encoded(text: str, tokenizer: Any) -> Tensor:
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"], dtype=torch.long)
