"""How much of other text lies outside what a calibration text spans."""

from __future__ import annotations

import pytest
import torch

from families import tiny
from slimformer.calibrate.narrowness import Narrowness, narrowness, outside
from slimformer.calibrate.text import token_batches
from slimformer.linalg.moments import Moments


def rows(*spreads: float, mean: float = 0.0, n: int = 400, seed: int = 0) -> Moments:
    X = torch.randn(n, len(spreads), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Moments.of(X * torch.tensor(spreads) + mean)


def test_what_is_shown_counts_nothing_and_what_is_not_counts_whole() -> None:
    seen = rows(1, 1, 0, 0)
    assert outside(seen, rows(1, 1, 0, 0, seed=1)) == 0
    assert outside(seen, rows(0, 0, 1, 1, seed=1)) == pytest.approx(1)
    assert outside(seen, rows(1, 0, 1, 0, seed=1)) == pytest.approx(0.5, abs=0.1)


def test_a_direction_that_is_hardly_shown_is_not_shown() -> None:
    """A trace of variance is what a tiny ridge took for all of it."""
    assert outside(rows(1, 1, 0.2, 0.2), rows(1, 1, 1, 1, seed=1)) == pytest.approx(0.5, abs=0.1)
    assert outside(rows(1, 1, 0.5, 0.5), rows(1, 1, 1, 1, seed=1)) == 0


def test_what_all_texts_have_in_common_hides_nothing() -> None:
    """Rows of a transformer share a mean that is longer than all that sets texts apart."""
    shares = [outside(rows(1, 1, 0, 0, mean=mean), rows(0, 0, 1, 1, mean=mean, seed=1)) for mean in (0.0, 30.0)]
    assert shares[1] == pytest.approx(1) == shares[0]


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
