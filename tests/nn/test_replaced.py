"""Modules in the place of a feed-forward part, in every family."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrated import outputs
from families import MODEL_TYPES, tiny, tiny_batches
from slimformer.decompose.linear_map import AffineMap, linear_map
from slimformer.linalg.pairs import Pairs
from slimformer.models import describe
from slimformer.models.hooks import listening
from slimformer.nn.features import gegenbauer_features
from slimformer.nn.replaced import put_mlp, stand_in

every_type = pytest.mark.parametrize("model_type", MODEL_TYPES)


def mlp_rows(model, batch):
    """Inputs and outputs of the feed-forward part of block 1."""
    site, found = describe(model)["blocks.1.ffn.hidden"], {}
    ears = {site.writers[0].module: lambda X: found.update(x=X)}, {site.reader: lambda Y: found.update(y=Y)}
    with torch.inference_mode(), listening(model, inputs=ears[0], outputs=ears[1]):
        model(**batch.inputs)
    return found["x"].flatten(0, -2), found["y"].flatten(0, -2)


class Noting(nn.Module):
    """Hands on what the dense part wrote, and notes what it is given."""

    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self.answer, self.given = answer, torch.empty(0)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        self.given = hidden_states.flatten(0, -2)
        return self.answer.reshape(hidden_states.shape)


@every_type
def test_a_module_is_given_what_the_part_was_given_and_answers_in_its_place(model_type):
    model = tiny(model_type)
    (batch,) = tiny_batches(model, 1)
    before = outputs(model, batch)
    x, y = mlp_rows(model, batch)
    noting = Noting(y)
    put_mlp(model, describe(model), 1, noting)
    torch.testing.assert_close(outputs(model, batch), before, atol=1e-6, rtol=0)
    torch.testing.assert_close(noting.given, x)


@pytest.mark.parametrize("model_type", ["opt", "bert"])
def test_a_linear_part_is_replaced_exactly(model_type):
    model = tiny(model_type)
    architecture, batches = describe(model), tiny_batches(model, 6)
    block = model.get_submodule(architecture.blocks[1].path)
    holder = block if model_type == "opt" else block.get_submodule("intermediate")
    name = {"opt": "activation_fn", "bert": "intermediate_act_fn"}[model_type]
    setattr(holder, name, nn.Identity())
    pairs = sum((Pairs.of(*mlp_rows(model, batch)) for batch in batches), Pairs.zero(32, 32))
    before = outputs(model, batches[0])
    put_mlp(model, architecture, 1, stand_in(linear_map(pairs, ridge=1e-10), by="linear"))
    torch.testing.assert_close(outputs(model, batches[0]), before, atol=1e-3, rtol=0)


def test_features_as_a_module_are_the_features():
    features = gegenbauer_features(10, torch.rand(32) + 0.5, torch.randn(32))
    A, b = torch.randn(32, 42), torch.randn(32)
    X = torch.randn(2, 3, 32)
    rows = X.flatten(0, 1)
    expected = torch.cat([rows, features(rows)], 1) @ A.mT + b
    torch.testing.assert_close(stand_in(AffineMap(A, b), features, by="sphere")(X), expected.reshape(X.shape))
