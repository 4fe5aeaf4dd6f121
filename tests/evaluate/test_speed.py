"""Latency on a clock that only moves when told to, so that times are exact; sizes and counts."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
)

from slimformer.errors import ModelNotFound
from slimformer.evaluate import speed
from slimformer.evaluate.speed import Rounds, compare_latency, file_size, model_latency, parameter_count

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
GPT2 = {"n_embd": 32, "n_head": 4, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}

Make = Callable[[int], PreTrainedModel]
FAMILIES: dict[str, tuple[str, Make]] = {
    "llama": (
        "layers",
        lambda n: LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=n, vocab_size=50)),
    ),
    "gpt2": ("h", lambda n: GPT2LMHeadModel(GPT2Config(**GPT2, n_layer=n, vocab_size=50))),
    "bert": (
        "encoder.layer",
        lambda n: BertForSequenceClassification(BertConfig(**SIZES, num_hidden_layers=n, vocab_size=50)),
    ),
    "vit": (
        "layers",
        lambda n: ViTForImageClassification(
            ViTConfig(**SIZES, num_hidden_layers=n, image_size=8, patch_size=4, num_channels=1)
        ),
    ),
}


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(speed, "perf_counter", made)
    return made


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models spend their time waiting for other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def inputs_for(name: str, batch: int, length: int) -> dict[str, torch.Tensor]:
    if name == "vit":
        return {"pixel_values": torch.zeros(2, 1, 8, 8)}
    return {"input_ids": torch.arange(batch * length).view(batch, length) % 16}


def slow_down(model: PreTrainedModel, blocks: str, clock: Clock, *, block: float, whole: float) -> None:
    """Each block takes `block` seconds, the model `whole` seconds outside of them, half of that before."""
    model.register_forward_pre_hook(lambda *_: clock.wait(whole / 2))
    model.register_forward_hook(lambda *_: clock.wait(whole / 2))
    for layer in model.base_model.get_submodule(blocks).children():
        layer.register_forward_hook(lambda *_: clock.wait(block))


def test_times_and_ratios_are_exact(clock: Clock) -> None:
    result = compare_latency({"slow": lambda: clock.wait(4), "fast": lambda: clock.wait(1)}, Rounds(5), device="cpu")
    assert result.reference == "slow" and result.device == "cpu" and result.threads == 1
    assert result.timings["slow"].ratio == 1.0 and result.timings["fast"].ratio == 0.25
    assert result.timings["fast"].seconds == (1.0,) * 5


def test_median_and_quartiles_are_those_of_the_rounds(clock: Clock) -> None:
    waits = iter([100.0, 5.0, 1.0, 4.0, 2.0, 3.0])
    timing = compare_latency({"one": lambda: clock.wait(next(waits))}, Rounds(5, 1)).timings["one"]
    assert (timing.low, timing.median, timing.high) == (2.0, 3.0, 4.0)


def test_quartiles_of_ratios_are_taken_round_by_round_and_the_ratio_is_that_of_the_times_shown(clock: Clock) -> None:
    """A machine that gets slower and slower does not blur them."""
    pace = {"a": 1.0, "b": 1.0}

    def run(name: str, seconds: float) -> None:
        clock.wait(seconds * pace[name])
        pace[name] *= 3

    result = compare_latency({"a": lambda: run("a", 2), "b": lambda: run("b", 1)}, Rounds(6))
    b = result.timings["b"]
    assert (b.ratio_low, b.ratio, b.ratio_high) == pytest.approx((0.5, 0.5, 0.5))
    assert b.ratio == b.median / result.timings["a"].median
    assert b.high > 2 * b.median


def test_every_round_runs_everyone_once_in_an_order_the_seed_decides() -> None:
    def order(seed: int) -> list[str]:
        calls: list[str] = []
        runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
        compare_latency(runs, Rounds(8, 2, seed))
        return calls

    calls = order(0)
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 10 and all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 2
    assert order(0) == calls and order(1) != calls


def test_competitors_run_without_autograd() -> None:
    seen: list[bool] = []
    compare_latency({"one": lambda: seen.append(torch.is_inference_mode_enabled())}, Rounds(2, 0))
    assert seen == [True, True]


def test_nothing_to_time_is_refused() -> None:
    with pytest.raises(ValueError, match="0 competitors"):
        compare_latency({})
    with pytest.raises(ValueError, match="1 competitors in 0 rounds"):
        compare_latency({"one": lambda: None}, Rounds(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_body_is_the_time_in_the_blocks(name: str, clock: Clock) -> None:
    blocks, make = FAMILIES[name]
    dense, small = make(4), make(2)
    slow_down(dense, blocks, clock, block=1, whole=2)
    slow_down(small, blocks, clock, block=0.5, whole=2)
    result = model_latency(dense, small, inputs_for(name, 2, 7), Rounds(3, 1), blocks=blocks)
    assert set(result.body.timings["dense"].seconds) == {4.0}
    assert set(result.end_to_end.timings["dense"].seconds) == {6.0}
    assert result.body_ratio == 0.25 and result.end_to_end_ratio == 0.5
    assert result.inputs == ({"pixel_values": (2, 1, 8, 8)} if name == "vit" else {"input_ids": (2, 7)})
    json.dumps(asdict(result))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_real_body_takes_part_of_the_real_time(name: str) -> None:
    blocks, make = FAMILIES[name]
    model = make(2)
    model.train()
    result = model_latency(model, model, inputs_for(name, 1, 5), Rounds(3), blocks=blocks)
    pairs = zip(result.body.timings["small"].seconds, result.end_to_end.timings["small"].seconds, strict=True)
    assert all(0 < body < whole for body, whole in pairs)
    assert model.training
    hooks = [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]
    assert not hooks  # nothing stays behind


def test_wrong_blocks_are_explained() -> None:
    llama, tokens = FAMILIES["llama"][1](1), inputs_for("llama", 1, 4)
    with pytest.raises(ValueError, match="LlamaModel has no blocks at 'h'; lists of modules in it: layers"):
        model_latency(llama, llama, tokens, blocks="h")
    with pytest.raises(ValueError, match="cpu and meta; put both on one device"):
        model_latency(llama, FAMILIES["llama"][1](1).to("meta"), tokens, blocks="layers")


@pytest.mark.parametrize("name", FAMILIES)
def test_blocks_and_the_rest_add_up_to_all_parameters(name: str) -> None:
    blocks, make = FAMILIES[name]
    one, three = (parameter_count(make(n), blocks=blocks) for n in (1, 3))
    assert three.blocks == 3 * one.blocks
    assert three.outside == one.outside
    assert one.total == one.blocks + one.outside == make(1).num_parameters()


def test_tied_weights_count_once() -> None:
    sizes = {**SIZES, "num_hidden_layers": 1, "vocab_size": 50}
    tied, apart = (
        parameter_count(LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=tie)), blocks="layers")
        for tie in (True, False)
    )
    assert apart.total - tied.total == 50 * 32 and apart.blocks == tied.blocks


def test_file_size_is_that_of_the_weights(tmp_path: Path) -> None:
    model = FAMILIES["llama"][1](2)
    model.save_pretrained(tmp_path / "whole")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    shards = list((tmp_path / "shards").glob("*.safetensors"))
    numbers = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert len(shards) > 1
    for folder in ("whole", "shards"):
        assert numbers < file_size(tmp_path / folder) < 1.1 * numbers
    with pytest.raises(ModelNotFound, match="no safetensors file"):
        file_size(tmp_path)


def test_a_model_that_skips_its_blocks_is_reported() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(ValueError, match="did not run the blocks at 'layers'"):
        model_latency(Idle(), Idle(), {"x": torch.zeros(1)}, blocks="layers")
