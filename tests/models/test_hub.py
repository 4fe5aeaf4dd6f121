"""Models of the hub: fetched at a revision, known by their commit, as safetensors only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import slimformer
from hub_stand_in import TOKEN, commit_of, standing_in
from slimformer.errors import ModelNotFound
from slimformer.models.load import load_model
from slimformer.models.opening import Opening
from slimformer.models.stream import sketch
from terminal import done, files, refused, save_tiny, write_texts

NAME = "somebody/llama"


def keep(cache: Path, revision: str, folder: Path) -> str:
    """Put a folder into a cache as huggingface_hub would have."""
    commit = commit_of(f"{NAME}@{revision}")
    place = cache / "models--somebody--llama"
    (place / "refs").mkdir(parents=True, exist_ok=True)
    (place / "refs" / revision).write_text(commit)
    for name, content in files(folder).items():
        (place / "snapshots" / commit / name).parent.mkdir(parents=True, exist_ok=True)
        (place / "snapshots" / commit / name).write_bytes(content)
    return commit


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_revision_is_what_is_opened_and_its_commit_is_in_report_and_card(cache, tmp_path, trusting):
    commits = {}
    for revision, sizes in (("main", {}), ("v1", {"intermediate_size": 40})):
        from families import tiny, tiny_tokenizer

        tiny("llama", **sizes).save_pretrained(tmp_path / revision)
        tiny_tokenizer().save_pretrained(tmp_path / revision)
        commits[revision] = keep(cache, revision, tmp_path / revision)
    assert load_model(NAME, Opening("cpu")).model.config.intermediate_size == 48
    assert slimformer.load(NAME, revision="v1").config.intermediate_size == 40
    assert sketch(NAME, Opening("cpu", revision="v1")).loaded.model.config.intermediate_size == 40
    write_texts(tmp_path / "text.txt")
    asked = ("--data", tmp_path / "text.txt", "--tokens", 600, "--no-timing", "--revision", "v1", "--json")
    said = json.loads(done("compress", NAME, "--macs", 0.7, *asked, "--out", tmp_path / "small").out)
    assert said["model"] == NAME
    assert said["opening"] == {"device": "cpu", "revision": "v1", "commit": commits["v1"]}
    card = (tmp_path / "small" / "README.md").read_text()
    assert "base_model: somebody/llama" in card and commits["v1"] in card
    page = (tmp_path / "small" / "report.html").read_text()
    assert commits["v1"] in page
    for path in (tmp_path / "small").glob("*.json"):
        assert str(cache) not in path.read_text()
    with pytest.raises(ModelNotFound, match="nor a model the hub gives at revision 'v2'"):
        slimformer.load(NAME, revision="v2")


def test_a_model_of_the_hub_in_pickles_is_one_line(cache, tmp_path):
    folder = save_tiny(tmp_path / "llama", "llama")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    keep(cache, "main", folder)
    assert "the hub has no model.safetensors of it; weights in pickles are not read" in refused("inspect", NAME)


def test_it_is_fetched_from_a_hub_without_what_is_not_needed(tmp_path):
    folder = save_tiny(tmp_path / "llama", "llama")
    extra = {"pytorch_model.bin": b"pickle", "evil.py": b"raise SystemExit", "consolidated.safetensors": b"twice"}
    with standing_in(models={f"{NAME}@v1": {**files(folder), **extra}}) as hub:
        environment = {
            **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(tmp_path / "home"),
        }  # fmt: skip
        command = [sys.executable, "-m", "slimformer", "inspect", NAME, "--revision", "v1", "--json"]
        child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    assert json.loads(child.stdout)["class"] == "LlamaForCausalLM"
    fetched = {path.rpartition("/")[2] for path in hub.asked if "/resolve/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= fetched and not fetched & extra.keys()
