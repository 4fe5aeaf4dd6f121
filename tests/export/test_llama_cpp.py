"""GGUF files in llama.cpp itself, where xllamacpp is installed: the same words and probabilities as in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from test_gguf import ragged

from families import tiny, tiny_compressed
from slimformer.errors import ExportFailed
from slimformer.export import gguf_file, gguf_ragged
from slimformer.export.asked import Target
from slimformer.export.llama_cpp import has_llama_cpp, run_llama_cpp
from slimformer.export.write import export_model
from slimformer.models.load import Loaded
from vocabularies import SIZE, of_bytes

pytest.importorskip("gguf", reason="gguf is an extra")
needs_llama_cpp = pytest.mark.skipif(not has_llama_cpp(), reason="xllamacpp is not installed (extra llama-cpp)")
IDS = [5, 9, 20, 33, 7, 41]
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "llama_cpp.json"


def exported(model, folder, quant="f32"):
    made = export_model(Loaded("mine", model, of_bytes()), folder / "out", Target("gguf", quant=quant))
    return folder / "out" / made.file, made


@needs_llama_cpp
@pytest.mark.slow
@pytest.mark.parametrize("quant", ["f32", "f16"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
@pytest.mark.parametrize("kind", ["ragged", "plain"])
@torch.no_grad()
def test_llama_cpp_goes_on_with_the_same_words(model_type, kind, quant, tmp_path):
    small = ragged(model_type) if kind == "ragged" else tiny_compressed(
        tiny(model_type, vocab_size=SIZE), 0.6, format="plain"
    )  # fmt: skip
    file, made = exported(small, tmp_path, quant)
    (said,) = run_llama_cpp(file, [IDS], new_tokens=12)
    wanted = small.generate(torch.tensor([IDS]), max_new_tokens=12, min_new_tokens=12, do_sample=False)
    assert said["tokens"] == wanted[0, len(IDS) :].tolist()
    assert (gguf_ragged.RUN in made.notes) == (kind == "ragged" or model_type == "qwen2")
    here = small(torch.tensor([IDS])).logits[0, -1].log_softmax(-1)
    letters = of_bytes().encode("to be", add_special_tokens=False)  # whole characters
    there = run_llama_cpp(file, [IDS] * len(letters), forced=letters)
    assert [each["tokens"] for each in there] == [[token] for token in letters]
    assert max(abs(float(here[token]) - each["logprob"]) for token, each in zip(letters, there, strict=True)) < 0.02


@needs_llama_cpp
@pytest.mark.slow
def test_what_llama_cpp_says_otherwise_is_refused(tmp_path, monkeypatch):
    """Rows in the order of transformers, in the file and when it is read back: only llama.cpp can tell."""
    monkeypatch.setattr(gguf_file, "permuted", lambda array, heads: array)
    for file in (gguf_file, gguf_ragged):
        monkeypatch.setattr(file, "unpermuted", lambda array, heads: torch.from_numpy(array.astype("float32")))
    with pytest.raises(ExportFailed, match=r"llama\.cpp goes on with token"):
        exported(ragged("llama"), tmp_path)
    assert not (tmp_path / "out").exists()


@needs_llama_cpp
@pytest.mark.slow
def test_a_file_it_does_not_open_is_one_line(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(RuntimeError) as error:
        run_llama_cpp(tmp_path / "model.gguf", [IDS])
    assert str(error.value) and "\n" not in str(error.value)


def test_without_llama_cpp_the_file_is_checked_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_ragged, "has_llama_cpp", lambda: False)
    _, made = exported(ragged("llama"), tmp_path)
    assert made.verified and gguf_ragged.CHECKED in made.notes


def test_the_committed_figures_keep_the_promise():
    """A real model: the same words, and perplexity within half a per cent, in f32 and f16."""
    found = json.loads(RESULTS.read_text())
    assert len({tuple(block) for block in found["blocks"]}) > 1, "its blocks must differ"
    for name, each in found["files"].items():
        if "q8_0" not in name:
            assert each["same"] == each["texts"] or each["nearest"] < 0.01, name
            assert abs(each["perplexity_there"] / each["perplexity"] - 1) < 0.005, name
