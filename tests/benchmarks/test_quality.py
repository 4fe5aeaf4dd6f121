"""The run around the methods: cells are kept under the code that made them, tables live with what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benched import LENGTH, SIMULATED, Evidence, evidence_of

from cells import Cache, Cell, code_hash, deciding_code, simulating_code
from quality import METHODS, Bench
from slimformer.models.load import Loaded
from subjects import Score, Subject
from verdicts import OURS, console_tables, grid, summary


def bench_on(evidence: Evidence, folder: Path) -> Bench:
    """A bench that measures a tiny language model; only recipes and curves would need statistics."""
    data = {"fit": evidence.fit, "select": evidence.select}
    loaded = Loaded("tiny", evidence.given.model, None)
    subject = Subject("tiny", loaded, LENGTH, data, {"text": evidence.select}, True, "random")
    statistics: Any = None
    return Bench(subject, statistics, evidence.given, evidence, Cache(folder, "settings", "ours"), lambda _text: None)


def no_curves() -> Any:
    raise AssertionError("methods that are simulated have no curves")


@pytest.mark.parametrize("method", SIMULATED)
def test_a_cell_is_made_once_and_kept_under_the_code_that_made_it(method: str, tmp_path: Path) -> None:
    bench = bench_on(evidence_of("llama"), tmp_path)
    made = bench.cell(method, 1.0, no_curves)
    (file,) = (tmp_path / "cells").iterdir()
    assert file.stem.endswith(f"-{simulating_code()}")
    assert bench.cell(method, 1.0, no_curves) == made
    assert made.scores == bench.dense().scores


def test_models_that_differ_only_in_what_is_sliced_are_measured_apart(tmp_path: Path) -> None:
    bench = bench_on(evidence_of("llama"), tmp_path)
    bench.measure(SIMULATED["slicegpt"].make(bench.evidence, 0.85).model, "")
    bench.measure(SIMULATED["slicegpt"].make(bench.evidence, 0.6).model, "")
    assert len(list((tmp_path / "scores").iterdir())) == 2


def test_a_method_that_misses_its_budget_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_on(evidence_of("llama"), tmp_path)
    cut = SIMULATED["shortgpt"].make(bench.evidence, 0.5)
    monkeypatch.setattr(Bench, "_smaller", lambda *_: cut)
    for budget in (0.3, 0.7):  # above a budget, and more than a block of three below it
        with pytest.raises(SystemExit, match=r"keeps 0\.3333 of the MACs"):
            bench.cell("shortgpt", budget, no_curves)


def test_encoders_say_what_they_go_without(tmp_path: Path) -> None:
    bench = bench_on(evidence_of("bert"), tmp_path)
    missing = {method for method in METHODS if bench.left_out(method)}
    assert missing == {"slicegpt", "replaceme", "plain"}


def test_tables_live_with_a_method_that_is_missing() -> None:
    score = {"text": Score((1.0, 2.0), (1.0, 1.0))}
    cells = [Cell(method, 0.5, 0.5, 0.5, {}, 0.0, score) for method in ("modegpt", OURS)]
    cells.append(Cell("slicegpt", 0.9, 0.9, 0.9, {}, 0.0, score))
    found = summary(Cell("dense", 1.0, 1.0, 1.0, {}, 0.0, score), cells)
    _, rows = grid(found, "text")
    assert [row[0] for row in rows] == ["modegpt", OURS, "slicegpt"]
    assert rows[2][-1] == "–"
    assert len(list(console_tables(found))) == 1


def test_our_code_and_theirs_are_hashed_apart(tmp_path: Path) -> None:
    assert simulating_code() != deciding_code()
    file = tmp_path / "simulated_x.py"
    hashes = []
    for text in ("x = 1", "x = 2", "x = 2  # comment"):
        file.write_text(text)
        hashes.append(code_hash([file]))
    assert hashes[0] != hashes[1] == hashes[2]
