"""What is damped can be factored, whatever the precision of the products behind it."""

import pytest
import torch

from slimformer.linalg.damped import damped, damping
from slimformer.linalg.moments import Moments


def second(n: int, d: int = 400, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Second moments of n rows of a layer with ReLU, about their mean."""
    X = torch.relu(torch.randn(n, 200, dtype=dtype) @ torch.randn(200, d, dtype=dtype) / 14 + 0.3)
    return Moments.of(X).second(centred=True)


@pytest.mark.parametrize("relative", [0.0, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("n", [40, 250, 4000])
def test_moments_of_any_number_of_rows_become_positive_definite(n, relative):
    C = second(n)
    assert float(torch.linalg.eigvalsh(damped(C, relative)).min()) >= damping(C, max(relative, 1e-12)) / 4
    L = torch.linalg.cholesky(damped(C, relative))
    assert torch.isfinite(L).all()


def test_products_in_single_precision_leave_eigenvalues_below_zero():
    """Without which the test above would say nothing."""
    C = second(120)
    assert torch.linalg.cholesky_ex(C + damping(C, 1e-6) * torch.eye(len(C))).info > 0


@pytest.mark.parametrize("relative", [1e-12, 1e-6, 1e-3])
def test_exact_moments_get_the_damping_asked_for(relative):
    C = second(120, dtype=torch.float64)
    added = damped(C, relative) - C
    assert torch.allclose(added, damping(C, relative) * torch.eye(len(C), dtype=torch.float64), rtol=1e-3, atol=1e-15)


def test_nothing_is_damped_too_and_nonsense_comes_to_an_end():
    assert torch.equal(damped(torch.zeros(3, 3, dtype=torch.float64), 0.0), 1e-12 * torch.eye(3, dtype=torch.float64))
    assert damped(torch.full((3, 3), torch.nan, dtype=torch.float64), 0.0).isnan().all()
