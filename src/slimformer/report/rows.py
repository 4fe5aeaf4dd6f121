"""How many keys attention needs, as a table and a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

from rich.console import Console
from rich.text import Text

from slimformer.errors import SlimformerError
from slimformer.inspect.rows import RowSpaces, identity_error
from slimformer.report.tables import number_table

COLUMNS = ("layer", "k (σ²)", "worst head", "k (σ)", "k (σ²), noise", "k, shared", "own keeps", "shared keeps")


def rows_report(blocks: Sequence[RowSpaces], share: float) -> dict[str, Any]:
    """All numbers at one length, a k for every layer (that of its worst head), and how the theorem fares on P = I."""
    if not blocks:
        raise SlimformerError("no block of this model has attention left, so there are no keys to count")
    n = blocks[0].n
    k = max(1, n // 4)
    layers = [{**each.to_json(), "suggested_k": math.ceil(float(each.k_squares.max()))} for each in blocks]
    identity = {"n": n, "k": k, "error": round(identity_error(n, k), 3), "root": round((n / k) ** 0.5, 3)}
    return {"n": n, "share": share, "layers": layers, "identity": identity}


def show_rows(spaces: dict[str, Any], console: Console, *, data: str, sequences: int) -> None:
    """Means over heads on sequences of these data, and what they say."""
    n, share = spaces["n"], spaces["share"]
    title = f"keys that keep {share:.0%} of attention over {n} tokens\nmeasured on {data}: {sequences:,} sequences"
    table = number_table(title, *COLUMNS)
    for each in spaces["layers"]:
        numbers = [mean(each[name]) for name in ("k_sum", "k_null", "k_shared")]
        table.add_row(
            str(each["block"]), f"{mean(each['k_squares']):.0f}", f"{max(each['k_squares']):.0f}",
            *(f"{number:.0f}" for number in numbers), f"{mean(each['own']):.3f}", f"{mean(each['shared']):.3f}",
        )  # fmt: skip
    console.print(table)
    console.print(Text(sentence(spaces)))


def sentence(spaces: dict[str, Any]) -> str:
    """The finding in words."""
    own = mean(mean(each["k_squares"]) for each in spaces["layers"])
    shared = mean(mean(each["k_shared"]) for each in spaces["layers"])
    identity = spaces["identity"]
    return (
        f"a text's own best keys: {own:.0f} of {spaces['n']}; keys that must serve every text: {shared:.0f}. Random "
        f"projections of P = I to {identity['k']} of {identity['n']} keys miss by {identity['error']:.2f} of it "
        f"(root of n/k: {identity['root']:.2f})."
    )
