"""How much of other text lies outside what a calibration text spans."""

from __future__ import annotations

import pytest
import torch

from families import tiny
from slimformer.calibrate.narrowness import Narrowness, narrowness, outside
from slimformer.calibrate.text import token_batches


def test_what_is_spanned_counts_nothing_and_what_is_not_counts_whole() -> None:
    C = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64))
    assert outside(C, C) == pytest.approx(1e-3, rel=1)
    assert outside(C, torch.diag(torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64))) == pytest.approx(1, abs=1e-9)


def test_a_text_of_few_words_is_narrow_for_a_text_of_many() -> None:
    model = tiny("llama")
    generator = torch.Generator().manual_seed(0)
    few, same, many = (
        token_batches(torch.randint(low, high, (32, 16), generator=generator))
        for low, high in ((3, 7), (3, 7), (3, 60))
    )
    shares = narrowness(model, few, same, many)
    assert len(shares.home) == model.config.num_hidden_layers
    assert shares.narrow and not narrowness(model, many, many, few).narrow
    assert "few is narrow" in shares.line("few")


def test_one_line_says_how_much_and_where() -> None:
    line = Narrowness((0.1, 0.1), (0.2, 0.6)).line("mine.txt")
    assert line.startswith("mine.txt is narrow: 40%") and "60% in block 1" in line and "\n" not in line
