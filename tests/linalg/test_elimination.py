"""Backward elimination drops, one at a time, what least squares on the rest misses least."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from slimformer.linalg import elimination
from slimformer.linalg.elimination import eliminate, eliminate_blocks

RIDGE = 1e-6


def problem(d: int = 9, m: int = 4, n: int = 60) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows X, their second moments C, and a map W that reads them."""
    X = torch.randn(n, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64)
    return X, X.mT @ X / n, torch.randn(m, d, dtype=torch.float64)


def with_ridge(X, ridge):
    """Rows whose second moments are damped: d more of them, √(n λ) in one coordinate each."""
    scale = ridge * X.square().mean() * len(X)
    return torch.cat([X, scale.sqrt() * torch.eye(X.shape[1], dtype=torch.float64)])


def lost(X, W, kept, n) -> float:
    """min over A of Σ ‖W x − A x_J‖² / n, by least squares on the rows themselves."""
    Y, Z = (X @ W.mT).numpy(), X[:, list(kept)].numpy()
    A = np.linalg.lstsq(Z, Y, rcond=None)[0] if len(kept) else np.zeros((0, Y.shape[1]))
    return float(np.square(Y - Z @ A).sum() / n)


def brute_force(X, W, unit=1, allowed=lambda S: S, ridge=RIDGE) -> tuple[list[int], list[float]]:
    """Greedy by trying everything: units best first, and what each cost when it went."""
    n, X = len(X), with_ridge(X, ridge)
    alive, gone, costs = list(range(X.shape[1] // unit)), [], []
    while alive:
        now = lost(X, W, coordinates(alive, unit), n)
        after = {g: lost(X, W, coordinates([u for u in alive if u != g], unit), n) for g in allowed(alive)}
        best = min(after, key=after.get)
        alive.remove(best)
        gone.append(best)
        costs.append(after[best] - now)
    return gone[::-1], costs[::-1]


def coordinates(units, unit):
    return list(itertools.chain.from_iterable(range(u * unit, (u + 1) * unit) for u in units))


@pytest.mark.parametrize("m", [1, 4, 20])
@pytest.mark.parametrize("ridge", [1e-6, 1e-2])
def test_elimination_is_greedy(m, ridge):
    for seed in range(4):
        torch.manual_seed(seed)
        X, C, W = problem(m=m)
        order, costs = eliminate(C, W, ridge=ridge)
        expected, expected_costs = brute_force(X, W, ridge=ridge)
        assert order.tolist() == expected
        assert costs.tolist() == pytest.approx(expected_costs, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("block", [1, 2, 3, 9])
def test_delayed_updates_change_nothing(block, monkeypatch):
    _, C, W = problem()
    order, costs = eliminate(C, W, ridge=RIDGE)
    monkeypatch.setattr(elimination, "BLOCK", block)
    blocked, blocked_costs = eliminate(C, W, ridge=RIDGE)
    assert blocked.tolist() == order.tolist()
    assert blocked_costs.tolist() == pytest.approx(costs.tolist(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("unit", [1, 2, 3])
def test_elimination_of_blocks_is_greedy(unit):
    for seed in range(4):
        torch.manual_seed(seed)
        X, C, W = problem(d=12)
        assert eliminate_blocks(C, W, unit=unit, allowed=lambda S: S, ridge=RIDGE) == brute_force(X, W, unit)[0]


def test_elimination_of_blocks_obeys():
    X, C, W = problem(d=12)

    def by_turns(S):
        return [u for u in S if u % 2 == len(S) % 2]

    order = eliminate_blocks(C, W, unit=2, allowed=by_turns, ridge=RIDGE)
    assert order == brute_force(X, W, 2, by_turns)[0]
    assert [u % 2 for u in order] == [1, 0, 1, 0, 1, 0]


def test_costs_add_up_to_everything():
    X, C, W = problem()
    expected = float((X @ W.mT).square().sum() / len(X))
    assert float(eliminate(C, W, ridge=0.0)[1].sum()) == pytest.approx(expected, rel=1e-5)


def test_what_is_dead_or_unread_goes_first_and_costs_nothing():
    X, _, W = problem()
    X[:, 3], W[:, 5] = 0, 0
    order, costs = eliminate(X.mT @ X / len(X), W, ridge=RIDGE)
    assert set(order[-2:].tolist()) == {3, 5}
    assert costs[-2:].tolist() == pytest.approx([0, 0], abs=1e-4)


def test_of_two_that_are_the_same_one_goes_for_free():
    X, _, W = problem()
    X[:, 7] = -2 * X[:, 2]
    order, costs = eliminate(X.mT @ X / len(X), W, ridge=RIDGE)
    assert int(order[-1]) in {2, 7}
    assert float(costs[-1]) < 1e-3 * float(costs[-2])


def singular() -> dict[str, torch.Tensor]:
    X = torch.randn(400, 96, dtype=torch.float64).relu()
    copies, sizes = X.clone(), torch.logspace(-4, 2, 96, dtype=torch.float64)
    copies[:, 48:] = -3 * copies[:, :48]
    return {"copies": copies, "copies of all sizes": copies * sizes, "few rows": X[:30], "nothing": 0 * X}


@pytest.mark.parametrize("ridge", [0.0, 1e-9, 1e-3])
@pytest.mark.parametrize("kind", ["copies", "copies of all sizes", "few rows", "nothing"])
def test_singular_moments_give_an_order_and_finite_costs(kind, ridge):
    X = singular()[kind]
    C, W = X.mT @ X / len(X), torch.randn(20, 96, dtype=torch.float64)
    order, costs = eliminate(C, W, ridge=ridge)
    assert sorted(order.tolist()) == list(range(96))
    assert torch.isfinite(costs).all()
    heads = eliminate_blocks(C, W, unit=8, allowed=lambda S: S, ridge=ridge)
    assert sorted(heads) == list(range(12))


def test_only_the_gram_matrix_of_the_reader_counts():
    _, C, W = problem(m=5)
    Q = torch.linalg.qr(torch.randn(30, 5, dtype=torch.float64)).Q
    assert eliminate(C, Q @ W, ridge=RIDGE)[0].tolist() == eliminate(C, W, ridge=RIDGE)[0].tolist()


def test_the_order_does_not_depend_on_scales():
    _, C, W = problem()
    assert eliminate(1e-9 * C, 1e6 * W, ridge=1e-3)[0].tolist() == eliminate(C, W, ridge=1e-3)[0].tolist()


class Work(TorchDispatchMode):
    """Counts multiplications: d³ for a factorisation, sizes multiplied for a product, elements for all else."""

    def __init__(self) -> None:
        super().__init__()
        self.factorisations, self.done = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0]
        sizes = [tuple(each.shape) for each in args if isinstance(each, torch.Tensor)]
        if "cholesky" in name or "solve" in name or "inv" in name:
            self.factorisations += 1
            self.done += sizes[0][-1] ** 3
        elif name in ("mm", "addmm", "addmm_"):
            self.done += math.prod(sizes[-2]) * sizes[-1][1]
        else:
            self.done += max(map(math.prod, sizes), default=0)
        return func(*args, **(kwargs or {}))


def test_one_factorisation_serves_all_and_the_work_is_cubic():
    """Solving again for every coordinate would be d⁴: twice the width, sixteen times the work."""
    found = []
    for d in (192, 384):
        X = torch.randn(2 * d, d, dtype=torch.float64).relu()
        C, W = X.mT @ X / len(X), torch.randn(d // 4, d, dtype=torch.float64)
        with Work() as work:
            eliminate(C, W, ridge=1e-3)
        found.append(work)
    assert found[0].factorisations == found[1].factorisations <= 2
    assert found[1].done < 9 * found[0].done
