"""Like MPS, which has no float64: every command that runs a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from devices.backend import NAME
from slimformer.linalg.precision import has_double
from slimformer.models.opening import usable_device
from terminal import done, save_sentences, save_subwords

BRIEF = "--tokens 160 --no-timing -q"
TEXT = f"--data {{shelf}}/text.txt {BRIEF}"
ROWS = f"--data {{shelf}}/table.tsv {BRIEF}"
LOCAL = "--set heal.phases=local --set heal.text=600"  # the global phase is on devices that accelerate knows
PATHS = {
    "depth": f"compress {{shelf}}/llama --recipe depth --macs 0.7 {TEXT} --out {{out}}",
    "plain ranks": f"compress {{shelf}}/llama --macs 0.6 --format plain --no-refine {TEXT} --out {{out}}",
    "grouped keys": f"compress {{shelf}}/llama --recipe long-context --k 8 --window 16 {TEXT} --out {{out}}",
    "lossless": "compress {shelf}/llama --recipe lossless -q --out {out}",
    "linear paths": f"compress {{shelf}}/gpt2 --recipe linear-mlp --macs 0.6 {TEXT} --out {{out}}",
    "images": "compress {shelf}/vit --macs 0.6 --data {shelf}/images --no-timing -q --out {out}",
    "a head": f"compress {{shelf}}/bert --macs 0.6 --head-data {{shelf}}/table.tsv {ROWS} --out {{out}}",
    "cascade": "cascade {shelf}/bert --macs 0.6,0.8 --data {shelf}/table.tsv --tokens 160 -q --out {out}",
    "quantize": f"quantize {{shelf}}/llama --bits 4 {TEXT} --out {{out}}",
    "sparsify": f"sparsify {{shelf}}/llama {TEXT} --out {{out}}",
    "sparsify by size": f"sparsify {{shelf}}/llama --method magnitude {TEXT} --out {{out}}",
    "probe": "probe {shelf}/bert --data {shelf}/table.tsv -q --out {out}",
    "adapt": "adapt {shelf}/llama --data {shelf}/text.txt -q --out {out}",
    "match": "match --source {shelf}/vit --target {shelf}/bert --method cca --data {pairs} -q",
    "inspect": "inspect {shelf}/bert --data {shelf}/table.tsv --tokens 160 -q",
    "fewer tokens": f"compress {{shelf}}/subwords --recipe vocabulary --vocab 0.8 {TEXT} --out {{out}}",
    "shorter embeddings": f"compress {{shelf}}/sentences --macs 0.7 --set embedding.dim=8 {TEXT} --out {{out}}",
    "tables in few bits": f"quantize {{shelf}}/subwords --tables {TEXT} --out {{out}}",
    "what is learned": f"compress {{shelf}}/llama --macs 0.6 --heal 1s {LOCAL} {TEXT} --out {{out}}",
    "discovery": "families discover {shelf}/gpt2 -q --out {out}.yaml",
    "proofs": "families check llama {shelf}/llama -q",
    "attention": "attention {shelf}/llama --data {shelf}/text.txt -q",
}


@pytest.fixture(scope="module", autouse=True)
def unverified() -> Iterator[None]:
    """A saved folder is opened on the CPU, wherever it was made; `with_double` has one that is."""
    with pytest.MonkeyPatch.context() as patched:
        for place in ("checkpoint.save", "steps.streaming"):
            patched.setattr(f"slimformer.{place}.verify_reload", lambda *_: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def more(shelf: Path) -> None:
    save_subwords(shelf / "subwords")
    save_sentences(shelf / "sentences")


@pytest.fixture(scope="module")
def small(shelf: Path) -> Path:
    """Cut in three steps, each on the device."""
    steps = (
        "calibrate {shelf}/llama --data {shelf}/text.txt --tokens 160 --device elsewhere --out {shelf}/stats -q",
        "plan {shelf}/stats --macs 0.6 --out {shelf}/plan.json -q",
        "apply {shelf}/stats {shelf}/plan.json --device elsewhere --out {shelf}/small -q",
    )
    for step in steps:
        done(*step.format(shelf=shelf).split())
    return shelf / "small"


def test_auto_takes_the_cpu_where_there_is_no_double_precision():
    assert usable_device("auto") == "cpu" and usable_device(NAME) == NAME and not has_double(NAME)


@pytest.mark.parametrize("path", PATHS)
def test_every_path_runs_on_another_device(path, shelf, tmp_path):
    pairs = [{"image": f"{shelf}/images/{i % 5}/{i}.png", "caption": f"w{10 + i} w{20 + i}"} for i in range(12)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    command = PATHS[path].format(shelf=shelf, out=tmp_path / "out", pairs=tmp_path / "pairs.jsonl")
    done(*command.split(), "--device", NAME)


def test_a_cut_model_is_evaluated_and_timed_on_another_device(shelf, small):
    against = f"{small} --against {shelf}/llama --device {NAME} --json"
    found = json.loads(done(*f"eval {against} --data {shelf}/text.txt --tokens 160".split()).out)
    assert found["latency"]["device"].startswith(NAME)
    timed = json.loads(done(*f"bench {against} --seq-len 16 --new-tokens 2 --repeats 2".split()).out)
    assert timed["device"].startswith(NAME)


def test_a_front_is_made_and_measured_on_another_device(shelf, small):
    data = f"--data {shelf}/text.txt --tokens 160 --macs 0.6 --device {NAME} --json"
    assert json.loads(done("sweep", shelf / "stats", *data.split()).out)


def test_models_larger_than_memory_are_for_the_cpu(shelf, tmp_path):
    command = f"compress {shelf}/llama --memory 8GB --recipe uniform --macs 0.6 --data {shelf}/text.txt --tokens 160"
    done(*command.split(), "--no-timing", "-q", "--out", tmp_path / "out")
