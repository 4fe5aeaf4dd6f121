"""The views of a report: what is measured is what is shown, and nothing is shown that was not measured."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from slimformer.evaluate.report import Footprint, Report
from slimformer.models.load import load_model
from slimformer.report.card import model_card
from slimformer.report.console import show
from terminal import save_tiny

METRIC = {"name": "kl", "dense": 0.0, "small": 0.25, "better": "lower", "low": -0.1, "high": 0.4}
SITES = [
    {"site": f"blocks.0.{kind}", "block": 0, "kind": kind, "keep": 2, "of": 4, "groups": 2, "of_groups": 4}
    for kind in ("attn.heads", "ffn.hidden")
]


@pytest.fixture
def report():
    return Report(
        model="owner/name", model_type="llama", load_class="AutoModelForCausalLM", recipe="balanced", format="ragged",
        budget=0.5, macs_kept=0.5, seq_len=16, dense=Footprint(1000, 10, 2000, 1500, 8000),
        small=Footprint(500, 10, 1200, 700, 4800), metrics=[METRIC], sites=SITES,
        data={"name": "/home/someone/text.txt", "hash": "abc", "seed": 0, "tokens": {"report": 1234}, "unit": "tokens"},
    )  # fmt: skip


def shown(report: Report) -> str:
    out = io.StringIO()
    show(report, Console(file=out, width=200))
    return out.getvalue()


def latency(dense: float, small: float, ratio: float) -> dict:
    return {"dense": dense, "small": small, "ratio": ratio}


def test_the_ratio_of_latency_is_the_quotient_of_its_row(report):
    timed = {
        "body": latency(0.010, 0.0075, 0.75),
        "end_to_end": latency(0.020, 0.015, 0.75),
        "repeats": 5,
        "threads": 1,
    }
    text = shown(replace(report, latency=timed))
    body, whole = (next(line for line in text.splitlines() if part in line) for part in ("body", "end to end"))
    for line in (body, whole):
        dense, small, ratio = (float(number) for number in re.findall(r"\d+\.\d+", line))
        assert ratio == round(small / dense, 3)
    assert "0.750" in model_card(replace(report, latency=timed), folder="x")


def test_the_last_column_says_what_it_holds(report):
    text = shown(report)
    assert "ratio / difference" in text
    assert "-0.1 … +0.4" in text
    assert "measured on text.txt: 1,234 held-out tokens" in text


def test_a_metric_of_a_part_of_the_data_says_so(report):
    part = replace(report, metrics=[{**METRIC, "on": 4096}, {**METRIC, "name": "agreement", "on": None}])
    assert "kl (↓, 4,096 tokens of" in shown(part)
    assert "agreement (↓)" in shown(part)
    assert "kl (lower is better; on 4,096 tokens of them)" in model_card(part, folder="x")


def test_nothing_is_said_about_metrics_that_were_not_measured(report):
    bare = replace(report, metrics=[])
    card = model_card(report, folder="x")
    assert "## What it does to the outputs" in card
    assert "Measured on text.txt: 1,234 held-out tokens, text that was neither fitted nor used" in card
    card = model_card(bare, folder="x")
    assert "## What it does to the outputs" not in card and "held-out" not in card
    assert "Fitted on `text.txt`.\nWhat it does to the outputs was not measured." in card
    assert "held-out" not in shown(bare)


def test_images_are_not_called_tokens(report):
    seen = replace(report, data={**report.data, "unit": "images"})
    assert "1,234 held-out images" in shown(seen)
    assert "1,234 held-out images" in model_card(seen, folder="x")


def test_a_card_says_what_it_was_fitted_on_besides_what_is_promised_and_what_there_is_to_know(report):
    notes = ["measured on 2 documents of /home/someone/text.txt, which is few"]
    mixed = replace(report, data={**report.data, "mixed": "builtin"}, warnings=notes)
    mixed = replace(mixed, certificate={"statement": "mean of min(KL, 1) ≤ 0.2 over documents like those of text.txt"})
    card = model_card(mixed, folder="x")
    assert "Fitted on `text.txt` and some broad text that comes with slimformer." in card
    assert "Certified: mean of min(KL, 1) ≤ 0.2 over documents like those of text.txt." in card
    assert "- measured on 2 documents of text.txt, which is few" in card


def test_a_card_names_a_hub_model_in_full_and_a_folder_by_its_last_name(report, tmp_path, monkeypatch):
    card = model_card(report, folder="x")
    assert "# owner/name at 50 % of its block MACs" in card
    assert "base_model: owner/name" in card
    monkeypatch.chdir(save_tiny(tmp_path / "models" / "mine", "llama").parents[1])
    opened = load_model("models/mine").name  # where it is there, it cannot be taken for a hub id later
    for place in (opened, "./models/mine", "../mine/", "~/mine", "a/b/mine", r"C:\\models\mine", "/gone/long/ago/mine"):
        card = model_card(replace(report, model=place), folder="x")
        assert "# mine at 50 %" in card, place
        assert "base_model" not in card
    assert "# a local folder at" in model_card(replace(report, model=".."), folder="x")
    assert "# demo:minilm at" in model_card(replace(report, model="demo:minilm"), folder="x")


def test_a_card_does_not_tell_where_the_data_lay(report):
    assert "`text.txt`" in model_card(report, folder="x")
    assert "/home/someone" not in model_card(report, folder="x")


def test_code_in_a_card_is_code(report):
    for format in ("ragged", "plain"):
        card = model_card(replace(report, format=format), folder='it\'s "mine"')
        blocks = card.split("```")[1::2]
        compile(blocks[0].removeprefix("python"), "card", "exec")
        assert "slimformer" in blocks[0] if format == "ragged" else "slimformer" not in blocks[0]


def test_a_name_cannot_bring_markup_along(report):
    odd = replace(report, model="[red]<script>[/nope]")
    assert "[red]<script>[/nope]" in shown(odd)
    assert "<script>" not in model_card(odd, folder="x")


def test_a_report_is_strict_json(report):
    odd = replace(report, metrics=[{**METRIC, "small": float("inf"), "dense": float("nan")}])
    found = json.loads(odd.to_json(), parse_constant=pytest.fail)
    assert found["metrics"][0]["small"] is None
    assert found["slimformer_report"] == 1


def test_the_card_of_an_own_architecture_imports_the_package(report):
    import slimformer  # noqa: F401  (teaches the Auto classes)

    own, stock = (
        model_card(replace(report, model_type=kind, format="plain"), folder="x") for kind in ("minimal", "gpt2")
    )
    assert "import slimformer  # teaches the Auto classes this architecture" in own and "import slimformer" not in stock
