"""Surgery does what the formulas say, whichever way round a layer stores its weight and in whatever precision."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from slimformer.decompose import Selection
from slimformer.models.architecture import out_in, weight_of
from slimformer.rewrite.surgery import keep_rows, read, set_attribute

LAYERS = {
    "linear": lambda i, o: nn.Linear(i, o),
    "no bias": lambda i, o: nn.Linear(i, o, bias=False),
    "conv1d": lambda i, o: Conv1D(o, i),
}


@pytest.fixture(params=LAYERS)
def layer(request):
    """Six inputs, four outputs, and a bias that is not zero."""
    made = LAYERS[request.param](6, 4).double()
    if made.bias is not None:
        nn.init.normal_(made.bias)
    return made


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [3, 0], [2], []])
def test_rows_kept_are_outputs_kept(layer, rows):
    x = torch.randn(5, 6, dtype=torch.float64)
    before = layer(x)
    keep_rows(layer, torch.tensor(rows, dtype=torch.long))
    assert torch.allclose(layer(x), before[:, rows], rtol=0, atol=1e-14)
    assert out_in(layer) == (len(rows), 6)


def test_reading_a_selection_is_reading_what_it_stands_for(layer):
    J = torch.tensor([1, 2, 5])
    E, c = torch.randn(6, 3, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    c = c if layer.bias is not None else 0 * c
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = layer(x @ E.mT + c)
    read(layer, Selection(J, E, c))
    assert torch.allclose(layer(x), expected, rtol=0, atol=1e-12)
    assert out_in(layer) == (4, 3)


def test_reading_everything_changes_nothing(layer):
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    eye, zero = torch.eye(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)
    read(layer, Selection(torch.arange(6), eye, zero))
    keep_rows(layer, torch.arange(4))
    assert all(torch.equal(parameter, before[name]) for name, parameter in layer.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precision_is_kept_and_lost_only_once(layer, dtype):
    layer.to(dtype)
    E = torch.randn(6, 3, dtype=torch.float64)
    exact = weight_of(layer).double() @ E
    read(layer, Selection(torch.arange(3), E, torch.zeros(6, dtype=torch.float64)))
    assert all(parameter.dtype == dtype for parameter in layer.parameters())
    assert torch.equal(weight_of(layer), exact.to(dtype))


@pytest.mark.parametrize("trained", [True, False])
def test_what_is_trained_stays_trained(layer, trained):
    layer.requires_grad_(trained)
    keep_rows(layer, torch.tensor([1, 3]))
    read(layer, Selection(torch.arange(6), torch.eye(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)))
    assert all(parameter.requires_grad == trained for parameter in layer.parameters())


def test_layers_know_their_new_sizes(layer):
    keep_rows(layer, torch.tensor([1, 3]))
    read(layer, Selection(torch.arange(5), torch.eye(6, 5, dtype=torch.float64), torch.zeros(6, dtype=torch.float64)))
    sizes = (layer.nf, layer.nx) if isinstance(layer, Conv1D) else (layer.out_features, layer.in_features)
    assert sizes == (2, 5)
    assert all(parameter.is_contiguous() for parameter in layer.parameters())


def test_nothing_is_shared_with_what_was_there(layer):
    before = [parameter.detach() for parameter in layer.parameters()]
    copies = [b.clone() for b in before]
    keep_rows(layer, torch.arange(4))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert all(torch.equal(b, c) for b, c in zip(before, copies, strict=True))


def test_attributes_are_set_where_they_live():
    block = nn.Module()
    block.attention = nn.Module()
    block.attention.heads = 4
    set_attribute(block, "attention.heads", 3)
    assert block.attention.heads == 3
