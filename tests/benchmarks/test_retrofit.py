"""Attention over a projection, as the comparisons of fewer keys have it."""

import benched  # noqa: F401  puts the benchmarks on the path
import torch

from retrofit_methods import oracle


def test_the_oracle_is_the_best_of_its_rank():
    P = torch.randn(2, 3, 24, 24, dtype=torch.float64).softmax(-1)
    V = torch.randn(2, 3, 24, 8, dtype=torch.float64)
    torch.testing.assert_close(oracle(P, V, 24), P @ V)
    eye = torch.eye(24, dtype=torch.float64).expand(2, 3, 24, 24)
    left = (oracle(P, eye, 4) - P).square().sum((-2, -1))
    torch.testing.assert_close(left, torch.linalg.svdvals(P)[..., 4:].square().sum(-1))
