"""Spoilt files of every kind are refused in one line, or read as what they say."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spoiling import EQUAL, MISREAD, REFUSED, Target, attempt, meaning, same
from spoilt_files import targets

NAMES = (
    "plan.json", "recipe.yaml", "lab.yaml", "head.safetensors", "match.safetensors", "state.safetensors", "note.json",
    "rows.jsonl", "rows.json", "rows.tsv", "rows.csv", "rows.parquet", "text.txt", "config.json", "model.safetensors",
    "model.safetensors.index.json", "tokenizer.json", "stats.json", "error_weights.json", "probes.json",
    "moments/block-000.safetensors", "curves.json", "config.json, plain", "model.safetensors, plain",
    "config.json, ragged", "model.safetensors, ragged", "config.json, four bits", "model.safetensors, four bits",
    "report.json, result", "plan.json, result", "tokenizer.json, result", "cascade.json",
    "family.yaml", "block-000.note", "config.json, vocabulary", "model.safetensors, vocabulary",
    "tokenizer.json, vocabulary", "report.json, vocabulary", "config.json, tables", "model.safetensors, tables",
    "modules.json, shorter", "2_Dense/model.safetensors, shorter", "2_Dense/config.json, shorter",
)  # fmt: skip
randoms = st.randoms(use_true_random=False)
brief = settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Target], Path]:
    root = tmp_path_factory.mktemp("good")
    return targets(root), root / "spoilt"


@pytest.mark.parametrize("name", NAMES)
@brief
@given(draw=randoms)
def test_a_spoilt_file_is_refused_or_read_as_what_it_says(
    name: str, shelf: tuple[dict[str, Target], Path], draw: random.Random
):
    target, folder = shelf[0][name], shelf[1]
    outcomes = (EQUAL, REFUSED, MISREAD) if target.unlisted else (EQUAL, REFUSED)
    assert attempt(target, draw, folder) in outcomes


def test_every_target_is_tried(shelf):
    assert set(NAMES) == set(shelf[0])


@pytest.mark.parametrize("name", NAMES)
def test_good_files_are_read(name: str, shelf: tuple[dict[str, Target], Path], tmp_path):
    target = shelf[0][name]
    shutil.copytree(target.around, tmp_path / "x") if target.around else (tmp_path / "x").mkdir()
    (tmp_path / "x" / target.name).write_bytes(target.good)
    found = target.read(tmp_path / "x")
    assert same(found, target.second(tmp_path / "x") if target.second else meaning(target, tmp_path / "y" / name))


def test_an_error_that_is_not_ours_goes_up(tmp_path):
    def read(_folder: Path) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        attempt(Target("x.json", b"{}", read), random.Random(0), tmp_path / "x")


def test_what_is_believed_and_wrong_is_noticed(tmp_path):
    """A reader that believes whatever is there."""
    target = Target("x.txt", b"0" * 50, lambda folder: (folder / "x.txt").read_bytes())
    outcomes = {attempt(target, random.Random(seed), tmp_path / "x") for seed in range(20)}
    assert MISREAD in outcomes
    assert outcomes <= {MISREAD, EQUAL}
