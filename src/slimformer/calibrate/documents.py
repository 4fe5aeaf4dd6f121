"""Reading a data source into documents.

A document is the unit that is never divided between splits, so this file decides what "held out" means:
an article of WikiText, a story, a web page, a row of a table. Files are read line by line and every way in
which a file can be wrong ends in one line that names the file.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypedDict

from slimformer.calibrate.builtin import BUILTIN, builtin_documents, builtin_kinds, names_builtin
from slimformer.calibrate.document import Document, Label, mix_documents
from slimformer.calibrate.excerpt import READ_WHOLE, excerpt, is_excerpted
from slimformer.calibrate.tables import (
    Row,
    Table,
    binary_file,
    choose_columns,
    choose_label,
    open_table,
    read_lines,
    whole_rows,
)
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, DataUnreadable
from slimformer.files.reading import DATA, require_regular
from slimformer.messages.words import option

SOUNDS = (".wav", ".flac")
SUFFIXES = (".txt", ".jsonl", ".json", ".tsv", ".csv", ".parquet")
END_OF_TEXT = "<|endoftext|>"
TITLE = re.compile(r"= (?!=).*[^=] =")  # WikiText: "= Title =" opens an article, "= = Section = =" does not

RECORD_LINES = 3  # on average at most between blank lines, where lines are not wrapped: a question with its answer
LONGEST_TEXT = 50  # lines on average: longer than what a model of examples reads, so a list of them
WIDTHS, FULL = (40, 120), 0.7  # of wrapped text: its margin, and how full most lines are
PASSAGE_CHARACTERS = 1_200  # about 200 English words; characters, so that scripts without spaces are cut too
ENDLESS_LINE = 20_000  # characters; a longer line is no paragraph and is cut into passages


Source = str | Path | Iterable[str | Path | Document]


class Unnamed(str):
    """The name of data that are read because none were named."""


UNNAMED = Unnamed(BUILTIN)
SELF = "self"  # text that the model writes
WEIGHT = re.compile(r"(.+)\*([0-9]*\.?[0-9]+)")  # mine.txt*3


class Weighted(str):
    """The name of a source, and how much of it is drawn for every character of a source of weight 1."""

    weight: float


def weighted(name: Any) -> Any:
    """The source behind `mine.txt*3`; every other name, and one that a file has, is itself."""
    match = WEIGHT.fullmatch(name) if isinstance(name, str) and not isinstance(name, Weighted) else None
    if match is None or os.path.exists(name):
        return name
    source = Weighted(match[1])
    source.weight = float(match[2])
    if not source.weight:
        raise DataUnreadable(f"{name} draws nothing from {source}; give a weight above 0, or leave it out")
    return source


def weights_of(names: Iterable[Any]) -> list[float]:
    """How much of each source is drawn, next to the others."""
    return [name.weight if isinstance(name, Weighted) else 1.0 for name in names]


class HowRead(TypedDict, total=False):
    """What `read_documents` takes besides a source."""

    columns: Sequence[str] | None
    label: str | None
    rows: bool
    say: Callable[[str], None]


def read_documents(
    source: Source, *, columns: Sequence[str] | None = None, label: str | None = None, rows: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Document]:  # fmt: skip
    """Read a file, `builtin`, several of them (a list, or separated by commas), or texts already in memory.

    In a list the first element decides: a path, a name with a known suffix or `builtin` means sources,
    anything else means texts. Several sources are mixed evenly, or as `mine.txt*3,web.jsonl` says, see
    `mix_documents`. With `rows` plain text is read for a model of examples, not of running text (`text_documents`);
    what was taken for an example `say` is told.
    """
    listed = source if isinstance(source, str | Path) else list(source)
    names = named_sources(listed)
    if names is None:
        return _in_memory([] if isinstance(listed, str | Path) else listed)
    wanted = (columns,) if isinstance(columns, str) else columns
    return mix_documents([_read_one(name, wanted, label, rows, say) for name in names], weights_of(names))


def source_names(source: str | Path) -> list[str | Path]:
    """The sources in `a.txt,b.jsonl`; a file whose own name has a comma is one source."""
    if isinstance(source, Path) or os.path.isfile(source):  # os.path, as a text may be too long for a name
        return [source]
    return [weighted(name.strip()) for name in source.split(",") if name.strip()] or [source]


def named_sources(source: str | Path | Sequence[Any]) -> list[Any] | None:
    """The sources that are named, between commas or in a list; None where a list has the texts themselves."""
    if isinstance(source, str | Path):
        return source_names(source)
    return [weighted(name) for name in source] if len(source) and _names_a_source(weighted(source[0])) else None


def text_documents(lines: Iterable[str], *, rows: bool = False) -> list[Document]:
    """Documents in plain text, separated as `text_layout` says."""
    inner = _inner(lines)
    blocks = LAYOUTS[text_layout(inner, rows=rows)](inner)
    texts = ("\n".join(block).strip() for block in blocks)
    return [Document(text) for text in texts if text and text != END_OF_TEXT]


def text_layout(lines: Sequence[str], *, rows: bool = False) -> str:
    """What separates texts, by what the lines themselves offer.

    In this order: lines `<|endoftext|>`; WikiText titles, which join the paragraphs below them; blank lines. Without
    any of them running text is grouped into passages of about 200 words. For a model of examples (`rows`) one line is
    then one example, and so it is where what stands between markers, titles or blank lines is a list of examples: more
    lines than a text has, or unwrapped lines and more of them than a record has.
    """
    blank = sum(not line.strip() for line in lines)
    marks = sum(line.strip() == END_OF_TEXT for line in lines)
    if marks and (not rows or len(lines) - blank <= LONGEST_TEXT * (marks + 1)):
        return END_OF_TEXT
    # a title stands alone; "= x =" inside a paragraph is arithmetic
    titles = sum(
        TITLE.fullmatch(line.strip()) is not None and (i == 0 or not lines[i - 1].strip())
        for i, line in enumerate(lines)
    )
    most = LONGEST_TEXT if _is_wrapped(lines) else RECORD_LINES
    if blank and (not rows or len(lines) - blank <= most * (blank + 1)):
        return "titles" if titles > (1 if rows else 0) else "blank lines"
    whole = len(lines) > 1 and max(map(len, lines), default=0) <= ENDLESS_LINE
    return "lines" if rows and whole else "passages"


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Are lines filled up to a margin, as those of paragraphs are? The last of each need not be."""
    inner = [line for line, after in pairwise(lines) if line.strip() and after.strip()]
    widest = max(map(len, inner), default=0)
    full = sum(len(line) >= FULL * widest for line in inner)
    return WIDTHS[0] <= widest <= WIDTHS[1] and full >= FULL * len(inner)


def _inner(lines: Iterable[str]) -> list[str]:
    """Lines without blank ones and markers at either end, which separate nothing."""
    rows = [line.rstrip("\r\n") for line in lines]
    full = [i for i, line in enumerate(rows) if line.strip() not in ("", END_OF_TEXT)]
    return "\n".join(rows[full[0] : full[-1] + 1]).strip().split("\n") if full else [""]


def parse_labels(values: Sequence[Any]) -> list[Label]:
    """Labels of one column: integers if all of them are, else numbers if all of them are, else names."""
    written = [value.strip() for value in values if isinstance(value, str) and value.strip()]
    kind: Callable[[str], Label] = str
    for pattern, number in ((r"[+-]?[0-9]+", int), (r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", float)):
        if written and all(re.fullmatch(pattern, value) for value in written):
            kind = number
            break
    return [_label(value, kind) for value in values]


def _label(value: Any, kind: Callable[[str], Label]) -> Label:
    if isinstance(value, str):
        return kind(value.strip()) if value.strip() else None
    if value is None or isinstance(value, int | float):
        return int(value) if isinstance(value, bool) else value
    raise DataUnreadable(f"a label is a {type(value).__name__}; labels are numbers or names")


def _names_a_source(item: Any) -> bool:
    if isinstance(item, Path) or names_builtin(item) or (isinstance(item, str) and item == SELF):
        return True
    if not isinstance(item, str) or len(item) > 1_000 or "\n" in item:
        return False
    known = Path(item).suffix.lower() in SUFFIXES
    return known and (" " not in item or os.path.isfile(item))


def _in_memory(items: Sequence[Any]) -> list[Document]:
    if not items:
        raise DataEmpty("the list of texts is empty; give at least one text or file")
    for item in items:
        if not isinstance(item, str | Document):
            raise DataUnreadable(
                f"texts in memory must be strings, and one is a {type(item).__name__} (token ids are given as one "
                "tensor of torch, sequences × length)"
            )
    documents = [item if isinstance(item, Document) else Document(_encodable(item)) for item in items]
    documents = [document for document in documents if document.text.strip()]
    if not documents:
        raise DataEmpty(f"all of the {len(items)} texts are empty; give at least one with words in it")
    return documents


def _encodable(text: str) -> str:
    """JSON and Python can hold halves of surrogate pairs, which no tokenizer takes."""
    return text.encode(errors="replace").decode()


def _read_one(
    source: str | Path, columns: Sequence[str] | None, label: str | None, rows: bool, say: Callable[[str], None]
) -> list[Document]:
    if names_builtin(source):
        return builtin_documents(builtin_kinds(str(source)))
    path = Path(source)
    _require_text_or_parquet(path)
    if is_excerpted(path):
        say(f"{path.name} is large: evenly spaced pieces of it are read, {READ_WHOLE >> 20} MB together")
    with excerpt(path) as short:
        if table := open_table(short, columns):
            documents = _table_documents(table, columns, label)
        elif columns or label:
            column, flag = (columns[0], "columns") if columns else (label, "label")
            raise ColumnNotFound(
                f"column {column!r} is not in {path.name}; it is plain text and has no columns; leave "
                f"{option(flag)} out"
            )
        else:
            inner = _inner(read_lines(short))
            documents = text_documents(inner, rows=rows)
            say(UNDERSTOOD[text_layout(inner, rows=rows)].format(path.name))
    if not documents:
        raise DataEmpty(f"{path} holds no text; give a file with at least one document")
    return documents


def require_exists(path: str | Path) -> None:
    """Refuse a file or folder that is not there."""
    if not os.path.exists(path):
        name = str(path) if len(str(path)) <= 200 else f"{str(path)[:197]}..."
        raise DataNotFound(
            f"there is no file {name!r}; give a {', '.join(SUFFIXES)} file, a folder of images, or {BUILTIN!r}"
        )


def _require_text_or_parquet(path: Path) -> None:
    require_exists(path)
    near = chain(path.glob("*.*"), path.glob("*/*.*")) if path.is_dir() else [path]
    if any(each.suffix.lower() in SOUNDS for each in near):
        raise DataUnreadable(
            f"{path} holds recordings, and this model reads text; give a {', '.join(SUFFIXES)} file, or a model that "
            "hears sounds"
        )
    if path.is_dir():
        raise DataUnreadable(f"{path} is a folder; name a file in it ({', '.join(SUFFIXES)})")
    try:
        require_regular(path, DATA)
        with path.open("rb") as file:
            head = file.read(8_192)
    except OSError as error:
        raise DataUnreadable(f"{path} cannot be opened: {error.strerror}") from error
    if not head:
        raise DataEmpty(f"{path} is empty (0 bytes); give a file with at least one document")
    if path.suffix.lower() != ".parquet" and b"\0" in head:
        raise binary_file(path)


def _split_at_markers(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    for line in lines:
        if line.strip() == END_OF_TEXT:
            yield block
            block = []
        else:
            block.append(line)
    yield block


def _split_at_blank_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    in_article = False
    after_blank = True  # a title stands alone; "= x =" inside a paragraph is arithmetic
    for line in lines:
        blank = not line.strip()
        title = after_blank and TITLE.fullmatch(line.strip()) is not None
        if title or (blank and not in_article):
            yield block
            block = []
        in_article = in_article or title
        block.append("" if blank else line)
        after_blank = blank
    yield block


def _passages(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for piece in chain.from_iterable(map(_pieces, lines)):
        block.append(piece)
        size += len(piece)
        if size >= PASSAGE_CHARACTERS:
            yield block
            block, size = [], 0
    yield block


def _pieces(line: str) -> list[str]:
    if len(line) <= ENDLESS_LINE:
        return [line]
    most = PASSAGE_CHARACTERS - 1
    # up to a space if there is one in reach, else a hard cut
    return re.findall(rf"\S.{{0,{most}}}(?=\s|$)|\S.{{0,{most}}}", line)


LAYOUTS: dict[str, Callable[[list[str]], Iterable[list[str]]]] = {
    END_OF_TEXT: _split_at_markers,
    "titles": _split_at_blank_lines,
    "blank lines": _split_at_blank_lines,
    "lines": lambda lines: ([line] for line in lines),
    "passages": _passages,
}
UNDERSTOOD = {
    END_OF_TEXT: f"lines {END_OF_TEXT} separate the texts of {{}}",
    "titles": "titles as in WikiText separate the texts of {}",
    "blank lines": "blank lines separate the texts of {}",
    "lines": "one line of {} is one example",
    "passages": "{} is running text, read in passages of about 200 words",
}


def _table_documents(table: Table, columns: Sequence[str] | None, label: str | None) -> list[Document]:
    if not table.columns:
        return []
    chosen = choose_columns(table, columns)
    label = choose_label(table, label)
    group = "title" if chosen == ("question", "context") and "title" in table.columns else None
    used = [name for name in (*chosen, label, group) if name is not None]
    rows = whole_rows(table, chosen, used)
    labels = parse_labels([row.get(label) if label else None for row in rows])
    return [_row_document(row, chosen, value, group) for row, value in zip(rows, labels, strict=True)]


def _row_document(row: Row, columns: tuple[str, ...], label: Label, group: str | None) -> Document:
    text, *pair = (_encodable(row[name]).strip() for name in columns)
    return Document(text, pair[0] if pair else None, label, row.get(group) if group else None)
