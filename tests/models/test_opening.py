"""Opening a model: nothing in the files is lost, the class follows from facts, and what is not safe is not read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import slimformer
from families import MODEL_TYPES, STOCK_TYPES, heads, tiny, tiny_ragged, tiny_tokenizer
from fresh import run
from slimformer.checkpoint.pack import packed
from slimformer.decompose.rounding import Grid
from slimformer.errors import ModelBroken, ModelNotFound, SlimformerError, UnknownArchitecture, WrongArgument
from slimformer.models.class_choice import choose_class
from slimformer.models.load import load_model
from slimformer.models.opening import Opening, OpeningNote, usable_device, usable_precision
from slimformer.models.registered import class_named
from slimformer.models.stream import sketch
from slimformer.rewrite.quantize import quantized
from terminal import done, refused, save_tiny

pytestmark = pytest.mark.filterwarnings("ignore::slimformer.models.opening.OpeningNote")
CPU = Opening("cpu")
OPENERS: dict[str, Callable[[Path], Any]] = {
    "load_model": lambda folder: load_model(folder, CPU),
    "slimformer.load": slimformer.load,
    "sketch": lambda folder: sketch(folder, CPU),
}
every_type = pytest.mark.parametrize("model_type", MODEL_TYPES)
every_head = pytest.mark.parametrize(
    ("model_type", "head"), [(kind, head) for kind in STOCK_TYPES for head in heads(kind)]
)
BLOCKS = ("num_hidden_layers", "n_layers", "n_layer")


def with_config(folder: Path, **changes: Any) -> None:
    """Change fields of config.json; None takes one away."""
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def one_block_less(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (key,) = (key for key in BLOCKS if key in config)
    with_config(folder, **{key: config[key] - 1}, layer_types=None)


def with_weights(folder: Path, **more: torch.Tensor) -> None:
    weights = {**load_file(folder / "model.safetensors"), **more}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def openers(model_type: str) -> dict[str, Callable[[Path], Any]]:
    """Those a family can be opened by: names in files of ViT are not those of the module, so it is not streamed."""
    return {name: opener for name, opener in OPENERS.items() if name != "sketch" or model_type != "vit"}


@every_type
def test_weights_beyond_the_config_are_refused_by_name(model_type, tmp_path):
    tiny(model_type).save_pretrained(tmp_path)
    one_block_less(tmp_path)
    for opener in openers(model_type).values():
        with pytest.raises(
            ModelBroken, match=r"its files hold \d+ weights \(.*2\..* and \d+ more\), for which"
        ) as error:
            opener(tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("model_type", ["bert", "llama"])
def test_ragged_and_packed_folders_are_no_exception(model_type, tmp_path):
    tiny_ragged(tiny(model_type)).save_pretrained(tmp_path / "ragged")
    model = tiny(model_type)
    packed(quantized(model, Grid(8, None), method="nearest"), model).save_pretrained(tmp_path / "packed")
    for folder in (tmp_path / "ragged", tmp_path / "packed"):
        load_model(folder, CPU)
        with_weights(folder, **{"somebody.elses.weight": torch.zeros(3)})
        for opener in (OPENERS["load_model"], OPENERS["slimformer.load"]):
            with pytest.raises(ModelBroken, match=r"its files hold a weight \(somebody.elses.weight\)"):
                opener(folder)


@every_head
def test_a_model_without_its_head_may_be_asked_for(model_type, head, tmp_path):
    model = tiny(model_type, head)
    if model.base_model_prefix != tiny(model_type, "bare").base_model_prefix:
        return  # transformers does not know the names of one in the other
    model.save_pretrained(tmp_path)
    bare = load_model(tmp_path, Opening("cpu", model_class="AutoModel")).model
    assert bare.base_model is bare
    for name, weight in model.base_model.state_dict().items():
        assert torch.equal(bare.state_dict()[name], weight)


def test_tables_that_are_computed_now_and_second_heads_may_be_in_the_files(tmp_path):
    save_tiny(tmp_path / "bert", "bert", "masked")
    second = {"cls.seq_relationship.weight": torch.zeros(2, 32), "cls.seq_relationship.bias": torch.zeros(2)}
    pooler = {"bert.pooler.dense.weight": torch.zeros(32, 32), "bert.pooler.dense.bias": torch.zeros(32)}
    with_weights(tmp_path / "bert", **{"bert.embeddings.position_ids": torch.arange(64)[None]}, **second, **pooler)
    with pytest.warns(OpeningNote, match=r"2 weights \(cls.seq_relationship.bias, .*BertForMaskedLM does not have"):
        assert load_model(tmp_path / "bert", CPU).notes
    save_tiny(tmp_path / "llama", "llama")
    with_weights(tmp_path / "llama", **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    save_tiny(tmp_path / "gpt2", "gpt2")
    with_weights(tmp_path / "gpt2", **{"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64)})
    for name in ("llama", "gpt2"):
        for opener in OPENERS.values():
            opener(tmp_path / name)


def test_a_pooler_may_be_missing_only_where_no_head_reads_it(tmp_path):
    for head in ("bare", "classify"):
        tiny("bert", head).save_pretrained(tmp_path / head)
        weights = load_file(tmp_path / head / "model.safetensors")
        kept = {name: weight for name, weight in weights.items() if "pooler" not in name}
        save_file(kept, tmp_path / head / "model.safetensors", metadata={"format": "pt"})
    load_model(tmp_path / "bare", CPU)
    with pytest.raises(ModelBroken, match=r"missing, the first is bert.pooler"):
        load_model(tmp_path / "classify", CPU)


@pytest.mark.parametrize(("model_type", "key"), [("llama", "intermediate_size"), ("gpt2", "n_embd")])
def test_a_config_of_a_far_larger_model_is_refused_before_it_is_built(model_type, key, tmp_path):
    """transformers would draw all of it at random first: a turned digit could take minutes and all the memory."""
    model = save_tiny(tmp_path / "model", model_type)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, key: 1_000_000}))
    with pytest.raises(ModelBroken, match=r"describes a model of [\d,]+ weights, and its files cannot hold more than"):
        load_model(model, CPU)


@every_head
def test_a_class_nobody_has_is_told_by_the_weights(model_type, head, tmp_path):
    model = tiny(model_type, head)
    model.save_pretrained(tmp_path)
    for said, opener in zip((["MyOwnClassifier"], None, ["XLNetModel"]), OPENERS, strict=True):
        if opener not in openers(model_type):
            continue
        with_config(tmp_path, architectures=said)
        with pytest.warns(
            OpeningNote, match=f"its weights are those of a {type(model).__name__}, so it is opened as one"
        ):
            opened = OPENERS[opener](tmp_path)
        assert type(getattr(opened, "loaded", opened)).__name__ in ("Loaded", type(model).__name__)
    assert type(load_model(tmp_path, CPU).model) is type(model)


@pytest.mark.parametrize(
    ("kind", "change", "opened"),
    [
        ("BertForTokenClassification", {}, "BertForTokenClassification"),
        ("BertForPreTraining", {}, "BertForMaskedLM"),  # of its two heads the one that is supported
        ("BertForSequenceClassification", {"LayerNorm.weight": "LayerNorm.gamma"}, "BertForSequenceClassification"),
        ("GPT2DoubleHeadsModel", {}, "GPT2DoubleHeadsModel"),  # which no Auto class knows
        ("BertForMultipleChoice", {}, None),
    ],
)
def test_heads_are_told_apart_by_their_weights(kind, change, opened):
    model = class_named(kind)(tiny("gpt2" if kind.startswith("GPT2") else "bert").config)
    names = [name for name in model.state_dict() if name not in model.all_tied_weights_keys]
    for new, old in change.items():
        names = [name.replace(new, old) for name in names]
    model.config.architectures = None
    if opened is None:  # its weights are those of a classifier with one class
        names.append("something.else")
        with pytest.raises(UnknownArchitecture, match="no class for models of type 'bert' has the weights"):
            choose_class(model.config, names, None, "here")
    else:
        assert choose_class(model.config, names, None, "here").model_class.__name__ == opened


def test_a_type_that_contradicts_class_and_weights_is_one_line(tmp_path):
    tiny("llama").save_pretrained(tmp_path)
    with_config(tmp_path, model_type="bert")
    for opener in OPENERS.values():
        with pytest.raises(
            UnknownArchitecture, match="LlamaForCausalLM, which does not belong to its model_type 'bert'"
        ):
            opener(tmp_path)
    assert "does not belong to its model_type" in refused("inspect", tmp_path)
    with_config(tmp_path, model_type="mistral")  # the same weights by the same names, so they may be those of a Mistral
    assert type(load_model(tmp_path, CPU).model).__name__ == "MistralForCausalLM"


def test_notes_on_how_a_model_was_opened_are_in_the_report_and_on_standard_error(shelf, tmp_path, trusting):
    folder = Path(shutil.copytree(shelf / "bert", tmp_path / "bert"))
    with_config(folder, architectures=["MyBertClassifier"])
    asked = ("--macs", 0.6, "--data", shelf / "table.tsv", "--tokens", 600, "--no-timing", "--json")
    said = done("compress", folder, *asked, "--out", tmp_path / "small")
    note = "names the class 'MyBertClassifier', which transformers does not have"
    assert note in said.err and note in json.loads(said.out)["warnings"][0]
    again = json.loads((tmp_path / "small" / "config.json").read_text())
    assert again["architectures"] == ["BertForSequenceClassification"]
    masked = done("inspect", shelf / "bert", "--class", "AutoModel", "--json")
    assert json.loads(masked.out)["class"] == "BertModel"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nonsense", "is no model class of transformers; choose from LlamaForCausalLM"),
        ("BertForMaskedLM", "opens models of another type than 'llama'"),
        ("AutoModelForMaskedLM", "has no class for models of type 'llama'"),
        ("AutoTokenizer", "is no model class of transformers"),
        ("LlamaForSequenceClassification", "missing, the first is score.weight"),
    ],
)
def test_a_class_that_cannot_open_a_model_is_one_line(name, message, shelf):
    for command in (("inspect",), ("export", "--to", "onnx", "--out", "x"), ("bench", "--against", shelf / "llama")):
        assert message in refused(command[0], shelf / "llama", *command[1:], "--class", name)
    with pytest.raises(SlimformerError, match=message):
        slimformer.load(shelf / "llama", model_class=name)


def test_a_pickle_is_not_opened_and_the_line_that_converts_it_works(tmp_path):
    folder = save_tiny(tmp_path / "bert", "bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    expected = load_model(folder, CPU).model.state_dict()
    (folder / "model.safetensors").unlink()
    for opener in OPENERS.values():
        with pytest.raises(ModelNotFound, match="only safetensors are read") as error:
            opener(folder)
        assert "weights_only=False" not in str(error.value)
    code = str(error.value).split('python -c "')[1].removesuffix('"')
    run(["-c", code]).check_returncode()
    assert all(
        torch.equal(expected[name], weight) for name, weight in load_model(folder, CPU).model.state_dict().items()
    )


def test_an_adapter_and_weights_under_another_name_are_not_what_is_opened(tmp_path):
    folder = save_tiny(tmp_path / "llama", "llama")
    save_file({"other": torch.zeros(2)}, folder / "other.safetensors")
    with_config(folder, transformers_weights="other.safetensors")
    load_model(folder, CPU)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/else"}')
    assert "holds an adapter" in refused("inspect", folder)


def test_a_shard_that_holds_more_than_the_index_says_is_not_half_read(tmp_path):
    tiny("llama").save_pretrained(tmp_path, max_shard_size="40kB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[0]
    save_file({**load_file(shard), "model.layers.9.mlp.up_proj.weight": torch.zeros(4)}, shard)
    for opener in OPENERS.values():
        with pytest.raises(ModelBroken, match=r"model.layers.9.mlp.up_proj.weight"):
            opener(tmp_path)


def test_auto_is_the_best_device_that_is_here(monkeypatch):
    assert usable_device("auto") == "cpu" and usable_device(torch.device("cpu")) == "cpu"
    here = {"cpu": None, "cuda": None, "mps": None}

    def reason(name: str, dtype: torch.dtype) -> str | None:
        if name == "mps" and dtype == torch.float64:
            return "no double precision"
        return here.get(name.partition(":")[0], "not here")

    monkeypatch.setattr("slimformer.models.opening._reason_against", reason)
    assert usable_device("auto") == "cuda"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert usable_device("auto") == "cuda:1"
    here["cuda"] = "no driver"  # type: ignore[assignment]
    assert usable_device("auto") == "cpu" and usable_device("mps") == "mps"
    with pytest.raises(
        WrongArgument, match=r"device='cuda:1' cannot be used here \(no driver\); here are cpu, mps, or leave"
    ):
        usable_device("cuda")


def test_half_precision_is_for_accelerators_from_python_too(shelf):
    with pytest.raises(WrongArgument, match=r"dtype=torch.bfloat16 is for accelerators"):
        slimformer.compress(shelf / "llama", str(shelf / "text.txt"), macs=0.5, dtype=torch.bfloat16)
    assert usable_precision(torch.float64, "cpu") == torch.float64


def test_a_report_names_the_device(shelf):
    result = slimformer.compress(shelf / "llama", str(shelf / "text.txt"), macs=0.7, tokens=600, timing=False)
    assert result.report.opening == {"device": "cpu"}


def test_a_tokenizer_alone_makes_no_model(tmp_path):
    tiny_tokenizer().save_pretrained(tmp_path)
    assert "holds no config.json" in refused("inspect", tmp_path)


@pytest.mark.parametrize("said", [7, "int8"])
def test_a_config_with_no_precision_of_weights_is_one_line(said, tmp_path):
    folder = save_tiny(tmp_path / "odd", "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": said}))
    assert "which is no precision of weights" in refused("inspect", folder)


def test_why_a_device_cannot_be_used_is_not_cut_inside_a_word(shelf):
    line = refused("inspect", shelf / "llama", "--device", "tpu")
    assert re.search(r"cannot be used here \(Expected one of cpu, .*(\w| …)\);", line)
