"""Neurons with a linear path beside them: errors are those of the rows, and nothing is lost that could be had."""

import pytest
import torch

from slimformer.decompose import Width
from slimformer.decompose.bypass import (
    Joint,
    bypass,
    bypass_curves,
    errors_at_every_rank,
    linear_ranks,
    on_path,
    ranks,
    widths,
)
from slimformer.decompose.reduction import curve, select
from slimformer.errors import RankTooHigh
from slimformer.linalg.moments import Moments

N, D, M = 40, 16, 12
RIDGE = 1e-3
with_and_without_mean = pytest.mark.parametrize("bias", [True, False], ids=["mean absorbed", "mean kept"])
in_both_metrics = pytest.mark.parametrize("metric", [False, True], ids=["squares", "a metric"])


def problem(bias: bool, metric: bool, *, linear: bool = False, rows: int = 600):
    """Rows of [h; x], of which the first two thirds are fitted, an order of neurons, and a reader."""
    g = torch.Generator().manual_seed(int(bias) + 2 * int(metric))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    X = draw(rows, D) @ draw(D, D) / 3 + 0.3
    H = X @ draw(N, D).mT / 3 + 0.2
    Z = torch.cat([H if linear else torch.relu(H), X], 1)
    root = torch.linalg.cholesky(torch.cov(draw(M, 60))).mT if metric else None
    fit, held = Moments.of(Z[: 2 * rows // 3]), Moments.of(Z[2 * rows // 3 :])
    return Joint("neurons", draw(M, N), fit, held, bias, root), torch.randperm(N, generator=g).tolist(), Z


def measured(joint, found, Z) -> float:
    """Mean squared error of the rows Z, in the metric."""
    H, X = Z[:, :N], Z[:, N:]
    missed = H @ joint.W.mT - H[:, found.J] @ found.N.mT - X @ found.A.mT @ found.B.mT - found.c
    missed = missed if joint.root is None else missed @ joint.root.mT
    return float(missed.square().sum(1).mean())


@with_and_without_mean
@in_both_metrics
def test_curves_say_what_the_rows_lose(bias, metric):
    joint, order, Z = problem(bias, metric)
    held = Z[-joint.held.count :]
    for r, found in bypass_curves(joint, order, ridge=RIDGE).items():
        for k, error in zip(found.sizes, found.held, strict=True):
            assert measured(joint, bypass(joint, order, k, r, ridge=RIDGE), held) == pytest.approx(error, rel=1e-9)


@with_and_without_mean
def test_without_a_path_neurons_are_what_they_were(bias):
    joint, order, _ = problem(bias, metric=False)
    fit, held = (Moments(m.count, m.sum[:N], m.gram[:N, :N]) for m in (joint.fit, joint.held))
    width = Width("neurons", joint.W, fit, held, bias=bias)
    known = curve(width, "any", order, ridge=RIDGE)
    for k, fit, held in errors_at_every_rank(joint, order, widths(N), ridge=RIDGE):
        assert float(held[0]) == pytest.approx(known.held[k], rel=1e-9)
        assert bool((fit[1:] <= fit[:-1] * (1 + 1e-12)).all())
        found, alone = bypass(joint, order, k, 0, ridge=RIDGE), select(width, order, k, ridge=RIDGE)
        torch.testing.assert_close(found.N, joint.W @ alone.E)
        torch.testing.assert_close(found.c, joint.W @ alone.c)


@in_both_metrics
def test_the_error_is_the_energy_discarded(metric):
    """Of the regression of what neurons leave on what they leave of the input, done here on the rows."""
    joint, order, Z = problem(True, metric)
    k, fitted = 16, Z[: joint.fit.count]
    centred = fitted - fitted.mean(0)
    kept = centred[:, order[:k]]
    y = centred[:, :N] @ joint.seen.mT
    (y, x) = (part - kept @ torch.linalg.lstsq(kept, part).solution for part in (y, centred[:, N:]))
    explained = x @ torch.linalg.lstsq(x, y).solution
    σ = torch.linalg.svdvals(explained) / len(x) ** 0.5
    errors = {k: fit for k, fit, _ in errors_at_every_rank(joint, order, (k,), ridge=1e-12)}[k]
    left = [float((y - explained).square().sum(1).mean() + σ[r:].square().sum()) for r in range(M + 1)]
    torch.testing.assert_close(errors, torch.tensor(left, dtype=torch.float64), rtol=1e-6, atol=1e-9)


@with_and_without_mean
def test_what_is_linear_is_replaced_exactly(bias):
    joint, order, Z = problem(bias, metric=False, linear=True)
    if not bias:  # the input has no constant that could carry the neurons' biases
        Z[:, :N] -= 0.2
        joint = Joint("neurons", joint.W, Moments.of(Z[:400]), Moments.of(Z[400:]))
    found = bypass(joint, order, 0, M, ridge=1e-12)
    assert measured(joint, found, Z) <= 1e-9 * float((Z[:, :N] @ joint.W.mT).square().sum(1).mean())


def test_both_are_fitted_together():
    """A path fitted to what neurons leave, without fitting these again, is worse."""
    joint, order, Z = problem(True, metric=False)
    fitted = Z[: joint.fit.count]
    together, alone = (bypass(joint, order, 16, r, ridge=1e-9) for r in (4, 0))
    mean = fitted.mean(0)
    missed = (fitted - mean)[:, :N] @ joint.W.mT - (fitted - mean)[:, :N][:, alone.J] @ alone.N.mT
    x = fitted[:, N:] - mean[N:]
    explained = x @ torch.linalg.lstsq(x, missed).solution
    U = torch.linalg.svd(explained, full_matrices=False).Vh[:4]
    one_by_one = float((missed - explained @ U.mT @ U).square().sum(1).mean())
    assert measured(joint, together, fitted) < one_by_one


def test_moments_of_the_path_are_those_of_its_rows():
    joint, order, Z = problem(False, metric=False)
    found = bypass(joint, order, 8, 4, ridge=RIDGE)
    rows = Z[: joint.fit.count]
    known = Moments.of(torch.cat([rows[:, :N][:, found.J], rows[:, N:] @ found.A.mT], 1))
    again = on_path(joint.fit, found.J, found.A)
    torch.testing.assert_close((again.sum, again.gram), (known.sum, known.gram))
    sizes = again.gram.diagonal()[8:] / again.count
    assert float((sizes - 1).abs().max()) < 0.01  # of unit size, but for the ridge


def test_sizes_are_legal_and_too_few_tokens_are_refused():
    for n, d in ((48, 32), (768, 288), (1536, 384), (20, 8)):
        assert all(0 <= k < n and k % 8 == 0 for k in widths(n)) and widths(n)[0] == 0
        assert all(0 < r <= d for r in ranks(d)) and set(ranks(d)) <= set(linear_ranks(d)) and d in linear_ranks(d)
    joint, order, _ = problem(True, metric=False, rows=24)
    with pytest.raises(RankTooHigh, match="16 calibration tokens"):
        bypass(joint, order, 16, 4, ridge=RIDGE)
