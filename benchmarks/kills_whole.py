"""What tells a whole result of every kind; each raises where something is missing or spoilt."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoModelForImageClassification, AutoTokenizer

from slimformer.calibrate.store import open_statistics
from slimformer.checkpoint.load import load
from slimformer.evaluate.report_file import read_report
from slimformer.lab.folder import read_folder
from slimformer.plan import Plan
from slimformer.report.page import is_page


def whole_model(folder: Path) -> None:
    load(folder)
    Plan.load(folder / "plan.json")


def whole_sentences(folder: Path) -> None:
    """Fewer tokens in model and tokenizer alike, and embeddings of eight numbers."""
    vocabulary = load(folder).get_input_embeddings().num_embeddings
    if not len(AutoTokenizer.from_pretrained(folder)) == vocabulary == read_report(folder)["vocabulary"]["keep"]:
        raise ValueError("model and tokenizer do not belong together")
    if load_file(folder / "2_Dense" / "model.safetensors")["linear.weight"].shape != (8, 32):
        raise ValueError("not the embeddings that were asked for")


def whole_statistics(folder: Path) -> None:
    statistics = open_statistics(folder)
    for i in range(statistics.provenance.n_blocks):
        statistics.block(i)
    statistics.weights()
    statistics.probes()
    for curves in folder.glob("curves-*.json"):
        whole_json(curves)


def whole_json(path: Path) -> None:
    if not json.loads(path.read_text()):
        raise ValueError(f"{path} is empty")


def whole_export(folder: Path) -> None:
    whole_json(folder / "export.json")


def whole_page(folder: Path) -> None:
    read_report(folder)
    if not is_page(folder / "report.html"):
        raise ValueError("the page is none")
    load(folder)


def whole_runs(folder: Path) -> None:
    """What runs have recorded can be read, and the model of every run that ended opens."""
    if (folder / "lab.json").is_file():
        read_folder(folder)
    for result in (folder / "runs").glob("*.json"):
        AutoModelForImageClassification.from_pretrained(folder / "models" / result.stem)
