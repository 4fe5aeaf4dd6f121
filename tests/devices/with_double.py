"""Like CUDA: what the device refuses, and the main path of every family on it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import slimformer
from devices.backend import NAME
from families import MODEL_TYPES, tiny, tiny_batches, tiny_plan, tiny_tokenizer
from slimformer.calibrate.metric import fisher_metric
from slimformer.evaluate.compare import compare
from slimformer.linalg.precision import has_double
from slimformer.models.opening import usable_device
from terminal import texts


def here() -> torch.Tensor:
    return torch.arange(12.0).view(3, 4)


def there() -> torch.Tensor:
    return here().to(NAME)


MIXED: dict[str, Callable[[], object]] = {
    "sums": lambda: there() + here(),
    "products": lambda: there() @ here().T,
    "lists": lambda: torch.cat([there(), here()]),
    "masks": lambda: there().masked_fill(here() > 0, 0.0),
    "choices": lambda: torch.where(here() > 0, there(), 0.0),
    "tables": lambda: nn.functional.embedding(torch.tensor([0]), there()),
    "lookups": lambda: there().index_select(0, torch.tensor([0])),
    "indices on the device of what is on the CPU": lambda: here()[there() > 0],
    "sums in place": lambda: here().add_(there()),
    "numbers in place": lambda: torch.tensor(1.0).add_(there().sum()),
    "layers": lambda: nn.Linear(4, 2).to(NAME)(here()),
    "solutions": lambda: torch.linalg.lstsq(there(), here()),
    "draws": lambda: torch.rand(2, device=NAME, generator=torch.Generator()),
}


@pytest.mark.parametrize("what", MIXED)
def test_two_devices_in_one_operation_are_refused(what):
    with pytest.raises(RuntimeError, match="device"):
        MIXED[what]()


def test_arrays_are_made_of_the_cpu_alone():
    with pytest.raises(TypeError, match="numpy"):
        there().numpy()


def test_what_cuda_allows_is_allowed_and_right():
    found = [there() * torch.tensor(2.0), there()[torch.tensor([0, 2])], torch.where(there() > 3, there(), 0.0)]
    expected = [here() * 2, here()[[0, 2]], here().where(here() > 3, torch.tensor(0.0))]
    for one, other in zip(found, expected, strict=True):
        assert one.device.type == NAME and torch.equal(one.cpu(), other)
    assert there().sum().item() == 66 and there()[0].tolist() == [0, 1, 2, 3]


def test_gradients_flow_through_views_that_were_written_to():
    x = there().requires_grad_()
    y = x * 1
    y[1:, 2] = 0.0
    y[0].mul_(3)
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[3, 3, 3, 3], [1, 1, 0, 1], [1, 1, 0, 1]]


def test_auto_takes_the_device_torch_was_given():
    assert usable_device("auto") == NAME and has_double(NAME)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family_is_measured_cut_and_compared_where_it_is(model_type):
    dense = tiny(model_type).to(NAME)
    batches = tiny_batches(dense, 2, rows=2)
    metric = fisher_metric(dense, batches)
    assert metric and all(root.device.type == "cpu" for root in metric.values())
    _, small = tiny_plan(dense, rows=2)  # every row is a hundred operations, and each takes Python here
    assert {parameter.device.type for parameter in small.parameters()} == {NAME}
    assert {buffer.device.type for buffer in small.buffers()} <= {NAME}
    assert compare(dense, small, batches)


def test_a_model_in_memory_stays_where_it_is_and_can_be_opened_there(tmp_path):
    dense = tiny("qwen3").to(NAME)
    result = slimformer.compress(dense, texts(24), macs=0.7, processor=tiny_tokenizer(), tokens=160, timing=False)
    assert result.model.device.type == dense.device.type == NAME
    result.save(tmp_path / "small")  # verified by a process that knows the CPU alone
    again = slimformer.load(tmp_path / "small", device=NAME)
    inputs = tiny_batches(dense, 1)[0].to(NAME).inputs
    torch.testing.assert_close(again(**inputs).logits, result.model(**inputs).logits)
