"""What is printed is a few lines, whatever the model; in notebooks a table in which names are text."""

from __future__ import annotations

from pathlib import Path

import pytest

import slimformer
from families import tiny, tiny_batches
from slimformer.calibrate.gather import Data
from slimformer.models.load import in_memory
from terminal import write_texts

MOST_LINES, MOST_CHARACTERS = 10, 1000
NASTY = "<img src=x onerror=alert(1)>\n" + "x" * 5000


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    from terminal import save_tiny

    folder = save_tiny(tmp_path_factory.mktemp("short") / "llama", "llama")
    texts = write_texts(folder.parent / "text.txt")
    return slimformer.compress(folder, str(texts), macs=0.6, tokens=600, timing=False)


def printed(result):
    batches = tiny_batches(tiny("bert"))
    yield from (result, result.report, result.plan, result.loaded, slimformer.describe(result.model))
    yield from (Data({"fit": batches}, NASTY, "hash", 0, 16), *batches, in_memory(tiny("vit")))


def test_everything_prints_in_a_few_lines(result):
    for each in printed(result):
        said, page = repr(each), each._repr_html_()
        assert said == str(each) and said.startswith(type(each).__name__)
        assert len(said) <= MOST_CHARACTERS and len(said.splitlines()) <= MOST_LINES
        assert page.startswith("<table>") and "<img" not in page and len(page) <= 2 * MOST_CHARACTERS


def test_a_result_says_what_counts(result):
    report = result.report
    said = repr(result)
    assert f"({report.macs_kept:.3f})" in said and "MB →" in said and report.recipe in said
    metric = report.metrics[0]
    assert f"{metric['name']}" in said and f"{metric['dense']:.4g} → {metric['small']:.4g}" in said
    assert str(Path(report.model)) in said


def test_statistics_and_cascades_print_briefly_too(tmp_path, shelf, stats):
    from slimformer.calibrate.store import open_statistics
    from slimformer.steps.cascade import Cascade

    model = tiny("bert", "classify")
    for each in (open_statistics(stats), Cascade(model, model, 0.5, (0.5, 1.0))):
        assert len(repr(each)) <= MOST_CHARACTERS and each._repr_html_().count("<tr>") >= 2
