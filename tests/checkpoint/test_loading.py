"""`load` opens what was saved, and says in one line why it cannot."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from families import tiny, tiny_batches, tiny_ragged
from slimformer.checkpoint.load import load
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.save import save
from slimformer.errors import ModelBroken, ModelNotFound, UnknownArchitecture
from slimformer.models.opening import OpeningNote
from slimformer.nn.ragged import FORMAT


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    save(tiny_ragged(tiny("llama")), folder, verify=False)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "model")


def _cut(n: int) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:n])

    return damage


def _replace(old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        config = folder / "config.json"
        assert old in config.read_text()
        config.write_text(config.read_text().replace(old, new))

    return damage


def _without_norms(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: w for name, w in weights.items() if "norm" not in name}, folder / "model.safetensors")


DAMAGES = {
    "cut in the weights": (_cut(9000), "the weights cannot be read"),
    "cut in the header": (_cut(5), "the weights cannot be read"),
    "empty": (_cut(0), "the weights cannot be read"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        "holds no weights: neither model.safetensors nor",
    ),
    "weights missing": (
        _without_norms,
        r"7 weights that config.json promises are missing, the first is model.layers.0.input_layernorm.weight",
    ),
    "other sizes": (_replace('"intermediate_size": 8', '"intermediate_size": 16'), "do not have the sizes config.json"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read"),
    "no object": (lambda folder: (folder / "config.json").write_text("[]"), "config.json cannot be read"),
    "future format": (_replace('"format": 1', f'"format": {FORMAT + 1}'), "a newer slimformer wrote it"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_said_in_one_line(folder: Path, name: str) -> None:
    damage, words = DAMAGES[name]
    (folder / "slimformer.json").unlink()  # which would notice it first
    damage(folder)
    with pytest.raises((ModelBroken, ModelNotFound, UnknownArchitecture), match=words) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and "ignore_mismatched_sizes" not in str(caught.value)


def test_what_is_no_model_is_said_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "empty": "holds no config.json",
        tmp_path / "nowhere": "there is no folder",
        folder / "config.json": "is a file; give the folder",
        "no-such/model": "neither a folder here nor a model the hub gives",
    }
    for name, words in cases.items():
        with pytest.raises(ModelNotFound, match=words):
            load(name)


def test_the_precision_is_the_stored_one_unless_asked(tmp_path: Path) -> None:
    save(tiny_ragged(tiny("bert")).half(), tmp_path / "half", verify=False)
    assert load(tmp_path / "half").dtype == torch.float16
    assert load(str(tmp_path / "half"), dtype=torch.float32).dtype == torch.float32


def test_a_loaded_model_is_ready_for_inference(folder: Path) -> None:
    model = load(folder)
    assert not model.training and type(model).__name__ == "LlamaForCausalLM"


def test_a_ragged_folder_that_names_no_class_opens_as_what_its_weights_are(folder: Path) -> None:
    (folder / "slimformer.json").unlink()  # as if the change were meant
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.warns(OpeningNote, match="names no class; its weights are those of a LlamaForCausalLM"):
        assert type(load(folder)).__name__ == "LlamaForCausalLM"
    assert type(load(folder, model_class="AutoModel")).__name__ == "LlamaModel"


def test_another_head_opens_on_ragged_blocks(folder: Path) -> None:
    """A compressed language model can be fine-tuned as a classifier: the blocks are the same, the head is new."""
    from transformers import AutoModelForSequenceClassification

    model, classifier = load(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    sample = tiny_batches(model, 1)[0].inputs
    same = outputs_of(model.base_model, sample)["last_hidden_state"]
    assert torch.equal(outputs_of(classifier.base_model, sample)["last_hidden_state"], same)
