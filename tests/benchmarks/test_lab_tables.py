"""Tables of the lab: published numbers stand beside ours, a data set is one table, and what is not there is said."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def lab_tables(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    import lab_tables

    return lab_tables


def row(dataset, name, parameters, accuracy, published):
    measured = {"loss": {"mean": 0.5, "std": 0.1}, "accuracy": {"mean": accuracy, "std": 0.01}}
    return {
        "row": f"{dataset}, {name}", "labels": {"dataset": dataset}, "seeds": [0, 1], "diverged": {}, "q": 2.0,
        "parameters": parameters, "seconds": {"mean": 3.0, "std": None}, "train": measured, "validation": measured,
        "published": published, "steps": 10,
    }  # fmt: skip


RESULTS = {
    "name": "x", "data": {"mnist": {"train": 60000, "validation": 10000}, "cifar10": {"train": 5, "validation": 5}},
    "epochs": {"mnist": 2.0, "cifar10": None}, "batch_size": 256, "optimiser": {"lr": 0.002},
    "published_source": "somebody", "rows": [
        row("mnist", "all", 1000, 0.98, {"accuracy": 98.5}), row("mnist", "less", 90, 0.91, {}),
        row("cifar10", "all", 1000, 0.5, {}),
    ],
}  # fmt: skip


def test_a_data_set_is_a_table_with_the_published_numbers_beside_ours(lab_tables):
    text = lab_tables.lab(RESULTS, "mnist")
    assert "60,000 examples" in text and "2 epochs" in text and "Published: somebody." in text
    assert "| less | 2 | 90 | 9.0 % | 2.00 |" in text and "published accuracy" in text
    assert "98.00 ± 1.00" in text and "98.5" in text and "cifar10" not in text
    assert "10 steps" in lab_tables.lab(RESULTS, "cifar10")
    assert "mnist, less" in lab_tables.lab(RESULTS, None)


def test_a_data_set_that_was_not_run_is_said(lab_tables):
    with pytest.raises(Exception, match="no data set 'svhn'"):
        lab_tables.lab(RESULTS, "svhn")
