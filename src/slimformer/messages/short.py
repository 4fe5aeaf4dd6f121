"""Objects that print in a few lines: a title and some facts; as a small table in notebooks."""

from __future__ import annotations

import html
from abc import abstractmethod

LONGEST = 200  # characters of one fact


class Short:
    """What says itself by `facts`, the first of which is its title. Give dataclasses `repr=False` to have it."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Names and values, the title first."""

    def __repr__(self) -> str:
        (_, title), *facts = self._lines()
        width = max((len(name) for name, _ in facts), default=0)
        return "\n".join([f"{type(self).__name__}: {title}", *(f"  {name:<{width}}  {value}" for name, value in facts)])

    def _repr_html_(self) -> str:
        (_, title), *facts = ((html.escape(name), html.escape(value)) for name, value in self._lines())
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in facts)
        return f"<table><caption>{type(self).__name__}: {title}</caption>{rows}</table>"

    def _lines(self) -> list[tuple[str, str]]:
        """Every fact in one line, and not too long: names of models and data are a stranger's text."""
        lines = [(name, " ".join(value.split())) for name, value in self.facts().items()]
        return [(name, value if len(value) <= LONGEST else f"{value[:LONGEST]}…") for name, value in lines]


def count(n: float) -> str:
    """A number in a unit one can read."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.2f} {unit}"
    return f"{n:.0f}"
