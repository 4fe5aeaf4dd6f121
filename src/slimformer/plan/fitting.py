"""How readers are refitted."""

from __future__ import annotations

from typing import Protocol


class Fitting(Protocol):
    """How readers are refitted: said by a plan, and by the settings of a cut."""

    @property
    def ridge(self) -> float: ...

    @property
    def absorb_mean(self) -> bool: ...

    @property
    def metric(self) -> str: ...
