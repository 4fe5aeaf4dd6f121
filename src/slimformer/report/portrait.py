"""Tables of a model's portrait: what weights, activations and attention look like, one line for each block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

RANDOM_ASYMMETRY = 0.71
FFN = ("gate", "up", "down")


def show_portrait(found: dict[str, Any], console: Console) -> None:
    """Weights first, then every data set."""
    console.print(weights_table(found["weights"]))
    for data in found.get("data", []):
        console.print(activations_table(data))
        for attention in data["attention"]:
            if attention["blocks"]:
                console.print(attention_table(data, attention))


def weights_table(blocks: Sequence[dict[str, Any]]) -> Table:
    """Estimated compressibility from weights alone, and asymmetry of W_qk."""
    names = [name for name in ("qk", "vo", *FFN) if any(name in block["groups"] for block in blocks)]
    table = _table(
        "from weights alone: share to keep for 95 % of Σσ² (random weights in brackets), rank at 95 % over full rank",
        ["block", "keep", *names, "neurons", "heads", "asymmetry of W_qk", "tied error"],
    )
    for block in blocks:
        ranks = [_share(block["groups"][name]["rank95"]) if name in block["groups"] else "–" for name in names]
        symmetry = block["symmetry"]
        keep = f"{block['keep']:.2f} ({block['keep_random']:.2f})"
        units = [_share(block["neurons"]), _share(block["heads"])]
        table.add_row(str(block["block"]), keep, *ranks, *units, _range(symmetry["asymmetry"]), _mean(symmetry["tied"]))
    table.caption = (
        "asymmetry ‖W − Wᵀ‖ / 2‖W‖ = relative error of the nearest symmetric W: mean (least … most); "
        f"0 symmetric, {RANDOM_ASYMMETRY} random, 1 skew. tied error: of the nearest head with W_q = W_k"
    )
    return table


def activations_table(data: dict[str, Any]) -> Table:
    """How many directions the four streams need."""
    streams = list(data["activations"][0]["streams"]) if data["activations"] else []
    title = (
        f"activations on {data['name']}, {data['tokens']:,} tokens: share of the width that holds 99 % of the variance"
    )
    table = _table(title, ["block", *streams, "mean", "symmetric W_qk, score error"])
    for block in data["activations"]:
        shares = [_share(block["streams"][name]["rank99"]) for name in streams]
        mean = _share(max(block["streams"][name]["mean_share"] for name in streams))
        table.add_row(str(block["block"]), *shares, mean, _range(block["symmetry_on_data"]))
    table.caption = (
        "mean: largest share of E‖x‖² that is the mean of a stream. score error: of the best symmetric W_qk under the "
        "data, mean over heads (least … most)"
    )
    return table


def attention_table(data: dict[str, Any], attention: dict[str, Any]) -> Table:
    """Energy of the first quarter of the singular values, real and null."""
    n, count = attention["length"], attention["sequences"]
    title = f"attention on {data['name']}, {count} sequences of {n} tokens: energy of the first {max(1, n // 4)} σ"
    header = ["block", "Σσ", "iid", "rank-d", "shuffled", "heads", "Σσ²", "iid", "rank-d", "shuffled", "shared", "rank"]
    table = _table(title, header)
    for block in attention["blocks"]:
        cells = []
        for key in ("energy_sum", "energy_squares"):
            cells += [
                _mean(block[key]),
                *(_mean(block["nulls"][null][key]) for null in ("iid", "low_rank", "shuffled")),
            ]
            cells += [_limits(block[key])] if key == "energy_sum" else []
        shared = _mean(block["shared"]) if "shared" in block else "–"
        table.add_row(str(block["block"]), *cells, shared, f"{fmean(block['effective_rank']):.1f}")
    table.caption = (
        "means over heads; heads: least and most Σσ. shared: Σσ² that one projection for all inputs keeps of inputs it "
        "was not made from. rank: effective rank of σ²"
    )
    return table


def _table(title: str, header: Iterable[str]) -> Table:
    table = Table(title=Text(title), title_justify="left", caption_justify="left")
    for name in header:
        table.add_column(name, justify="right")
    return table


def _share(value: float) -> str:
    return f"{value:.2f}"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" if values else "–"


def _limits(values: Sequence[float]) -> str:
    return f"{min(values):.2f} … {max(values):.2f}" if values else "–"


def _range(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f} ({_limits(values)})" if values else "–"
