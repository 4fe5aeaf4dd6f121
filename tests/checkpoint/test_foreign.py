"""Code of others: never run unasked, never named in what we write; ours stays."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import slimformer
from families import tiny, tiny_tokenizer
from slimformer.checkpoint.foreign import strip_foreign_code
from slimformer.lab.data.tokenizer import open_tokenizer
from slimformer.models.load import load_model
from slimformer.models.opening import Opening, OpeningNote
from slimformer.nn import ragged
from terminal import done, refused, save_tiny, write_images, write_table, write_texts

pytestmark = [
    pytest.mark.usefixtures("trusting"),
    pytest.mark.filterwarnings("ignore::slimformer.models.opening.OpeningNote"),
]
MARK = "stranger"
CODE = 'import pathlib; pathlib.Path("{}").touch()\n'


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **fields}))


def stranger(folder: Path, model_type: str, head: str | None = None) -> Path:
    """A model folder that names and holds code in every place a loader might look; the code leaves `ran` behind."""
    save_tiny(folder, model_type, head)
    (folder / f"{MARK}.py").write_text(CODE.format(folder / "ran"))
    change(
        folder / "config.json", auto_map={"AutoConfig": f"{MARK}.C", "AutoModel": f"{MARK}.M"},
        custom_pipelines={"x": {"impl": f"{MARK}.P"}}, trust_remote_code=True, attn_implementation=f"{MARK}/kernel",
    )  # fmt: skip
    processor = "preprocessor_config.json" if model_type == "vit" else "tokenizer_config.json"
    auto = "AutoImageProcessor" if model_type == "vit" else "AutoTokenizer"
    reference = f"{MARK}.T" if model_type == "vit" else [f"{MARK}.T", None]
    change(folder / processor, auto_map={auto: reference})
    change(
        folder / "generation_config.json",
        auto_map={"GenerationConfig": f"{MARK}.G"},
        trust_remote_code=True,
        custom_generate=MARK,
    )
    return folder


def mentions(folder: Path) -> list[str]:
    """Files that name or hold the code of the stranger; the name of the model in reports is no code."""
    code = re.compile(rf'{MARK}\.[A-Z]|{MARK}/kernel|"trust_remote_code": true|"custom_generate"')
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".json", ".py", ".md", ".yaml")]
    named = [path.name for path in found if code.search(path.read_text(encoding="utf-8"))]
    return named + [path.name for path in found if path.suffix == ".py" and path.name != ragged.CODE]


def commands(model: Path, data: Path, out: Path) -> dict[str, tuple[object, ...]]:
    """Everything that writes a model folder."""
    read = ("--data", data, "--tokens", 600)
    brief = ("--no-timing", "--quiet")
    return {
        "ragged": ("compress", model, "--macs", 0.6, *read, *brief, "--out", out),
        "plain": ("compress", model, "--macs", 0.6, "--format", "plain", *read, *brief, "--out", out),
        "streamed": ("compress", model, "--macs", 0.6, "--memory", "4GB", *read, "--quiet", "--out", out),
        "quantized": ("quantize", model, "--method", "nearest", *read, "--quiet", "--no-verify", "--out", out),
        "sparse": ("sparsify", model, "--method", "magnitude", *read, "--quiet", "--out", out),
        "exported": ("export", model, "--to", "torch", "--no-verify", "--quiet", "--out", out),
        "cascade": ("cascade", model, "--macs", "0.5,1", *read, "--quiet", "--no-verify", "--out", out),
        "adapted": ("adapt", model, *read, "--quiet", "--out", out),
    }


@pytest.mark.parametrize("name", commands(Path(), Path(), Path()))
def test_no_file_of_a_result_names_code_of_others(name, tmp_path, monkeypatch):
    monkeypatch.setattr("slimformer.steps.streaming.verify_reload", lambda *_: None)
    model = stranger(tmp_path / MARK, "llama")
    data = write_texts(tmp_path / "text.txt")
    done(*commands(model, data, tmp_path / "out")[name])
    assert not mentions(tmp_path / "out")
    assert not (model / "ran").exists()
    own = tmp_path / "out" / ragged.CODE
    if name in ("ragged", "streamed"):
        assert own.read_bytes() == Path(ragged.__file__).read_bytes()
        assert "auto_map" in json.loads((tmp_path / "out" / "config.json").read_text())


def test_classifiers_and_image_models_are_no_exception(tmp_path):
    bert = stranger(tmp_path / MARK, "bert", "bare")
    table = write_table(tmp_path / "table.tsv")
    done("probe", bert, "--data", table, "--pool", "cls", "--quiet", "--out", tmp_path / "probe")
    vit = stranger(tmp_path / "vit", "vit")
    images = write_images(tmp_path / "images")
    done("compress", vit, "--macs", 0.7, "--data", images, "--no-timing", "--quiet", "--out", tmp_path / "small")
    for folder in ("probe", "small"):
        assert not mentions(tmp_path / folder)


def test_a_model_in_memory_may_carry_it_too(tmp_path):
    model = tiny("bert", "classify")
    model.config.auto_map = {"AutoModel": f"{MARK}.M"}
    tokenizer = tiny_tokenizer()
    tokenizer.init_kwargs["auto_map"] = {"AutoTokenizer": [f"{MARK}.T", None]}
    data = str(write_table(tmp_path / "table.tsv"))
    result = slimformer.compress(model, data, macs=0.8, tokens=600, processor=tokenizer, timing=False, format="plain")
    result.save(tmp_path / "out")
    assert not mentions(tmp_path / "out")


def test_parts_of_a_sentence_model_come_along_without_their_code(tmp_path):
    folder = save_tiny(tmp_path / "sentences", "bert", "bare")
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Dense").mkdir()
    change(folder / "1_Dense" / "config.json", in_features=32, trust_remote_code=True)
    (folder / "1_Dense" / f"{MARK}.py").write_text("")
    save_file({"linear.weight": torch.eye(32)}, folder / "1_Dense" / "model.safetensors")
    data = str(write_table(tmp_path / "table.tsv"))

    def compressed(out: Path) -> Path:
        result = slimformer.compress(folder, data, macs=0.6, tokens=600, timing=False)
        return result.save(out)

    first = compressed(tmp_path / "known")
    assert (first / "1_Dense" / "model.safetensors").is_file() and not mentions(first)
    modules[1]["type"] = f"{MARK}.M"
    (folder / "modules.json").write_text(json.dumps(modules))
    second = compressed(tmp_path / "unknown")
    assert not (second / "modules.json").exists() and not mentions(second)


def test_words_of_vocabularies_and_names_of_classes_stay(tmp_path):
    (tmp_path / "vocab.json").write_text('{"auto_map": 7}')
    change(tmp_path / "config.json", label2id={"auto_map": 0, "trust_remote_code": 1}, auto_map={"AutoModel": "x.Y"})
    change(tmp_path / "processor_config.json", image_processor={"auto_map": {"AutoImageProcessor": "x.Y"}, "size": 3})
    (tmp_path / "odd_config.json").write_text("{")
    strip_foreign_code(tmp_path)
    assert json.loads((tmp_path / "vocab.json").read_text()) == {"auto_map": 7}
    assert json.loads((tmp_path / "config.json").read_text()) == {"label2id": {"auto_map": 0, "trust_remote_code": 1}}
    assert json.loads((tmp_path / "processor_config.json").read_text()) == {"image_processor": {"size": 3}}
    assert not (tmp_path / "odd_config.json").exists()


def test_code_of_a_checkpoint_runs_only_when_it_is_trusted_and_is_named_then(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_tiny(tmp_path / "llama", "llama")
    (folder / "tokens.py").write_text(
        CODE.format(folder / "ran") + "from transformers import PreTrainedTokenizerFast\n"
        "class Tokens(PreTrainedTokenizerFast):\n    pass\n"
    )
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["tokens.Tokens", None]})
    assert load_model(folder, Opening("cpu")).processor is not None and not (folder / "ran").exists()
    trusted = load_model(folder, Opening("cpu", trust_remote_code=True))
    assert type(trusted.processor).__name__ == "Tokens" and (folder / "ran").exists()
    write_texts(tmp_path / "text.txt")
    asked = ("--data", tmp_path / "text.txt", "--tokens", 600, "--no-timing", "--trust-remote-code", "--json")
    said = done("compress", folder, "--macs", 0.6, *asked, "--out", tmp_path / "out")
    assert json.loads(said.out)["opening"]["trust_remote_code"] is True
    assert "code of its config and tokenizer trusted" in (tmp_path / "out" / "README.md").read_text()
    assert sorted(path.name for path in (tmp_path / "out").glob("*.py")) == [ragged.CODE]
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert "auto_map" not in config and load_model(tmp_path / "out", Opening("cpu")).processor is not None


def test_a_type_nobody_knows_is_refused_with_its_code_too(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = save_tiny(tmp_path / "odd", "llama")
    (folder / "odd.py").write_text(
        "from transformers import PretrainedConfig\nclass Odd(PretrainedConfig):\n    model_type = 'odd'\n"
    )
    change(folder / "config.json", model_type="odd", auto_map={"AutoConfig": "odd.Odd", "AutoModel": "odd.Model"})
    for more in ((), ("--trust-remote-code",)):
        assert "models of type 'odd' are not supported" in refused("inspect", folder, *more)


def test_modelling_code_is_not_run_and_that_is_said(tmp_path):
    folder = stranger(tmp_path / MARK, "llama")
    for trusted in (False, True):
        if trusted:  # the rest of the stranger would run
            shutil.copy(save_tiny(tmp_path / "kept", "llama") / "tokenizer_config.json", folder)
            change(folder / "config.json", auto_map={"AutoModel": f"{MARK}.M"})
        with pytest.warns(OpeningNote, match="brings code of its own for its model, which is not run"):
            load_model(folder, Opening("cpu", trust_remote_code=trusted))
    assert not (folder / "ran").exists()


def test_processors_and_tokenizers_of_the_lab_are_read_without_their_code(tmp_path):
    vit, llama = stranger(tmp_path / "vit", "vit"), stranger(tmp_path / MARK, "llama")
    assert load_model(vit, Opening("cpu")).processor is not None
    assert open_tokenizer(str(llama)).pad_token == "<pad>"
    assert not (vit / "ran").exists() and not (llama / "ran").exists()
