"""The shell's cascade: one folder from a model or from statistics, and numbers on data that set nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import slimformer as package
from slimformer.checkpoint.cascade import read_record
from slimformer.evaluate.routing import Outcomes, at_threshold
from slimformer.report.cascade import routing_report
from terminal import done, refused, write_table

pytestmark = pytest.mark.usefixtures("trusting")


def cascade(shelf: Path, out: Path, *more: object) -> tuple[object, ...]:
    """The arguments of a short cascade of the classifier; what comes later counts."""
    data = ("--data", shelf / "table.tsv", "--tokens", 600)
    return ("cascade", shelf / "bert", *data, "--macs", "0.6,1", "--out", out, *more)


@pytest.fixture(scope="module")
def bert_stats(shelf: Path) -> Path:
    done(
        "calibrate", shelf / "bert", "--data", shelf / "table.tsv", "--tokens", 600, "--out", shelf / "bert-stats", "-q"
    )
    return shelf / "bert-stats"


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def test_what_is_reported_is_what_the_folder_does(shelf: Path, tmp_path: Path) -> None:
    found = json.loads(done(*cascade(shelf, tmp_path / "out", "--mean-macs", 0.9, "--json")).out)
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == found
    loaded, record = package.load_cascade(tmp_path / "out"), read_record(tmp_path / "out")
    assert loaded.threshold == record.nats == pytest.approx(found["cascade"]["threshold"])
    assert record.select["macs"] <= 0.9
    assert found["small"]["macs"] == record.small.macs <= 0.6 < found["large"]["macs"] == 1.0
    assert found["cascade"]["macs"] == pytest.approx(record.small.macs + found["cascade"]["routed"])
    assert found["measure"] == "accuracy" and found["refined"]
    assert set(weights(tmp_path / "out" / "large")) == set(weights(shelf / "bert"))


def test_statistics_give_the_cascade_of_the_model(shelf: Path, bert_stats: Path, tmp_path: Path) -> None:
    for refine in ("--refine", "--no-refine"):
        one, other = tmp_path / f"one{refine}", tmp_path / f"other{refine}"
        done(*cascade(shelf, one, refine, "-q"))
        options = ("--data", shelf / "table.tsv", "--tokens", 600, "--macs", "0.6,1", refine, "-q")
        done("cascade", bert_stats, *options, "--out", other)
        a, b = weights(one / "small"), weights(other / "small")
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert (one / "cascade.json").read_text() == (other / "cascade.json").read_text()
    a, plain = (weights(tmp_path / f"one--{how}" / "small") for how in ("refine", "no-refine"))
    assert any(not torch.equal(a[name], plain[name]) for name in plain)


def test_without_refinement_the_small_model_is_what_cut_makes(shelf: Path, bert_stats: Path, tmp_path: Path) -> None:
    done("cut", bert_stats, "--macs", 0.6, "--out", tmp_path / "cut", "-q")
    done(*cascade(shelf, tmp_path / "out", "--no-refine", "-q"))
    a, b = weights(tmp_path / "cut"), weights(tmp_path / "out" / "small")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_other_data_than_the_calibrations_only_set_the_threshold(bert_stats: Path, tmp_path: Path) -> None:
    other = write_table(tmp_path / "other.tsv", n=90)
    found = json.loads(done("cascade", bert_stats, "--data", other, "--out", tmp_path / "out", "--json").out)
    assert not found["refined"] and "not refined" in found["warnings"][0]
    assert found["select"]["inputs"] > 3 * found["inputs"]
    line = refused("cascade", bert_stats, "--data", other, "--refine", "--out", tmp_path / "no")
    assert "--refine needs the data the statistics were made from" in line


def test_a_language_model_scores_windows(shelf: Path, stats: Path, tmp_path: Path) -> None:
    data = ("--data", shelf / "text.txt", "--tokens", 600, "--no-refine")
    found = json.loads(done("cascade", stats, *data, "--macs", "0.6,0.8", "--out", tmp_path / "out", "--json").out)
    assert found["measure"] == "perplexity" and found["large"]["macs"] <= 0.8
    assert package.load_cascade(tmp_path / "out").scores_text
    said = done("cascade", stats, *data, "--macs", "0.6,0.8", "--out", tmp_path / "out", "--force").out
    assert said.startswith("measured on ") and "inputs held out" in said.splitlines()[0]
    assert "small alone" in said and "slimformer.load_cascade" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--macs", "0.5"), "names no two cuts"),
        (("--macs", "0.5,0.5"), "names no two cuts"),
        (("--macs", "0.001,1"), "0.001"),
        (("--mean-macs", 0.1), "make it smaller"),
    ],
)
def test_cascades_that_cannot_be(options: tuple[object, ...], said: str, shelf: Path, tmp_path: Path) -> None:
    assert said in refused(*cascade(shelf, tmp_path / "out", *options))
    assert not (tmp_path / "out").exists()


def test_a_cascade_is_not_one_model(shelf: Path, tmp_path: Path) -> None:
    done(*cascade(shelf, tmp_path / "out", "--no-refine", "-q"))
    with pytest.raises(package.SlimformerError, match="load_cascade"):
        package.load(tmp_path / "out")


def test_a_report_ends_where_the_two_models_are() -> None:
    outcomes = Outcomes("error", (0.1, 0.2, 0.3, 0.4), (0, 1, 0, 1), (0, 0, 0, 1), (1,) * 4, (1, 2, 3, 4))
    found = routing_report(outcomes, (0.3, 1.0), 0.25)
    first, last = found["curve"][0], found["curve"][-1]
    assert (first["macs"], first["accuracy"]) == (found["small"]["macs"], found["small"]["accuracy"]) == (0.3, 0.5)
    assert (last["macs"], last["accuracy"]) == (1.3, found["large"]["accuracy"]) and found["large"]["accuracy"] == 0.75
    point = at_threshold(outcomes, (0.3, 1.0), 0.25)
    assert found["cascade"]["token_macs"] == pytest.approx(point.token_macs) == pytest.approx(0.3 + 7 / 10)
    assert found["cascade"]["lost"] == pytest.approx(point.loss - 0.25)
    assert first["threshold"] is None and math.isfinite(last["threshold"])
