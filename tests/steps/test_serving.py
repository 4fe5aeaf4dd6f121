"""Where a result is to be served decides its format and what is cut of it, and what that costs is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import slimformer
from families import tiny
from slimformer.errors import SlimformerError
from slimformer.export.serving import PLACES
from slimformer.models import describe
from terminal import done, refused, texts
from vocabularies import SIZE, of_bytes


def made(target, model_type="llama", **how):
    """A small cut, of a model whose feed-forward parts could be cut by ranks and paths."""
    model = tiny(model_type, vocab_size=SIZE, intermediate_size=128)
    data = [text.replace("w", "") for text in texts(200)]
    how = {"macs": 0.6, "tokens": 2000, "timing": False, "only_data": True, "processor": of_bytes(), **how}
    return slimformer.compress(model, data, runtime=target, **how)


def note_of(result):
    (note,) = [note for note in result.report.warnings if note.startswith("made for ")]
    return note


@pytest.mark.parametrize("target", ["transformers", "vllm"])
def test_plain_places_get_a_folder_the_stock_classes_open_alone(target, tmp_path):
    result = made(target)
    folder = result.save(tmp_path / "small", verify=False)
    config = json.loads((folder / "config.json").read_text())
    assert "slimformer" not in config and "auto_map" not in config
    read = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        assert torch.allclose(read(ids).logits, result.model(ids).logits, atol=1e-4)
    if target == "vllm":
        blocks = describe(read).blocks
        assert len({(b.heads[0].units, b.neurons[0].units) for b in blocks}) == 1
        assert not any(edit.site.endswith((".qk", ".vo")) or edit.rank for edit in result.plan.edits)
    assert target in note_of(result)


@pytest.mark.parametrize("model_type", PLACES["llama.cpp"].kinds)
def test_llama_cpp_gets_whole_heads_and_neurons_in_blocks_of_32(model_type, tmp_path):
    pytest.importorskip("gguf", reason="gguf is an extra")
    result = made("llama.cpp", model_type)
    folder = result.save(tmp_path / "small", verify=False)
    small = slimformer.load(folder)
    assert all(block.neurons[0].units % 32 == 0 for block in describe(small).blocks)
    written = slimformer.export(folder, to="gguf", out=tmp_path / "files", quant="q8_0")
    assert written.verified
    note = note_of(result)
    ours, best = (float(note.split(before)[1].split(" ")[0]) for before in ("divergence ", "nats, "))
    assert 0 < best <= ours, "what is given up is not won"


@pytest.mark.slow
def test_onnx_takes_whatever_is_cut(tmp_path):
    pytest.importorskip("onnxruntime", reason="onnx is an extra")
    folder = made("onnx").save(tmp_path / "small", verify=False)
    assert slimformer.export(folder, to="onnx", out=tmp_path / "files").verified


@pytest.mark.slow
def test_sentence_transformers_opens_its_folder_in_a_fresh_process(tmp_path):
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is an extra")
    done("compress", "demo:minilm", "--macs", 0.6, "--tokens", 2048, "--seq-len", 64, "--no-timing",
         "--for", "sentence-transformers", "--out", tmp_path / "small", "-q")  # fmt: skip
    code = "import sys; from sentence_transformers import SentenceTransformer as S\n"
    code += "print(S(sys.argv[1], device='cpu').encode(['a']).shape); assert 'slimformer' not in sys.modules"
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path / "small")], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert child.stdout.strip() == "(1, 384)"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: made("nowhere"), "runtime='nowhere' is not known; choose from transformers"),
        (lambda: made("llama.cpp", "qwen3"), "is for language models of the types llama, mistral, qwen2"),
        (lambda: made("sentence-transformers"), "is for folders of sentence-transformers"),
        (lambda: made("vllm", format="ragged"), "runtime='vllm' needs format='plain'"),
        (
            lambda: made("llama.cpp", settings={"cut.attention": "best"}),
            "runtime='llama.cpp' needs cut.attention=heads, and best was asked for",
        ),
        (
            lambda: slimformer.compress_streamed("x", "y", macs=0.5, memory=10**9, runtime="onnx"),
            "runtime=… looks at the model whole",
        ),
    ],
)
def test_refusals_are_one_line(call, says):
    with pytest.raises(SlimformerError) as error:
        call()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_shell_says_it_in_its_own_words(tmp_path):
    assert "--for nowhere is not known" in refused(
        "compress", "x", "--macs", 0.5, "--for", "nowhere", "--out", tmp_path
    )


def test_every_place_has_its_line_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    for name in PLACES:
        assert f"--for {name} " in page and f"## {name}" in page, name
