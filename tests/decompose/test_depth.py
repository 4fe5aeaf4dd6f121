"""Runs of blocks and the maps that stand for them: exact where they can be, the best runs of all."""

import itertools

import pytest
import torch

from slimformer.decompose.depth import (
    Map,
    Rows,
    best_runs,
    cosine,
    identity,
    least_squares,
    mean_cosine,
    relative_error,
)

D = 12


def rows(n: int, *, seed: int, noise: float, scale: bool = False) -> Rows:
    """Streams for which a map T, c is right, up to noise; with `scale` also up to a factor of every row."""
    g, shared = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    y, m, e = (torch.randn(n, D, generator=g, dtype=torch.float64) for _ in range(3))
    T, c = (
        torch.randn(D, D, generator=shared, dtype=torch.float64),
        torch.randn(D, generator=shared, dtype=torch.float64),
    )
    l = y + m @ T.mT + c + noise * e
    return Rows(y, m, l * torch.rand(n, 1, generator=g, dtype=torch.float64).add(0.2) if scale else l)


def test_an_exact_map_is_found():
    fit, held = rows(300, seed=0, noise=0.0), rows(100, seed=1, noise=0.0)
    assert relative_error(held, least_squares(fit, held, bias=True)) < 1e-6
    assert relative_error(held, identity(D)) > 0.1


def test_directions_are_found_whatever_the_lengths():
    """Where every row has a length of its own, least squares is biased and the cosine is not."""
    fit, held = (rows(n, seed=seed, noise=0.0, scale=True) for n, seed in ((600, 0), (200, 1)))
    start = least_squares(fit, held, bias=True)
    found = cosine(fit, held, start, bias=True)
    assert 1 - mean_cosine(held, found) < 0.05 * (1 - mean_cosine(held, start))


def test_the_cosine_is_at_rest_where_its_gradient_vanishes():
    fit = rows(400, seed=2, noise=0.5)
    found = cosine(fit, fit, least_squares(fit, fit, bias=True), bias=True)
    T, c = found.T.clone().requires_grad_(), found.c.clone().requires_grad_()
    torch.cosine_similarity(fit.l, Map(T, c).after(fit), dim=1).mean().backward()
    far = identity(D)
    T0 = far.T.clone().requires_grad_()
    torch.cosine_similarity(fit.l, Map(T0, far.c).after(fit), dim=1).mean().backward()
    assert float(T.grad.norm()) < 0.01 * float(T0.grad.norm())


def test_no_map_is_taken_that_turns_held_rows_away():
    fit, held = rows(20, seed=3, noise=3.0), rows(100, seed=4, noise=3.0)
    start = least_squares(fit, held, bias=True)
    assert mean_cosine(held, cosine(fit, held, start, bias=True)) >= mean_cosine(held, start)


@pytest.mark.parametrize("gone", [0, 1, 3, 5])
def test_the_runs_are_the_best_of_all(gone):
    """Against every set of blocks that could go; a run is all that goes after a block that stays."""
    blocks, g = 7, torch.Generator().manual_seed(gone)
    errors = {(i, n): float(torch.rand((), generator=g)) * n for i in range(blocks) for n in range(1, blocks - i)}
    found = best_runs(errors, blocks, gone)
    assert sum(n for _, n in found) == gone

    def runs(dropped: tuple[int, ...]) -> list[tuple[int, int]]:
        kept = [*(i for i in range(blocks) if i not in dropped), blocks]
        return [(a, b - a - 1) for a, b in itertools.pairwise(kept) if b - a > 1]

    least = min(sum(errors[run] for run in runs(d)) for d in itertools.combinations(range(1, blocks), gone))
    assert sum(errors[run] for run in found) == pytest.approx(least)
