"""Tabular files as rows: .tsv, .csv, .json, .jsonl, .parquet, and tables that call themselves .txt.

A table is a header plus rows read on demand. Which columns hold the text is asked for, or known from the
header: those of GLUE and SQuAD are.
"""

import csv
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from slimformer.errors import ColumnNotFound, DataUnreadable
from slimformer.messages.words import option

Row = dict[str, Any]

USUAL_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("text",),
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "context"),
    ("premise", "hypothesis"),
    ("#1 String", "#2 String"),
    ("sentence",),
    ("source", "target"),
)
USUAL_LABELS = ("label", "gold_label", "Quality", "score", "is_duplicate")

TOLERATED_BROKEN_ROWS = 0.01  # the published QQP file has a few rows torn by line breaks


@dataclass(frozen=True)
class Table:
    """A header, and rows read on demand; a row that lacks a field lacks the key."""

    name: str
    columns: tuple[str, ...]
    text_columns: tuple[str, ...]
    rows: Callable[[list[str]], Iterator[Row]]  # given the columns in use, so that others need not be read


def open_table(path: Path, columns: Sequence[str] | None) -> Table | None:
    """The table in a file, or None for running text; `columns` are names to expect in a header."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return _parquet_table(path)
    if suffix == ".csv":
        return _csv_table(path)
    if suffix in (".json", ".jsonl", ".ndjson"):
        return _json_table(path)
    if suffix == ".tsv" or _has_header(path, columns):
        return _tsv_table(path)
    return None


def choose_columns(table: Table, columns: Sequence[str] | None) -> tuple[str, ...]:
    """The columns asked for, else those of a known data set, else the only one that holds text."""
    if columns:
        for name in columns:
            _require_column(name, table, "columns")
        if len(columns) > 2:
            raise ColumnNotFound(f"{len(columns)} text columns were asked for; name one, or two for a pair")
        return tuple(columns)
    for names in USUAL_COLUMNS:
        if set(names) <= set(table.columns):
            return names
    candidates = [name for name in table.text_columns if name not in USUAL_LABELS]
    if len(candidates) == 1:
        return (candidates[0],)
    raise ColumnNotFound(
        f"none of the usual text columns is in {table.name}; it has: {_listed(table)}; name the one that holds the "
        f"text, or two for a pair, with {option('columns')} "
        "(if these are no names, give the file a first line of names)"
    )


def choose_label(table: Table, label: str | None) -> str | None:
    """The label column asked for, else a usual one, else none."""
    if label is None:
        return next((name for name in USUAL_LABELS if name in table.columns), None)
    _require_column(label, table, "label")
    return label


def whole_rows(table: Table, chosen: tuple[str, ...], used: list[str]) -> list[Row]:
    """The rows with text in them; rows cut short are left out, unless there are many."""
    rows, broken, total = [], 0, 0
    for row in table.rows(used):
        total += 1
        if any(name not in row for name in chosen):
            broken += 1
        elif all(_is_text(row[name], name, table) for name in chosen) and row[chosen[0]].strip():
            rows.append(row)
    if broken > TOLERATED_BROKEN_ROWS * total:
        raise DataUnreadable(
            f"{broken} of {total} rows of {table.name} lack {' or '.join(chosen)}; "
            "is the first line a header, and the separator the one the suffix promises?"
        )
    return rows


def binary_file(path: Path) -> DataUnreadable:
    """The one line for a file that is no text, whoever notices it."""
    return DataUnreadable(
        f"{path} is not text: it holds NUL bytes (binary or UTF-16); give UTF-8 text or a .parquet file"
    )


def read_lines(path: Path, newline: str | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file, with or without a byte-order mark, one at a time."""
    try:
        with path.open(encoding="utf-8-sig", newline=newline) as file:
            for line in file:
                if "\0" in line:
                    raise binary_file(path)
                yield line
    except UnicodeDecodeError as error:
        raise DataUnreadable(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error


def _has_header(path: Path, columns: Sequence[str] | None) -> bool:
    """Whether a text file is a table all the same, as the MSR paraphrase files are."""
    header = _fields(next(read_lines(path, "\n"), ""))
    expected = [*USUAL_COLUMNS, *([name] for name in columns or ())]
    return len(header) > 1 and any(set(names) <= set(header) for names in expected)


def _fields(line: str) -> list[str]:
    return line.rstrip("\r\n").split("\t")


def _tsv_table(path: Path) -> Table:
    """Tab-separated without quoting: in GLUE a quotation mark is a character like any other."""
    header = tuple(_fields(next(read_lines(path, "\n"), "")))

    def rows(_: list[str]) -> Iterator[Row]:
        lines = read_lines(path, "\n")
        next(lines)
        return (dict(zip(header, _fields(line), strict=False)) for line in lines if line.strip())

    return Table(path.name, header, header, rows)


def _csv_table(path: Path) -> Table:
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # 128 KiB by default: less than a long article
    try:
        header, *body = list(csv.reader(read_lines(path, ""), strict=True)) or [[]]
    except csv.Error as error:
        raise DataUnreadable(f"{path} is not a quoted, comma-separated table: {error}") from error
    finally:
        csv.field_size_limit(limit)
    rows = (dict(zip(header, fields, strict=False)) for fields in body if fields)
    return Table(path.name, tuple(header), tuple(header), lambda _: rows)


def _json_table(path: Path) -> Table:
    rows = _json_rows(path)
    first = next(rows, {})
    texts = tuple(name for name, value in first.items() if isinstance(value, str))
    return Table(path.name, tuple(first), texts, lambda _: chain([first] if first else [], rows))


def _json_rows(path: Path) -> Iterator[Row]:
    """One value per line; where the first line is no value by itself, one value in the whole file."""
    lines = ((number, line) for number, line in enumerate(read_lines(path), 1) if line.strip())
    number, first = next(lines, (1, "[]"))
    try:
        value = json.loads(first)
    except (json.JSONDecodeError, RecursionError):
        yield from _rows_in(_parse_json(path, "".join(read_lines(path)), 1), path, 1)
        return
    yield from _rows_in(value, path, number)
    for number, line in lines:
        yield from _rows_in(_parse_json(path, line.strip(), number), path, number)


def _parse_json(path: Path, text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        place = first_line + getattr(error, "lineno", 1) - 1
        why = getattr(error, "msg", "nested too deeply")
        raise DataUnreadable(f"{path} is not JSON at line {place}: {why}; give one object per line") from error


def _rows_in(value: Any, path: Path, number: int) -> Iterator[Row]:
    """Rows in one JSON value: an object, a text, a list of them, or a file in the form of SQuAD."""
    if isinstance(value, list):
        for item in value:
            yield from _rows_in(item, path, number)
    elif isinstance(value, str):
        yield {"text": value}
    elif isinstance(value, dict):
        yield from _squad_rows(value) if _is_squad(value) else [value]
    else:
        raise DataUnreadable(f"{path} holds {json.dumps(value)} at line {number}; expected an object or a text")


def _is_squad(value: Row) -> bool:
    articles = value.get("data")
    return isinstance(articles, list) and all(isinstance(a, dict) and "paragraphs" in a for a in articles)


def _squad_rows(value: Row) -> Iterator[Row]:
    for number, article in enumerate(value["data"]):
        title = article.get("title") or f"article {number}"
        for paragraph in article["paragraphs"]:
            for question in paragraph.get("qas", ()):
                known = {"context": paragraph.get("context"), "title": title, "id": question.get("id")}
                # no golds and no word about golds are two things: only who evaluates needs them, and will ask
                yield {**known, **{name: question[name] for name in ("question", "answers") if name in question}}


def _parquet_table(path: Path) -> Table:
    parquet = importlib.import_module("pyarrow.parquet")
    arrow = importlib.import_module("pyarrow")
    try:
        file = parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataUnreadable(f"{path} is not a parquet file: {reason}") from error
    schema = file.schema_arrow
    texts = tuple(field.name for field in schema if str(field.type) in ("string", "large_string"))

    def rows(columns: list[str]) -> Iterator[Row]:
        try:
            for batch in file.iter_batches(columns=columns):
                yield from batch.to_pylist()
        except (arrow.ArrowException, OSError, ValueError) as error:  # a good footer over bad pages
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise DataUnreadable(f"{path} is damaged: {reason}; use an intact file") from error

    return Table(path.name, tuple(schema.names), texts, rows)


def _is_text(value: Any, column: str, table: Table) -> bool:
    if value is None or isinstance(value, str):
        return value is not None
    names = ", ".join(table.text_columns) or "no text at all"
    raise DataUnreadable(
        f"column {column!r} of {table.name} holds {type(value).__name__}, not text; text is in: {names}"
    )


def _require_column(name: str, table: Table, flag: str) -> None:
    if name not in table.columns:
        raise ColumnNotFound(
            f"column {name!r} is not in {table.name}; it has: {_listed(table)}; name one of these with {option(flag)}"
        )


def _listed(table: Table) -> str:
    # a file without a header lists its first row here, which may be long
    return ", ".join(name if len(name) <= 40 else name[:37] + "..." for name in table.columns)
