"""How work says how far it is: a function that is called with a stage, the steps done and the steps in all."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]


def silent(_stage: str, _done: int, _total: int) -> None:
    """No progress shown."""
