"""A save is proved by a fresh process, and what is not proved is not put in place."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from families import MODEL_TYPES, tiny, tiny_compressed, tiny_plan, tiny_ragged, tiny_tokenizer
from slimformer.checkpoint import save as saving
from slimformer.checkpoint.load import load
from slimformer.checkpoint.reload import checksums, outputs_of
from slimformer.checkpoint.save import Belongings, save
from slimformer.checkpoint.verify import default_sample
from slimformer.errors import CannotWrite, OutputExists, SaveFailed
from slimformer.nn import ragged
from slimformer.plan import Plan


@pytest.mark.usefixtures("real_processes")
def test_a_verified_save_holds_everything(tmp_path: Path) -> None:
    plan, small = tiny_plan(tiny("llama"))
    small.generation_config.max_new_tokens = 7
    save(
        small, tmp_path / "out",
        Belongings(tiny_tokenizer(), texts={"plan.json": plan.to_json(), "README.md": "# A card"}),
    )  # fmt: skip
    folder = tmp_path / "out"
    assert os.listdir(tmp_path) == ["out"]
    assert Plan.load(folder / "plan.json") == plan
    assert (folder / "README.md").read_text() == "# A card"
    assert (folder / ragged.CODE).read_bytes() == Path(ragged.__file__).read_bytes()
    assert json.loads((folder / "generation_config.json").read_text())["max_new_tokens"] == 7
    assert transformers.AutoTokenizer.from_pretrained(folder)("w5 w6")["input_ids"] == [5, 6]
    assert not list(folder.glob("*.bin")) and (folder / "model.safetensors").exists()


@pytest.mark.parametrize(("model_type", "format"), [("vit", "plain"), ("llama", "ragged"), ("qwen3", "plain")])
def test_half_precision_is_verified_bit_for_bit(model_type: str, format: str, tmp_path: Path) -> None:
    """Also where rotary angles, which are in no file, were rounded along with the weights."""
    small = tiny_compressed(tiny(model_type), format=format).bfloat16()
    save(small, tmp_path / "out")
    assert load(tmp_path / "out").dtype == torch.bfloat16
    assert checksums(load(tmp_path / "out")) == checksums(small)


def _one_weight_changed(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "transformer.h.1.mlp.c_fc.weight"
    weights[name][0, 0] += 1e-3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _another_function(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"gelu_new"', '"relu"'))


def _no_code(folder: Path) -> None:
    (folder / ragged.CODE).unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_one_weight_changed, r"reloads with other weights .*: transformer.h.1.mlp.c_fc.weight$"),
        (_another_function, r"reloads to other outputs: logits differs by"),
        (_no_code, r"does not open in a fresh process: .*modeling_slimformer.py"),
    ],
)
def test_a_damaged_save_is_noticed_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None], words: str
) -> None:
    write_belongings = saving.write_belongings

    def write_and_damage(folder: Path, *belongings: object) -> None:
        write_belongings(folder, *belongings)
        damage(folder)

    monkeypatch.setattr(saving, "write_belongings", write_and_damage)
    with pytest.raises(SaveFailed, match=words) as caught:
        save(tiny_ragged(tiny("gpt2")), tmp_path / "out")
    assert os.listdir(tmp_path) == [] and "\n" not in str(caught.value)


@pytest.mark.usefixtures("real_processes")
def test_a_killed_process_is_reported_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nkill -9 $$\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(SaveFailed, match=r"killed by signal 9 .out of memory"):
        save(tiny("bert"), tmp_path / "out")
    assert os.listdir(tmp_path) == ["python"]


def test_outputs_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    model = tiny("bert")
    torch.nn.init.constant_(model.base_model.embeddings.LayerNorm.weight, float("nan"))
    with pytest.raises(SaveFailed, match="NaN or infinite outputs"):
        save(model, tmp_path / "out")


def test_an_existing_folder_is_kept_unless_forced(tmp_path: Path) -> None:
    save(tiny("bert"), tmp_path / "out", Belongings(texts={"README.md": "old"}), verify=False)
    with pytest.raises(OutputExists):
        save(tiny("bert"), tmp_path / "out", Belongings(texts={"README.md": "new"}), verify=False)
    assert (tmp_path / "out" / "README.md").read_text() == "old"
    save(tiny("bert"), tmp_path / "out", force=True, verify=False)
    assert not (tmp_path / "out" / "README.md").exists()


def test_a_disk_that_fills_up_during_the_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(transformers.modeling_utils, "safe_save_file", full)
    with pytest.raises(CannotWrite, match="the disk is full"):
        save(tiny("bert"), tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_generation_config_transformers_would_refuse_is_kept_as_it_is(tmp_path: Path) -> None:
    """Published models hold a temperature beside greedy decoding; stock save_pretrained raises an error there."""
    model = tiny("llama")
    model.generation_config.temperature, model.generation_config.do_sample = 0.6, False
    save(model, tmp_path / "out", verify=False)
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.6
    assert model.generation_config.temperature == 0.6


def test_what_transformers_refuses_is_said_in_one_line(tmp_path: Path) -> None:
    model = tiny("llama")
    model.config.num_attention_heads = 3  # does not divide the hidden size
    with pytest.raises(SaveFailed, match="transformers refuses") as caught:
        save(model, tmp_path / "out")
    assert os.listdir(tmp_path) == [] and "\n" not in str(caught.value)


def test_licences_travel(tmp_path: Path) -> None:
    (tmp_path / "dense").mkdir()
    for name in ("LICENSE", "NOTICE.txt", "model.safetensors", "secrets.txt"):
        (tmp_path / "dense" / name).write_text(name)
    save(tiny("bert"), tmp_path / "out", Belongings(source_folder=tmp_path / "dense"), verify=False)
    assert (tmp_path / "out" / "LICENSE").read_text() == "LICENSE" and (tmp_path / "out" / "NOTICE.txt").exists()
    assert not (tmp_path / "out" / "secrets.txt").exists()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_default_sample_fits_the_model(model_type: str) -> None:
    model = tiny(model_type)
    model.train()
    first, second = (outputs_of(model, default_sample(model)) for _ in range(2))
    assert first and all(torch.equal(first[key], second[key]) for key in first) and model.training
