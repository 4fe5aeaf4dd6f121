"""What a user may ask a plan for: checks of budgets and formats that need neither a model nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import either, option

Measure = Literal["macs", "params", "latency"]
MEASURES: tuple[Measure, ...] = ("macs", "params", "latency")
BUDGETS = (*MEASURES, "total_macs", "max_kl", "size")  # all that `compress` takes
NOUNS = {"macs": "MACs", "params": "block parameters", "latency": "measured block latency", "total_macs": "MACs"}
PERCENT = 5  # from here on a budget that is no fraction was meant in per cent; nobody wants 1.5 %
FORMATS = ("ragged", "plain")


def require_one(given: Mapping[str, object]) -> str:
    """The name of the one budget that was given; refused where there is none, or more than one."""
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        given_names = " and ".join(option(name, given[name]) for name in names) or "none"
        raise BudgetOutOfReach(f"one budget is needed: {either(*given)} (found {given_names})")
    return names[0]


def one_fraction(given: Mapping[str, float | None]) -> tuple[str, float]:
    """The one fraction that was given, after the name of what it is a fraction of."""
    by = require_one(given)
    fraction = given[by]
    assert fraction is not None
    require_fraction(fraction, by)
    return by, fraction


def require_fraction(fraction: float, by: str = "macs") -> None:
    """Refuse what is not a fraction to keep; percents are the usual slip."""
    if not 0 < fraction <= 1:
        meant = f" (did you mean {fraction / 100:g}?)" if PERCENT <= fraction <= 100 else ""
        raise BudgetOutOfReach(
            f"{option(by, fraction)} is not a fraction of the {NOUNS[by]} to keep; give a number above 0, up to "
            f"1{meant}"
        )


def require_divergence(max_kl: float) -> None:
    """Refuse what no model can be held to."""
    if not max_kl > 0:
        raise BudgetOutOfReach(
            f"{option('max_kl', max_kl)} is no bound on a divergence; give nats above 0, such as 0.1"
        )


def fractions_of(text: str) -> list[float]:
    """The budgets in "0.9,0.7,0.5"."""
    try:
        fractions = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise BudgetOutOfReach(f"{text!r} is not a list of fractions; give budgets like 0.9,0.7,0.5") from None
    for fraction in fractions:
        require_fraction(fraction)
    return fractions


def require_format(format: str) -> None:
    """Refuse a format that is not known."""
    if format not in FORMATS:
        raise BudgetOutOfReach(f"there is no format {format!r}; choose from {', '.join(FORMATS)}")
