"""Data sets by name, through `datasets`: GLUE, SQuAD, WikiText-2, Penn Treebank, C4.

The table says where each one lies, which columns hold the text, which part serves calibration and which
evaluation.
"""

import importlib
import os
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice
from typing import Any, Literal, Unpack

from slimformer.calibrate.builtin import BUILTIN, names_builtin
from slimformer.calibrate.documents import (
    SELF,
    Document,
    HowRead,
    Source,
    mix_documents,
    read_documents,
    require_exists,
    source_names,
    text_documents,
    weights_of,
)
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, UnknownTask
from slimformer.messages.words import option
from slimformer.models.hub import hub_or_cache

Purpose = Literal["calibration", "evaluation"]

STREAMED = 2_000  # documents of a data set that is too large to download, unless a limit is given


@dataclass(frozen=True)
class Task:
    """Where a data set lies on the hub and how its rows are read."""

    path: str
    config: str | None
    columns: tuple[str, ...]
    label: str | None = "label"
    calibration: str = "train"
    evaluation: str = "validation"
    group: str | None = None  # column whose equal values keep rows in one split
    lines: bool = False  # rows are lines of running text, to be joined into documents
    streaming: bool = False
    revision: str | None = None
    file: str | None = None  # one file of a set that is too large to have whole


GLUE = "nyu-mll/glue"
TASKS = {
    "cola": Task(GLUE, "cola", ("sentence",)),
    "mnli": Task(GLUE, "mnli", ("premise", "hypothesis"), evaluation="validation_matched"),
    "mrpc": Task(GLUE, "mrpc", ("sentence1", "sentence2")),
    "qnli": Task(GLUE, "qnli", ("question", "sentence")),
    "qqp": Task(GLUE, "qqp", ("question1", "question2")),
    "rte": Task(GLUE, "rte", ("sentence1", "sentence2")),
    "sst2": Task(GLUE, "sst2", ("sentence",)),
    "stsb": Task(GLUE, "stsb", ("sentence1", "sentence2")),
    "squad": Task("rajpurkar/squad", "plain_text", ("question", "context"), label=None, group="title"),
    "squad_v2": Task("rajpurkar/squad_v2", "squad_v2", ("question", "context"), label=None, group="title"),
    "wikitext2": Task("Salesforce/wikitext", "wikitext-2-raw-v1", ("text",), label=None, evaluation="test", lines=True),
    "ptb": Task(
        "ptb-text-only/ptb_text_only",
        None,
        ("sentence",),
        label=None,
        evaluation="test",
        lines=True,
        revision="refs/convert/parquet",  # the main branch is a script, which `datasets` no longer runs
    ),
    "c4": Task("allenai/c4", "en", ("text",), label=None, streaming=True),
}


def read_task(
    name: str, *, split: Purpose = "calibration", limit: int | None = None, part: str | None = None
) -> list[Document]:
    """Documents of a named data set; `limit` takes that many, spread over the whole set where it can be.

    `part` names one of its parts as the hub does, for sets that have more than one to evaluate on.
    """
    if name not in TASKS:
        raise UnknownTask(f"there is no data set {name!r}; choose from {', '.join(TASKS)}")
    task = TASKS[name]
    part = part or (task.calibration if split == "calibration" else task.evaluation)
    rows = load_rows(name, task, part, limit)
    documents = _running_text(rows, task) if task.lines else [_document(name, task, row) for row in rows]
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise DataEmpty(f"{part} of {name} ({task.path}) holds no text; give a local file instead")
    return spread(documents, limit)


def read_data(
    source: Source, *, split: Purpose = "calibration", limit: int | None = None, **how: Unpack[HowRead]
) -> list[Document]:
    """Whatever `--data` may say: names of data sets, sources of `read_documents`, or both mixed by commas."""
    names = source_names(source) if isinstance(source, str) else []
    for name in names:
        _require_known(str(name))
    if not any(name in TASKS and not os.path.isfile(name) for name in names):
        return spread(read_documents(source, **how), limit)
    parts = [
        read_task(str(name), split=split, limit=limit) if name in TASKS else read_documents(name, **how)
        for name in names
    ]
    return spread(mix_documents(parts, weights_of(names)), limit)


def require_there(source: str) -> None:
    """Refuse, before a model is opened, data that are not there. What is in them is seen when they are read."""
    if not source.strip():
        raise DataNotFound("the name of the data is empty; give a file, or builtin")
    if source == SELF or os.path.exists(source):
        return
    for name in source_names(source):
        _require_known(str(name))
        if name not in TASKS and name != SELF and not names_builtin(name):
            require_exists(name)


def _require_known(name: str) -> None:
    known = (BUILTIN, SELF, *TASKS)
    if re.fullmatch(r"\w+", name) and name not in known and not os.path.exists(name):
        near = next(iter(get_close_matches(name.lower(), known, 1, 0.7)), None)
        hint = f"did you mean {near}? " if near else ""
        raise UnknownTask(f"there is neither a file nor a data set {name!r}; {hint}data sets: {', '.join(TASKS)}")


def load_rows(name: str, task: Task, part: str, limit: int | None = None) -> list[dict[str, Any]]:
    """Rows of one part. `datasets` raises a dozen unrelated types for one fact: the data cannot be had."""
    datasets = importlib.import_module("datasets")
    files = None if task.file is None else {part: task.file}
    try:
        with hub_or_cache():
            rows = datasets.load_dataset(
                task.path, task.config, split=part, streaming=task.streaming, revision=task.revision, data_files=files
            )
            if task.streaming:
                return list(islice(rows, STREAMED if limit is None else limit))
        if limit is not None and not task.lines:
            rows = rows.select(spread(range(len(rows)), limit))
        return list(rows)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataNotFound(
            f"{part} of {name} ({task.path}) cannot be had: {reason}; "
            f"connect to the network, or give a local file with {option('data')}"
        ) from error


def spread(items: Sequence[Any], limit: int | None) -> list[Any]:
    """At most `limit` items from the whole sequence, in order: parts of GLUE are sorted by source."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i] for i in sorted(random.Random(0).sample(range(len(items)), limit))]


def _running_text(rows: Iterable[dict[str, Any]], task: Task) -> list[Document]:
    return text_documents(row[task.columns[0]] or "" for row in rows)


def _document(name: str, task: Task, row: dict[str, Any]) -> Document:
    for column in (*task.columns, *(extra for extra in (task.label, task.group) if extra)):
        if column not in row:
            raise ColumnNotFound(f"column {column!r} is not in {name} ({task.path}); it has: {', '.join(row)}")
    text, *pair = (row[column] or "" for column in task.columns)
    label = row[task.label] if task.label else None
    return Document(text, pair[0] if pair else None, label, row[task.group] if task.group else None)
