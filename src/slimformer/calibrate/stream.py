"""Documents of a table one at a time: for one pass over more rows than one wants in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from slimformer.calibrate.documents import Document
from slimformer.calibrate.tables import Row, Table, choose_columns, choose_label, open_table
from slimformer.calibrate.tasks import Purpose, read_data
from slimformer.errors import ColumnNotFound, DataEmpty
from slimformer.messages.words import option

LAZY = (".tsv", ".jsonl", ".ndjson", ".parquet")  # read row by row; other tables are read whole


def stream_documents(
    source: str | Path,
    *,
    columns: Sequence[str] | None = None,
    label: str | None = None,
    split: Purpose = "calibration",
    limit: int | None = None,
) -> Iterator[Document]:
    """The documents of a source in their order; rows without text are passed over.

    From tables that can be read lazily labels come as they are written, since the column is not known in advance.
    """
    path = Path(source)
    table = open_table(path, columns) if path.suffix.lower() in LAZY and os.path.isfile(path) else None
    if table is None or not table.columns:
        yield from read_data(str(source), columns=columns, label=label, split=split, limit=limit)
        return
    chosen, label = choose_columns(table, columns), choose_label(table, label)
    documents = islice(_documents(table, chosen, label), limit)
    first = next(documents, None)
    if first is None:
        raise DataEmpty(f"{path} holds no row with text in {' and '.join(chosen)}")
    yield first
    yield from documents


def require_labels(documents: Iterator[Document], name: str) -> Iterator[Document]:
    """The same documents; the first without a label ends it in one line."""
    for i, document in enumerate(documents, 1):
        if document.label is None or document.label == "":
            raise ColumnNotFound(
                f"row {i} of {name} has no label; name the column that holds it with {option('label')}"
            )
        yield document


def _documents(table: Table, chosen: tuple[str, ...], label: str | None) -> Iterator[Document]:
    used = [*chosen, *([label] if label else [])]
    for row in table.rows(used):
        texts = [_text(row, name) for name in chosen]
        if texts[0]:
            value = row.get(label) if label else None
            yield Document(
                texts[0],
                texts[1] if len(texts) > 1 else None,
                value.strip() if isinstance(value, str) else value,
            )


def _text(row: Row, name: str) -> str:
    value = row.get(name)
    return value.strip().encode(errors="replace").decode() if isinstance(value, str) else ""
