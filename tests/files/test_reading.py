"""Every read ends: pipes, devices and files without an end are refused before a byte of them is read."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from slimformer.errors import FileRefused, SlimformerError
from slimformer.evaluate.report_file import read_report
from slimformer.files.reading import SMALL, checked, parse_own_json, parse_yaml, read_bytes, read_json, require_regular
from slimformer.files.seals import read_sealed, read_sealed_json, save_sealed, sealed_json
from slimformer.lab.settings import load_experiment
from slimformer.lab.state import read_head as read_state
from slimformer.models.load import load_model
from slimformer.plan import Plan
from slimformer.plan.curve_file import read_curves
from slimformer.recipe import load_recipe
from terminal import done, refused, save_tiny, write_texts

SRC = Path(__file__).parents[2] / "src" / "slimformer"
# files of the package itself, of the kernel, or made a moment ago by the process that reads them; a child without
# slimformer; the first bytes of a file that was looked at with `require_regular`; `atomic` and `save`: our own
# folders; `manifest`: sums of files, taken of regular ones alone
ELSEWHERE = {
    "calibrate/builtin.py", "calibrate/documents.py", "calibrate/tables.py", "models/state_store.py",
    "recipes/__init__.py", "checkpoint/atomic.py", "checkpoint/lock.py",
    "checkpoint/reload.py", "checkpoint/save.py", "checkpoint/verify.py", "evaluate/examples.py", "files/manifest.py",
    "files/reading.py",
    "evaluate/latency_table.py", "heads/waiting_rows.py", "report/card.py", "report/page.py",
    "steps/memory.py", "models/families/__init__.py", "lab/architectures/minimal_family.py", "nn/ragged.py",
    "nn/travelling.py", "calibrate/own_sounds.py", "calibrate/excerpt.py", "lab/data/packages.py", "lab/speed.py",
    "lab/experiments/__init__.py",
}  # fmt: skip
READS = {"read_text", "read_bytes", "open", "safe_load"}


def test_files_are_read_through_one_door():
    """A call of a method that reads: `path.read_text()`, `path.open()`, `yaml.safe_load`, and `open` itself."""
    found = set()
    for file in SRC.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in READS) else ():
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            is_method = isinstance(node.func, ast.Attribute) or name == "open"
            of = ast.unparse(node.func).rsplit(".", 1)[0]
            if is_method and name in READS and of not in {"webbrowser", "pil.Image", "Image", "os", "gzip"}:
                found.add(file.relative_to(SRC).as_posix())
    assert found - {"report/hub_card.py"} <= ELSEWHERE  # the card parses a text it was given


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("place", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(place, pipe):
    path = {"pipe": pipe, "device": Path("/dev/zero"), "folder": pipe.parent}[place]
    for read in (read_bytes, require_regular):
        with pytest.raises(FileRefused if place != "folder" or read is require_regular else OSError, match=r"."):
            read(path)


def test_a_file_over_its_limit_is_not_read(tmp_path):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FileRefused, match="larger than 64 MiB"):
        read_bytes(tmp_path / "sparse", SMALL)
    assert read_bytes("/proc/self/status")  # says that it is empty


def _in(folder: Path, name: str) -> Path:
    """A folder in which a name is a pipe."""
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    return folder


READERS = {
    "plan": lambda path: Plan.load(path),
    "recipe": lambda path: load_recipe(_renamed(path, "r.yaml")),
    "experiment": lambda path: load_experiment(path),
    "report": lambda path: read_report(path),
}


def _renamed(path: Path, name: str) -> Path:
    return path.rename(path.with_name(name))


@pytest.mark.parametrize("name", READERS)
def test_readers_refuse_pipes_in_one_line(name, pipe):
    with pytest.raises(SlimformerError, match="only regular files are read") as caught:
        READERS[name](pipe)
    assert "\n" not in str(caught.value)


def test_caches_that_are_pipes_are_none(pipe):
    assert read_curves(pipe) == {}
    assert read_state(pipe) == {}


def test_endless_files_beside_models_and_statistics_are_one_line(tmp_path):
    save_tiny(tmp_path / "llama", "llama")
    write_texts(tmp_path / "text.txt")
    brief = ("--data", tmp_path / "text.txt", "--tokens", 600, "-q")
    done("calibrate", tmp_path / "llama", *brief, "--out", tmp_path / "s")
    line = refused("apply", tmp_path / "s", "/dev/zero", "--out", tmp_path / "x")
    assert "the plan '/dev/zero' cannot be read: it is a device" in line
    for name in ("error_weights.json", "probes.json", "stats.json"):
        kept = (tmp_path / "s" / name).read_bytes()
        _in(tmp_path / "s", name)
        assert "only regular files" in refused("plan", tmp_path / "s", "--macs", 0.6, "--out", tmp_path / "p.json")
        (tmp_path / "s" / name).unlink()
        (tmp_path / "s" / name).write_bytes(kept)
    shutil.copytree(tmp_path / "llama", tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        with pytest.raises(SlimformerError, match=r"pipe|regular"):
            load_model(_in(tmp_path / "other", name))
        (tmp_path / "other" / name).unlink()


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "[NaN]", "[-Infinity]", '["\\ud800"]', "[" * 100_000, "9" * 5000])
def test_what_we_never_write_is_not_our_json(text):
    with pytest.raises(ValueError, match=r"."):
        parse_own_json(text)


def test_json_of_others_may_nest_but_not_without_end(tmp_path):
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a.json")


def test_a_few_lines_of_aliases_do_not_fill_the_memory():
    text = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True):
        text += f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(ValueError, match="aliases"):
        parse_yaml(text)


def test_fields_are_checked_strictly():
    assert checked(dict[str, float], {"a": 1}) == {"a": 1.0}
    for wrong in ({"a": "1"}, {"a": None}, [1], {"a": [1]}):
        with pytest.raises(ValueError, match=r"."):
            checked(dict[str, float], wrong)


def test_a_changed_bit_breaks_the_seal(tmp_path):
    value = {"a": [1, 2.5, "ü"], "b": {}}
    text = sealed_json(value)
    path = tmp_path / "a.json"
    path.write_text(text)
    assert read_sealed_json(path) == value
    path.write_text(text.replace("2.5", "2.25"))
    with pytest.raises(ValueError, match="checksum"):
        read_sealed_json(path)
    path.write_text(json.dumps(value))
    with pytest.raises(ValueError, match="no checksum"):
        read_sealed_json(path)

    tensors = {"x": torch.arange(6.0).reshape(2, 3), "empty": torch.zeros(0, dtype=torch.int64), "one": torch.tensor(1)}
    save_sealed(tensors, tmp_path / "a.safetensors", {"said": "ü"})
    found, texts = read_sealed(tmp_path / "a.safetensors")
    assert texts == {"said": "ü"}
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    good = bytearray((tmp_path / "a.safetensors").read_bytes())
    good[-1] ^= 1
    (tmp_path / "a.safetensors").write_bytes(good)
    with pytest.raises(ValueError, match="checksum"):
        read_sealed(tmp_path / "a.safetensors")
