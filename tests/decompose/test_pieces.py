"""Pieces that stand for words: the solution is that of least squares."""

import numpy as np
import pytest
import torch

from slimformer.decompose.pieces import Evidence, refit_pieces, shares

WRITTEN = [(0, 1), (1, 2, 1), (4, 3), (0, 1)]


def _case() -> tuple[torch.Tensor, torch.Tensor, Evidence]:
    generator = torch.Generator().manual_seed(0)
    E, words = (torch.randn(n, 3, generator=generator) for n in (6, len(WRITTEN)))
    n = np.array([4.0, 2.0, 1.0, 7.0, 3.0, 5.0])
    return E, words, Evidence(shares(WRITTEN, 6), np.array([2.0, 1.0, 3.0, 1.0]), n)


def test_it_is_the_solution_of_the_stacked_least_squares() -> None:
    E, words, evidence = _case()
    M, ridge = torch.from_numpy(evidence.M.toarray()), 0.3
    f, n = (torch.from_numpy(each).sqrt()[:, None] for each in (evidence.f, evidence.n))
    rows = torch.cat([f * M, ridge**0.5 * n * torch.eye(6, dtype=torch.float64)])
    target = torch.cat([f * (words.double() - M @ E.double()), torch.zeros(6, 3).double()])
    expected = E.double() + torch.linalg.lstsq(rows, target).solution
    assert torch.allclose(refit_pieces(E, words, evidence, ridge), expected)


@pytest.mark.parametrize("ridge", [1.0, 1e-2])
def test_what_stands_for_no_word_stays(ridge: float) -> None:
    E, words, evidence = _case()
    assert torch.equal(refit_pieces(E, words, evidence, ridge)[5], E[5].double())


def test_words_come_closer_the_cheaper_it_is_to_move() -> None:
    E, words, evidence = _case()
    M = torch.from_numpy(evidence.M.toarray())
    errors = [float((M @ refit_pieces(E, words, evidence, r) - words).square().sum()) for r in (1e9, 1.0, 1e-2)]
    assert errors[0] > errors[1] > errors[2]
