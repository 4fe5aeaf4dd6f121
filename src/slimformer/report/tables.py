"""The one look of tables in a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text


def number_table(title: str, *columns: str) -> Table:
    """A table without rows: title on the left, columns of numbers to the right. A column without a name holds names."""
    table = Table(title=Text(title) if title else None, title_justify="left", caption_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    return table
