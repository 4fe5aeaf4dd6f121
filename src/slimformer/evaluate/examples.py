"""Labelled examples of the tasks the papers report, from the hub by name or from local files in their usual layouts.

A folder is searched for the names these files are published under; a file is taken as it is. GLUE comes as .tsv, the
paraphrase corpus of Microsoft as .txt with a byte-order mark, SQuAD as nested JSON; all of them, and perplexity texts,
also as .jsonl or .parquet rows.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.tables import open_table, read_lines
from slimformer.calibrate.tasks import TASKS, Task, load_rows, read_task, spread
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, DataUnreadable, UnknownTask
from slimformer.evaluate.squad import Question
from slimformer.files.reading import DATA, LARGE, require_regular
from slimformer.messages.words import option

# File names of each part, the more particular first; the empty name is the part a task is reported on.
GLUE_FILES = ("dev.tsv", "validation*.parquet", "validation.jsonl", "dev.jsonl")
TRAINING_FILES = ("train.tsv", "train*.parquet", "train.jsonl")
FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "sst2": {"": GLUE_FILES},
    "qnli": {"": GLUE_FILES},
    "qqp": {"": GLUE_FILES, "train": TRAINING_FILES},
    "stsb": {"": GLUE_FILES},
    # GLUE cut its dev.tsv out of the training file of Microsoft, so its own files go together and come first
    "mrpc": {
        "": (*GLUE_FILES, "msr_paraphrase_test.txt"),
        "train": (*TRAINING_FILES, "msr_paraphrase_train.txt"),
    },
    "mnli": {
        "matched": ("dev_matched.tsv", "validation_matched*.parquet"),
        "mismatched": ("dev_mismatched.tsv", "validation_mismatched*.parquet"),
    },
    "squad": {"": ("dev-v1.1.json", "xquad.en.json", "validation*.parquet")},
    "squad_v2": {"": ("dev-v2.0.json", "validation*.parquet")},
    "wikitext2": {"": ("wiki.test.raw", "wiki.test.tokens", "test*.parquet", "test.txt")},
    "ptb": {"": ("ptb.valid.txt", "validation*.parquet", "valid.txt")},
    "ptb-new": {"": ("ptb.test.txt", "test*.parquet", "test.txt")},
    "c4": {"": ("c4-validation*.json.gz", "c4-validation*.json", "*.jsonl")},
}
FILES["c4-new"] = FILES["c4"]
FILES["sts"] = FILES["stsb"]
FILES["retrieval"] = {"": ("pairs.tsv", "pairs.jsonl", "test.tsv", "test*.parquet", "dev.tsv")}
HUB = {"sts": "stsb"}  # whose data a task has that is not called like a data set
C4 = replace(TASKS["c4"], config=None, streaming=False, file="en/c4-validation.00000-of-00008.json.gz")
TEXTS: dict[str, tuple[Task, str]] = {
    "wikitext2": (TASKS["wikitext2"], "test"),
    "ptb": (TASKS["ptb"], "validation"),
    "ptb-new": (TASKS["ptb"], "test"),
    "c4": (C4, "validation"),
    "c4-new": (C4, "validation"),
}


def require_task(task: str) -> None:
    """Refuse a name that is no task."""
    if task not in FILES:
        raise UnknownTask(f"there is no task {task!r}; choose from {', '.join(FILES)}")


def glue_parts(
    task: str, data: str | None, *, columns: Sequence[str] | None = None, limit: int | None = None
) -> dict[str, list[Document]]:
    """Labelled documents by part: "" for the only one, "matched" and "mismatched" for MNLI."""
    names = [name for name in FILES[task] if name != "train"]
    if data is None and task == "retrieval":
        raise DataNotFound(
            f"{option('task', task)} has no data set of its own; give {option('data')} with a file of pairs, a "
            "question and the text that answers it in each row"
        )
    if data is None:
        parts = {name: f"validation_{name}" if name else None for name in names}
        known = HUB.get(task, task)
        return {name: read_task(known, part=part, split="evaluation", limit=limit) for name, part in parts.items()}
    files = {name: file for name, file in _files(task, data, names).items() if file is not None}
    return {name: spread(read_documents(file, columns=columns), limit) for name, file in files.items()}


def training_pairs(
    task: str, data: str | None, *, scored: Sequence[Document] = (), limit: int = 2000
) -> tuple[list[Document], str]:
    """Labelled pairs to choose a threshold on, none of which is `scored`, and the name of the part they are from."""
    if data is None:
        return _others(read_task(task, limit=limit), scored, f"the training part of {task}"), TASKS[task].calibration
    folder = Path(data) if Path(data).is_dir() else Path(data).parent
    file = _first(folder, FILES[task]["train"])
    if file is None:
        raise DataNotFound(
            f"a model without a head needs labelled pairs to choose a threshold on; put {FILES[task]['train'][0]} "
            f"into {folder}"
        )
    if any(file.samefile(read) for read in files_read(task, data)):
        raise DataUnreadable(
            f"{file} is what is scored, so a threshold cannot be chosen on it; score another part, or give a folder "
            "with both"
        )
    return spread(_others(read_documents(file), scored, str(file)), limit), file.name


def _others(pairs: Sequence[Document], scored: Sequence[Document], where: str) -> list[Document]:
    """The pairs that are not scored, whatever their labels and spaces."""
    seen = {_texts(document) for document in scored}
    left = [pair for pair in pairs if _texts(pair) not in seen]
    if not left:
        raise DataEmpty(f"every pair of {where} is scored itself, so none is left to choose a threshold on")
    return left


def _texts(document: Document) -> tuple[str, str]:
    return " ".join(document.text.split()), " ".join((document.pair or "").split())


def files_read(task: str, data: str | None) -> list[Path]:
    """The files whose rows are scored; none for the hub."""
    names = [name for name in FILES[task] if name != "train"]
    return [] if data is None else [file for file in _files(task, data, names).values() if file is not None]


def squad_questions(task: str, data: str | None, *, limit: int | None = None) -> list[Question]:
    """Questions with their golds; those of `squad_v2` may have none, and say so by an empty list."""
    if data is None:
        rows = load_rows(task, TASKS[task], TASKS[task].evaluation)
    else:
        file = _only(task, data)
        table = open_table(file, None)
        rows = list(table.rows(["id", "question", "context", "answers"])) if table else []
    if not rows:
        raise DataEmpty(f"{data or task} holds no questions; give a file in the form of SQuAD")
    questions = [_question(i, row, str(data or task)) for i, row in enumerate(rows)]
    unanswered = [i for i, question in enumerate(questions) if not any(gold.strip() for gold in question.answers)]
    if unanswered and task == "squad":
        raise DataUnreadable(
            f"{len(unanswered)} of {len(questions)} questions of {data or task} have no gold answer, the first in row "
            f"{unanswered[0] + 1}; version 1 has one for each: give a labelled part, or {option('task', 'squad_v2')}"
        )
    return spread(questions, limit)


def _question(i: int, row: Mapping[str, Any], where: str) -> Question:
    missing = [name for name in ("question", "context", "answers") if name not in row]
    if missing:
        raise ColumnNotFound(f"row {i + 1} of {where} has no {' and no '.join(missing)}; it has: {', '.join(row)}")
    for name in ("question", "context"):
        if not isinstance(row[name], str) or not row[name].strip():
            raise DataUnreadable(f"the {name} in row {i + 1} of {where} is {_brief(row[name])}; give a text")
    return Question(str(row.get("id") or i), row["question"], row["context"], _golds(row["answers"], i, where))


def _golds(answers: Any, i: int, where: str) -> tuple[str, ...]:
    """Texts of `{"text": [...]}`, as the hub has them, or of `[{"text": ...}, ...]`, as the files do."""
    if isinstance(answers, Mapping):
        texts = answers.get("text")
    elif isinstance(answers, list | tuple) and all(isinstance(gold, Mapping) for gold in answers):
        texts = [gold.get("text") for gold in answers]
    else:
        texts = None
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise DataUnreadable(
            f"the answers in row {i + 1} of {where} are {_brief(answers)}; give a list of objects with a text in "
            '"text", or an object with a list of them'
        )
    return tuple(texts)


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def text_rows(task: str, data: str | None) -> list[str]:
    """Rows of a text in the order of the data set, as `datasets` gives them: a convention says what joins them."""
    where, part = TEXTS[task]
    column = where.columns[0]
    if data is None:
        return [str(row[column]) for row in load_rows(task, where, part)]
    file = _only(task, data)
    if file.suffix == ".gz":
        rows = [str(row[column]) for row in _packed_json(file)]
    elif table := open_table(file, (column,)):
        if column not in table.columns:
            raise ColumnNotFound(f"column {column!r} is not in {file.name}; it has: {', '.join(table.columns)}")
        rows = [str(row[column] or "") for row in table.rows([column])]
    elif column == "sentence":  # Penn Treebank: a sentence on a line
        rows = [line.strip() for line in read_lines(file) if line.strip()]
    else:  # WikiText keeps the end of a line, and an empty row for an empty line
        rows = [line if line.strip() else "" for line in read_lines(file)]
    if not any(row.strip() for row in rows):
        raise DataEmpty(f"{file} holds no text")
    return rows


def _packed_json(file: Path) -> list[dict[str, Any]]:
    try:
        require_regular(file, DATA)
        with gzip.open(file, "rt", encoding="utf-8") as lines:
            rows, left = [], DATA  # a few packed bytes may stand for any number of them
            while line := lines.readline(LARGE):
                left -= len(line)
                if left < 0:
                    raise DataUnreadable(f"{file} unpacks to more than {DATA >> 30} GiB; give less")
                rows += [json.loads(line)] if line.strip() else []
            return rows
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise DataUnreadable(f"{file} is not gzipped JSON, an object on a line: {error}") from error


def _only(task: str, data: str) -> Path:
    (file,) = _files(task, data, [""]).values()
    assert file is not None
    return file


def _files(task: str, data: str, parts: Sequence[str]) -> dict[str, Path | None]:
    """The file of every part: the one given, or those a folder has under their usual names, at least one of them."""
    place = Path(data)
    if not place.exists():
        raise DataNotFound(
            f"there is no file or folder {data!r}; give one, or no {option('data')} to read {task} from the hub"
        )
    if not place.is_dir():
        return {"": place}
    files = {part: _first(place, FILES[task][part]) for part in parts}
    if not any(files.values()):
        usual = ", ".join(name for part in parts for name in FILES[task][part])
        raise DataNotFound(f"{data} holds none of the usual files of {task} ({usual}); name the file itself")
    return files


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((file for name in names for file in sorted(folder.glob(name)) if file.is_file()), None)
