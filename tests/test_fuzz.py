"""Spoilt files of every kind are read, or refused in one line."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spoiling import Target, attempt, targets

NAMES = (
    "plan.json", "recipe.yaml", "head.safetensors", "rows.jsonl", "rows.json", "rows.tsv", "rows.csv", "rows.parquet",
    "text.txt", "config.json", "model.safetensors", "tokenizer.json", "model.safetensors.index.json", "stats.json",
    "loudness.json", "moments/block-000.safetensors", "config.json, ragged", "model.safetensors, ragged",
    "config.json, four bits", "model.safetensors, four bits", "lab.yaml",
)  # fmt: skip
randoms = st.randoms(use_true_random=False)
brief = settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Target], Path]:
    root = tmp_path_factory.mktemp("good")
    return targets(root), root / "spoilt"


@pytest.mark.parametrize("name", NAMES)
@brief
@given(draw=randoms)
def test_a_spoilt_file_is_read_or_refused(name: str, shelf: tuple[dict[str, Target], Path], draw: random.Random):
    found, folder = shelf
    assert attempt(found[name], draw, folder) in ("read", "refused")


def test_every_target_is_tried(shelf):
    assert set(NAMES) == set(shelf[0])


@pytest.mark.parametrize("name", NAMES)
def test_good_files_are_read(name: str, shelf: tuple[dict[str, Target], Path]):
    target, folder = shelf[0][name], shelf[1]
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(target.around, folder) if target.around else folder.mkdir()
    (folder / target.name).write_bytes(target.good)
    target.read(folder)


def test_an_error_that_is_not_ours_goes_up(tmp_path):
    def read(_folder: Path) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        attempt(Target("x.json", b"{}", read), random.Random(0), tmp_path / "x")
