"""A ragged model that was loaded is a model like any other: it trains, copies, saves, and can be compressed again."""

import copy
import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

from families import (
    MODEL_TYPES,
    OWN_TYPES,
    block_sizes,
    heads,
    model_class,
    tiny,
    tiny_batches,
    tiny_compressed,
    tiny_ragged,
)
from slimformer.checkpoint.load import load
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.save import save
from slimformer.errors import PlanDoesNotFit
from slimformer.models import describe
from slimformer.nn import ragged
from slimformer.rewrite.sizes import auto_class, auto_map

ATOL = 1e-5
Sample = dict[str, Tensor]


@functools.cache
def _saved(model_type: str, head: str | None = None) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        save(tiny_ragged(tiny(model_type, head)), Path(folder) / "out", verify=False)
        return load(Path(folder) / "out")


@pytest.fixture(params=MODEL_TYPES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return copy.deepcopy(_saved(request.param))


@pytest.fixture
def sample(model: PreTrainedModel) -> Sample:
    return tiny_batches(model, 1, rows=4)[0].inputs


def _same(left: PreTrainedModel, right: PreTrainedModel, sample: Sample) -> bool:
    a, b = outputs_of(left, sample), outputs_of(right, sample)
    return a.keys() == b.keys() and all(torch.allclose(a[key], b[key], atol=ATOL, rtol=ATOL) for key in a)


def test_saved_again_by_transformers_it_reloads(model: PreTrainedModel, sample: Sample, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    assert _same(load(tmp_path), model, sample)
    if model.config.model_type in OWN_TYPES:
        assert not (tmp_path / ragged.CODE).exists()  # it would be of no use without the package
    else:
        assert (tmp_path / ragged.CODE).read_bytes() == Path(ragged.__file__).read_bytes()


def test_loaded_as_trusted_code_and_saved_again_it_reloads(
    model: PreTrainedModel, sample: Sample, tmp_path: Path
) -> None:
    if model.config.model_type in OWN_TYPES:
        pytest.skip("an architecture of the package itself is opened with the package")
    model.save_pretrained(tmp_path / "first")
    remote: Any = getattr(ragged, type(model).__name__)
    again = remote.from_pretrained(tmp_path / "first")
    again.save_pretrained(tmp_path / "second")
    assert isinstance(again, type(model)) and type(again) is not type(model)
    assert _same(load(tmp_path / "second"), model, sample)


def test_half_precision_runs(model: PreTrainedModel, sample: Sample) -> None:
    exact, half = outputs_of(model, sample), outputs_of(copy.deepcopy(model).half(), sample)
    assert all(float((exact[key] - half[key]).abs().max()) < 0.1 for key in exact)


def test_eager_attention_gives_the_same_and_shows_the_heads_there_are(model: PreTrainedModel, sample: Sample) -> None:
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    assert _same(eager, model, sample)
    attentions = eager(**sample, output_attentions=True).attentions
    assert [a.shape[1] for a in attentions] == [size["heads"] for size in block_sizes(describe(model))]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_reach_every_weight(model: PreTrainedModel, sample: Sample, checkpointing: bool) -> None:
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    model(**sample).logits.square().mean().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_trainer_takes_a_step_and_saves(model_type: str, tmp_path: Path) -> None:
    model = copy.deepcopy(_saved(model_type, "classify"))
    before, inputs = copy.deepcopy(model), tiny_batches(model, 1, rows=4)[0].inputs
    rows = [{name: tensor[i] for name, tensor in inputs.items()} | {"labels": torch.tensor(i)} for i in range(4)]
    arguments = TrainingArguments(
        str(tmp_path), max_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True, learning_rate=0.1
    )
    trainer = Trainer(model, arguments, train_dataset=rows)
    trainer.train()
    trainer.save_model(str(tmp_path / "tuned"))
    assert _same(load(tmp_path / "tuned"), model, inputs) and not _same(before, model, inputs)


def test_it_can_be_compressed_again(model: PreTrainedModel, sample: Sample, tmp_path: Path) -> None:
    smaller = tiny_ragged(model, 0.7)
    assert smaller.num_parameters() < model.num_parameters()
    smaller.save_pretrained(tmp_path)
    assert _same(load(tmp_path), smaller, sample)
    assert block_sizes(describe(load(tmp_path))) == block_sizes(describe(smaller))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_nothing_cut_is_a_ragged_result_too(model_type: str, tmp_path: Path) -> None:
    model = tiny(model_type)
    same = tiny_compressed(model, 1.0)
    same.save_pretrained(tmp_path)
    assert _same(load(tmp_path), model, tiny_batches(model, 1)[0].inputs)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "vit"])
def test_ragged_blocks_of_one_size_can_become_plain(model_type: str, tmp_path: Path) -> None:
    """The config forgets that it was ragged, and says the heads that are there, not those of the dense model."""
    even = _even(model_type, heads=2)
    plain = tiny_compressed(even, 1.0, format="plain")
    plain.save_pretrained(tmp_path)
    found = type(plain.config).from_pretrained(tmp_path)
    assert found.num_attention_heads == 2 and not hasattr(found, "slimformer") and not hasattr(found, "auto_map")
    assert not (tmp_path / ragged.CODE).exists() and not found.is_heterogeneous
    assert _same(load(tmp_path), plain, tiny_batches(plain, 1)[0].inputs)


def test_plain_is_refused_where_the_stock_config_cannot_say_the_heads() -> None:
    with pytest.raises(PlanDoesNotFit, match="the stock config of bert cannot say 2 heads of width 8"):
        tiny_compressed(_even("bert", heads=2), 1.0, format="plain")


def _even(model_type: str, heads: int) -> PreTrainedModel:
    """A ragged result whose blocks happen to have the same sizes, with fewer heads than the dense model."""
    for macs in (0.5, 0.55, 0.6, 0.65):
        small = tiny_compressed(tiny(model_type, seed=1), macs)
        first, *others = block_sizes(describe(small))
        if first["heads"] == heads and all(size == first for size in others):
            return small
    pytest.fail("no budget gives equal blocks")


def test_every_head_of_a_family_has_an_auto_class_of_its_own() -> None:
    for model_type in MODEL_TYPES:
        for head in heads(model_type):
            model = tiny(model_type, head)
            name, reference = next(iter(auto_map(model).items()))
            assert reference == f"modeling_slimformer.{type(model).__name__}" and name == auto_class(model)
            assert auto_map(model)["AutoModel"] == f"modeling_slimformer.{model_class(model_type, 'bare').__name__}"


def test_only_model_classes_are_made() -> None:
    assert ragged.LlamaForCausalLM is ragged.LlamaForCausalLM
    for name in ("LlamaConfig", "NoSuchModel", "__path__", "_private"):
        with pytest.raises(AttributeError):
            getattr(ragged, name)
