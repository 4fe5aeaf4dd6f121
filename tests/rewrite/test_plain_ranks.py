"""One rank for all blocks is said by a stock config where it can be: the same model, opened by stock code alone."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from families import tiny
from ranked import furthest, logits, padded
from slimformer.errors import PlanDoesNotFit
from slimformer.models import describe
from slimformer.models.ranks import heads_of
from slimformer.nn.ragged import RankAttention
from slimformer.rewrite.ranks import cut_ranks, rotary_rows
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes

SAYABLE = ["llama", "mistral", "qwen2"]


def cut(model: PreTrainedModel, planes: list[list[int]], values: int) -> PreTrainedModel:
    """A copy whose blocks keep these planes and as many values."""
    small, architecture = copy.deepcopy(model), describe(model)
    for i, kept in enumerate(planes):
        cut_ranks(small, heads_of(architecture, i), rows_qk=rotary_rows(kept, 8), rows_v=torch.arange(values))
    keep_attributes_true(small)
    return small


@pytest.mark.parametrize("planes", [[0, 3], [1, 2, 3], [2]])
@pytest.mark.parametrize("model_type", SAYABLE)
def test_stock_code_opens_it_and_does_the_same(model_type, planes, tmp_path):
    model = tiny(model_type).double()
    small = cut(model, [planes] * 3, 2 * len(planes))
    plain = copy.deepcopy(small)
    state_sizes(plain, "plain")
    assert not [m for m in plain.modules() if isinstance(m, RankAttention)]
    plain.save_pretrained(tmp_path)
    opened = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert getattr(opened.config, "slimformer", None) is None and opened.config.head_dim == 2 * len(planes)
    inputs = padded(model)
    for same in (plain, opened):
        assert furthest(logits(small, inputs), logits(same, inputs)) < 1e-6  # cosines and sines are single precision
    assert furthest(logits(model, inputs), logits(small, inputs)) > 1e-3, "nothing would have been noticed"


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_frequencies_are_stated_to_the_last_digit(theta):
    from slimformer.rewrite.plain_ranks import _factors

    frequencies = 1 / theta ** (torch.arange(0, 64, 2).float() / 64)
    kept = frequencies[[0, 1, 5, 9, 20, 31]]
    turns = theta ** (torch.arange(0, 12, 2, dtype=torch.int64).float() / 12)
    stated = 1.0 / (torch.tensor(_factors(kept.double(), theta)) * turns)
    assert ((stated - kept).abs() / kept).max() < 1e-7


@pytest.mark.parametrize(
    ("model_type", "planes", "values", "words"),
    [
        ("llama", [[0, 1], [0, 1], [0, 2]], 4, "one head width"),
        ("llama", [[0, 1]] * 3, 6, "one head width"),
        ("llama", [[0, 1]] * 2, 4, "one head width"),  # one block stays as it was
    ],
)
def test_what_a_stock_config_cannot_say_is_refused(model_type, planes, values, words):
    model = tiny(model_type)
    with pytest.raises(PlanDoesNotFit, match=words):
        state_sizes(cut(model, planes, values), "plain")


def test_images_need_no_planes(tmp_path):
    model = tiny("vit").double()
    small, architecture = copy.deepcopy(model), describe(model)
    for i in range(3):
        cut_ranks(small, heads_of(architecture, i), rows_qk=torch.tensor([1, 4, 6]), rows_v=torch.tensor([0, 2, 7]))
    plain = copy.deepcopy(small)
    state_sizes(plain, "plain")
    plain.save_pretrained(tmp_path)
    opened = type(model).from_pretrained(tmp_path, dtype=torch.float64).eval()
    inputs = padded(model)
    assert opened.config.head_dim == 3
    assert furthest(logits(small, inputs), logits(opened, inputs)) < 1e-10
    assert furthest(logits(model, inputs), logits(small, inputs)) > 1e-3, "nothing would have been noticed"


def test_families_without_a_head_width_are_refused():
    model = tiny("opt")
    small, architecture = copy.deepcopy(model), describe(model)
    for i in range(3):
        cut_ranks(small, heads_of(architecture, i), rows_qk=torch.arange(4), rows_v=torch.arange(4))
    with pytest.raises(PlanDoesNotFit, match="no word for narrower heads"):
        state_sizes(small, "plain")
