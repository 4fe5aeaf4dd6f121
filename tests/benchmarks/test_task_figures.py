"""The benchmark of tasks: held out means held out, marked answers are the answers, tables say what results say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from conftest import SHARED, needs, skip_or_fail
from slimformer.evaluate.squad import normal

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # scripts, not a package

from reading import readings, xquad_split
from recipes import InputMissing, minilm_folder
from render import NothingToRender, tasks

XQUAD = SHARED / "data" / "xquad_en" / "xquad.en.json"


@needs(XQUAD)
def test_no_article_is_both_trained_on_and_held_out():
    known, unknown = xquad_split()
    assert (len(known), len(unknown)) == (36, 12)
    assert not {article["title"] for article in known} & {article["title"] for article in unknown}


@needs(XQUAD)
def test_marked_tokens_are_the_answer():
    try:
        tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    except InputMissing as error:
        skip_or_fail(str(error))
    articles = xquad_split()[1][:2]
    rows = readings(articles, tokenizer)
    golds = [qa["answers"][0]["text"] for article in articles for p in article["paragraphs"] for qa in p["qas"]]
    said = [tokenizer.decode(row.tokens["input_ids"][row.start : row.end + 1]) for row in rows]
    assert len(rows) == len(golds)
    same = [normal(a).replace(" ", "") == normal(b).replace(" ", "") for a, b in zip(said, golds, strict=True)]
    assert sum(same) >= len(same) - 3  # accents and half words are written otherwise by the tokenizer


def results(small: float) -> dict:
    sides = {f"{side}{bound}": small for side in ("dense", "small") for bound in ("", "_low", "_high")}
    metric = {"name": "accuracy", **sides, "difference": 0.0, "low": -1.0, "high": 1.0, "p": 0.5, "recovery": 99.0}
    cell = {"budget": 0.7, "tasks": {"sst2": {"examples": 872, "unit": "examples", "metrics": [metric]}}}
    return {"settings": {"recipe": "balanced", "tokens": 16384}, "subjects": {"sst2": {"cells": [cell]}}}


def test_tables_show_every_score():
    text = tasks(results(88.76), None)
    assert "| 70 % | accuracy | 88.8 | 88.8 [88.8, 88.8] | +0.0 [-1.0, +1.0] | 0.500 | 99.0 % |" in text
    assert "872 held-out examples" in text
    assert tasks(results(88.76), "sst2") == text
    with pytest.raises(NothingToRender, match="choose from sst2"):
        tasks(results(1.0), "xquad")
