"""Files of users survive every command, and files of ours are read only as they were written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import slimformer
from slimformer.checkpoint.atomic import require_free
from slimformer.errors import FileChanged
from slimformer.files import manifest
from terminal import done, files, refused


@pytest.fixture(scope="module")
def made(stats: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result, as `cut` writes it."""
    place = tmp_path_factory.mktemp("made") / "small"
    done("cut", stats, "--macs", 0.7, "--no-verify", "--out", place, "-q")
    return place


@pytest.fixture
def small(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "small")


def flip(path: Path, at: float = 0.9) -> None:
    """Turn one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(at * len(data))] ^= 1
    path.write_bytes(data)


def test_a_plan_beside_a_thesis_does_not_make_a_result_of_it(
    stats: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "checkpoints").mkdir(parents=True)
    (project / "checkpoints" / "last.pt").write_text("days of work")
    (project / "thesis.tex").write_text("years of it")
    monkeypatch.chdir(project)
    done("plan", stats, "--macs", 0.7, "-q")
    monkeypatch.chdir(tmp_path)
    before = files(project)
    assert set(before) == {"plan.json", "thesis.tex", "checkpoints/last.pt"}
    line = refused("cut", stats, "--macs", 0.7, "--out", project, "--force")
    assert "neither empty nor a result" in line and "checkpoints/last.pt" in line and "thesis.tex" in line
    assert files(project) == before


def test_what_users_put_into_a_real_result_is_named_and_survives(stats: Path, small: Path) -> None:
    (small / "notes.md").write_text("mine")
    before = files(small)
    line = refused("cut", stats, "--macs", 0.6, "--no-verify", "--out", small, "--force")
    assert "notes.md; move that away" in line
    assert files(small) == before
    (small / "notes.md").unlink()
    done("cut", stats, "--macs", 0.6, "--no-verify", "--out", small, "--force", "-q")


@pytest.mark.parametrize("command", ["plan", "frontier", "report"])
def test_a_file_of_another_kind_is_not_replaced(command: str, stats: Path, small: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    asked = {"plan": ("plan", stats, "--macs", 0.7), "frontier": ("frontier", stats), "report": ("report", small)}
    assert "not replaced, even with --force" in refused(*asked[command], "--out", thesis, "--force")
    assert thesis.read_text() == "years of work"
    done(*asked[command], "--out", tmp_path / "other", "-q")
    done(*asked[command], "--out", tmp_path / "other", "--force", "-q")


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"])
def test_one_bit_in_a_checkpoint_is_found(name: str, small: Path, shelf: Path) -> None:
    if name == "generation_config.json" and not (small / name).exists():
        pytest.skip("this model has none")
    flip(small / name)
    line = refused("inspect", small)
    assert f"small/{name} is not what slimformer wrote there" in line
    assert f"remove {small / 'slimformer.json'}" in line
    if not name.startswith("tokenizer"):
        with pytest.raises(FileChanged, match=name.replace(".", r"\.")):
            slimformer.load(small)
    if name == "model.safetensors":
        assert slimformer.load(small, verify=False) is not None


@pytest.mark.parametrize("name", ["stats.json", "error_weights.json", "probes.json", "moments/block-001.safetensors"])
def test_one_bit_in_statistics_is_found(name: str, stats: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stats, tmp_path / "stats", ignore=shutil.ignore_patterns("curves-*"))
    flip(folder / name)
    recipe = ("--recipe", "uniform") if name == "error_weights.json" else ()
    line = refused("cut", folder, "--macs", 0.7, *recipe, "--out", tmp_path / "out")
    assert f"{name} is not what slimformer wrote there" in line


def test_one_bit_in_curves_has_them_computed_again(stats: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stats, tmp_path / "stats")
    done("plan", folder, "--macs", 0.7, "--out", tmp_path / "first.json", "-q")
    (curves,) = folder.glob("curves-*-paths.json")
    before = curves.read_bytes()
    flip(curves)
    done("plan", folder, "--macs", 0.7, "--out", tmp_path / "second.json", "-q")
    assert (tmp_path / "first.json").read_text() == (tmp_path / "second.json").read_text()
    assert curves.read_bytes() == before
    require_free(folder, True)


def test_a_changed_plan_beside_a_model_is_not_believed_and_one_that_is_given_is(
    stats: Path, small: Path, tmp_path: Path
) -> None:
    plan = json.loads((small / "plan.json").read_text())
    (small / "plan.json").write_text(json.dumps({**plan, "recipe": "mine"}))
    assert "plan.json is not what slimformer wrote" in refused("quantize", small, "--bits", 8, "--out", tmp_path / "q")
    assert "plan.json" in refused("cut", stats, "--macs", 0.6, "--out", small, "--force")
    done("apply", stats, small / "plan.json", "--out", tmp_path / "applied", "-q")


def test_what_people_edit_does_not_stop_loading(small: Path) -> None:
    for name in ("README.md", "report.html", "report.json"):
        (small / name).write_text("my words")
    assert slimformer.load(small) is not None
    found = manifest.strangers(small)
    assert sorted(found) == ["README.md", "report.html", "report.json"]


def test_a_model_trained_on_is_opened_when_the_list_is_gone(small: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(small)
    model.lm_head.weight.data += 1e-3
    model.save_pretrained(tmp_path / "elsewhere")
    assert slimformer.load(tmp_path / "elsewhere") is not None
    model.save_pretrained(small)
    with pytest.raises(FileChanged, match=r"if the change is meant, remove .*slimformer\.json"):
        slimformer.load(small)
    (small / "slimformer.json").unlink()
    assert slimformer.load(small) is not None


def test_results_that_grow_stay_results(stats: Path, small: Path, shelf: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(stats, tmp_path / "stats")
    done("plan", folder, "--macs", 0.7, "--recipe", "uniform", "--out", tmp_path / "plan.json", "-q")
    assert len(list(folder.glob("curves-*"))) > len(list(stats.glob("curves-*-fisher*")))
    require_free(folder, True)
    done("bench", small, "--against", shelf / "llama", "--repeats", 1, "--seq-len", 8, "--record", "-q")
    done("report", small, "-q")
    os.remove(small / "report.html")
    done("report", small, "-q")
    assert json.loads((small / "report.json").read_text())["bench"]
    require_free(small, True)
    manifest.require_unchanged(small, "*")
