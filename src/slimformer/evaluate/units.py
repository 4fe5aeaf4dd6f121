"""Sums by document: the unit that is drawn independently, so the one an error can be estimated from.

Windows are cut from documents laid end to end, and a long document is many rows for an encoder. Tokens of one document
are alike, so neither tokens nor windows are independent draws; documents are. What a position predicts belongs to the
document of the token that comes next, and nothing is measured where that token only sets documents apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from slimformer.calibrate.text import Batch

OWN = 2**40  # numbers of rows that are documents of their own: no other document has such a number


class Tally:
    """Columns of numbers added up by document while batches go by."""

    def __init__(self) -> None:
        self._units: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._rows = 0

    def documents(self, part: Batch, places: int) -> Tensor:
        """The document of what is measured at each of the places of each row (rows × places).

        Call it once for every part: rows of a part that does not name their documents are documents of their own.
        """
        numbers = self._numbers(part)
        return numbers[:, None].expand(-1, places) if numbers.ndim == 1 else next_documents(numbers)

    def main_documents(self, part: Batch) -> Tensor:
        """The document most of each row is of, where a row is measured as one. Call it once for every part, too."""
        numbers = self._numbers(part)
        return numbers if numbers.ndim == 1 else numbers.mode(1).values

    def _numbers(self, part: Batch) -> Tensor:
        rows = len(next(iter(part.inputs.values())))
        own = torch.arange(OWN + self._rows, OWN + self._rows + rows)
        self._rows += rows
        return own if part.documents is None else part.documents.cpu()

    def add(self, units: Tensor, columns: Tensor) -> None:
        """Numbers (n × columns) of n units."""
        known, index = units.unique(return_inverse=True)
        self._units.append(known)
        self._sums.append(torch.zeros(len(known), columns.shape[1], dtype=torch.float64).index_add_(0, index, columns))

    def table(self) -> Tensor:
        """Sums, documents × columns, in the order of their numbers."""
        if not self._units:
            return torch.zeros(0, 1, dtype=torch.float64)
        known, index = torch.cat(self._units).unique(return_inverse=True)
        sums = torch.cat(self._sums)
        return torch.zeros(len(known), sums.shape[1], dtype=torch.float64).index_add_(0, index, sums)


def next_documents(documents: Tensor) -> Tensor:
    """Of positions (rows × length): the document of the token that each predicts; the last one its own."""
    return torch.cat([documents[:, 1:], documents[:, -1:]], 1)
