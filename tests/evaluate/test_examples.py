"""Tasks by name: `datasets` reads them from a folder that is laid out as the hub is, nothing else can be reached."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import datasets
import pyarrow as arrow
import pytest
from pyarrow import parquet

from slimformer.calibrate.documents import Document
from slimformer.calibrate.tasks import TASKS
from slimformer.errors import DataNotFound
from slimformer.evaluate.examples import C4, glue_parts, squad_questions, text_rows, training_pairs
from slimformer.evaluate.squad import Question


@pytest.fixture(autouse=True)
def hub_in_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()


def publish(name: str, parts: dict[str, list[dict]]) -> None:
    """Write the data set of a task as the hub holds it: parquet files and a README that lists them."""
    task = TASKS[name]
    root, config = Path(task.path), task.config or "default"
    listing = ["---", "configs:", f"- config_name: {config}", "  data_files:"]
    for part, rows in parts.items():
        file = root / config / f"{part}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(arrow.Table.from_pylist(rows), file)
        listing += [f"  - split: {part}", f"    path: {config}/{part}.parquet"]
    (root / "README.md").write_text("\n".join([*listing, "---", ""]))


def test_mnli_is_read_in_both_parts():
    row = {"premise": "p", "hypothesis": "h", "label": 2}
    publish("mnli", {"train": [row], "validation_matched": [row], "validation_mismatched": [{**row, "label": 0}]})
    assert glue_parts("mnli", None) == {"matched": [Document("p", "h", 2)], "mismatched": [Document("p", "h", 0)]}


def test_a_threshold_is_chosen_on_the_training_part():
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in (0, 1)]
    publish("mrpc", {"train": rows, "validation": rows[:1]})
    pairs, part = training_pairs("mrpc", None)
    assert ([pair.label for pair in pairs], part) == ([0, 1], "train")
    assert len(glue_parts("mrpc", None)[""]) == 1


def test_questions_may_have_no_answer():
    row = {"id": "x", "title": "T", "context": "c", "question": "q"}
    golds = [{"text": ["one", "two"], "answer_start": [0, 1]}, {"text": [], "answer_start": []}]
    publish("squad_v2", {"train": [{**row, "answers": golds[0]}], "validation": [{**row, "answers": g} for g in golds]})
    assert squad_questions("squad_v2", None) == [Question("x", "q", "c", ("one", "two")), Question("x", "q", "c", ())]


def test_both_conventions_of_the_treebank_read_their_own_part():
    publish("ptb", {part: [{"sentence": f"{part} {i}"} for i in range(2)] for part in ("train", "validation", "test")})
    assert text_rows("ptb", None) == ["validation 0", "validation 1"]
    assert text_rows("ptb-new", None) == ["test 0", "test 1"]


def test_c4_reads_the_first_shard_only():
    shard = Path(C4.path) / str(C4.file)
    shard.parent.mkdir(parents=True)
    for file in (shard, shard.with_name("c4-validation.00001-of-00008.json.gz")):
        with gzip.open(file, "wt") as lines:
            lines.write(json.dumps({"text": file.name, "url": "u", "timestamp": "t"}) + "\n")
    assert text_rows("c4", None) == text_rows("c4-new", None) == [shard.name]


def test_without_a_network_one_line_says_what_to_do():
    with pytest.raises(DataNotFound, match="give a local file with data="):
        text_rows("wikitext2", None)
