"""How linear a feed-forward part is said to be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from families import MODEL_TYPES, tiny, tiny_batches
from slimformer.inspect.linearity import how_linear, linearity
from slimformer.linalg.pairs import Pairs
from slimformer.models import describe


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_no_part_is_more_than_linear_and_held_out_data_are_harder(model_type):
    model = tiny(model_type)
    found = list(linearity(model, describe(model), tiny_batches(model, 1), tiny_batches(model, 2, seed=1)))
    assert [each.block for each in found] == [0, 1, 2]
    assert all(each.r2 < each.r2_fit < 1 for each in found)  # few tokens: the map has learnt some by heart
    assert all(0 <= each.rank95 <= 1 for each in found)


def test_a_linear_part_is_found_to_be_linear_and_the_others_are_not():
    model = tiny("opt")
    architecture = describe(model)
    model.get_submodule(architecture.blocks[1].path).activation_fn = nn.Identity()
    found = list(linearity(model, architecture, tiny_batches(model, 8), tiny_batches(model, 2, seed=1)))
    assert found[1].r2 == pytest.approx(1, abs=1e-3)
    assert max(found[0].r2, found[2].r2) < 0.99


def test_the_rank_is_that_of_what_is_linear():
    X = torch.randn(4000, 16).double()
    Y = X[:, :3] @ torch.randn(3, 16).double() + 0.1 * torch.randn(4000, 16).double()
    found = how_linear(0, Pairs.of(X[:3000], Y[:3000]), Pairs.of(X[3000:], Y[3000:]))
    assert found.rank95 <= 3 / 16
    assert found.r2 > 0.9


def test_what_never_varies_is_explained():
    X, Y = torch.randn(50, 4).double(), torch.ones(50, 4).double()
    assert how_linear(0, Pairs.of(X, Y), Pairs.of(X, Y)).r2 == 1
