"""Tables of a model's portrait: what weights, activations and attention look like, one line for each block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from slimformer.inspect.activations import STREAMS
from slimformer.report.tables import number_table

RANDOM_ASYMMETRY = 0.71
FFN = ("gate", "up", "down")


def show_portrait(portrait: dict[str, Any], console: Console) -> None:
    """Weights first, where they were looked at, then every data set."""
    if portrait.get("weights"):
        console.print(weights_table(portrait["weights"]), symmetry_table(portrait["weights"]), sep="\n")
    for data in portrait.get("data", []):
        console.print(activations_table(data), maps_table(data), forms_table(data), sep="\n")
        for attention in data["attention"]:
            if attention["blocks"]:
                console.print(*attention_tables(data, attention), sep="\n")


def weights_table(blocks: Sequence[dict[str, Any]]) -> Table:
    """Estimated compressibility from weights alone."""
    names = [name for name in ("qk", "vo", *FFN) if any(name in block["groups"] for block in blocks)]
    table = number_table(
        "from weights alone: share to keep for 95 % of Σσ², and of random weights; rank at 95 % over full rank",
        "block", "keep", "random", *names, "neurons", "heads",
    )  # fmt: skip
    for block in blocks:
        ranks = [_share(block["groups"][name]["rank95"]) if name in block["groups"] else "–" for name in names]
        shares = [_share(block[name]) for name in ("keep", "keep_random")]
        table.add_row(str(block["block"]), *shares, *ranks, _share(block["neurons"]), _share(block["heads"]))
    table.caption = "neurons, heads: share of them that holds 95 % of the squared norms"
    return table


def symmetry_table(blocks: Sequence[dict[str, Any]]) -> Table:
    """How far the score forms of the heads are from symmetric ones."""
    table = number_table("symmetry of W_qk, over heads", "block", "asymmetry", "least … most", "tied error")
    for block in blocks:
        asymmetry, tied = block["symmetry"]["asymmetry"], block["symmetry"]["tied"]
        table.add_row(str(block["block"]), _mean(asymmetry), _limits(asymmetry), _mean(tied))
    table.caption = (
        "asymmetry ‖W − Wᵀ‖ / 2‖W‖ = relative error of the nearest symmetric W: "
        f"0 symmetric, {RANDOM_ASYMMETRY} random, 1 skew. tied error: of the nearest head with W_q = W_k"
    )
    return table


def activations_table(data: dict[str, Any]) -> Table:
    """How many directions the four streams need."""
    streams = streams_of([data])
    title = (
        f"activations on {data['name']}, {data['tokens']:,} tokens: share of the width that holds 99 % of the variance"
    )
    table = number_table(title, "block", *streams, "mean")
    for block in data["activations"]:
        shares = [_share(block["streams"][n]["rank99"]) if n in block["streams"] else "–" for n in streams]
        mean = _share(max(stream["mean_share"] for stream in block["streams"].values()))
        table.add_row(str(block["block"]), *shares, mean)
    table.caption = "mean: largest share of E‖x‖² that is the mean of a stream"
    return table


def streams_of(sets: Sequence[dict[str, Any]]) -> list[str]:
    """The streams that some block has: one without heads has no context, one without neurons nothing to read them."""
    every = {name for data in sets for block in data["activations"] for name in block["streams"]}
    return [name for name in STREAMS if name in every]


def maps_table(data: dict[str, Any]) -> Table:
    """How linear feed-forward parts are, on data."""
    table = number_table(f"simpler maps on {data['name']}", "block", "MLP linear: R²", "its rank")
    for block in data["activations"]:
        table.add_row(str(block["block"]), *(_share(block["mlp_linear"][name]) for name in ("r2", "rank95")))
    table.caption = (
        "MLP linear: what the best affine map explains of the feed-forward part, on data that were not fitted; its "
        "rank: share of the width that 95 % of that takes"
    )
    return table


def forms_table(data: dict[str, Any]) -> Table:
    """What simpler score forms of every head would miss of its scores on data, and of heads that learnt nothing."""
    table = number_table(
        f"simpler W_qk on {data['name']}: share of the scores (root mean square) that is missed",
        "block", "symmetric", "least … most", "null", "half rank", "null", "one for all", "null",
    )  # fmt: skip
    for block in data["activations"]:
        forms = block["score_forms"]
        if not forms.get("symmetric"):
            continue
        null, errors = forms["null"], forms["symmetric"]
        table.add_row(
            str(block["block"]), _mean(errors), _limits(errors), _mean(null["symmetric"]),
            _mean(forms["half_rank"]), _mean(null["half_rank"]), _share(forms["one_for_all"]),
            _share(null["one_for_all"]),
        )  # fmt: skip
    turned = any(block["score_forms"].get("distance") == 0 for block in data["activations"])
    table.caption = (
        "the best symmetric W_qk of each head, the best of half its rank, one W_qk for all heads of the block; null: "
        "random heads on the same data. Collapsing W_q and W_k of a head into one matrix misses nothing"
        + (". Rotary positions: at distance 0; at others the form is another one, and not symmetric" if turned else "")
    )
    return table


def attention_tables(data: dict[str, Any], attention: dict[str, Any]) -> Iterator[Table]:
    """Energy of the first quarter of the singular values, real and null: of σ as Linformer draws it, and of σ²."""
    n, count = attention["length"], attention["sequences"]
    where = f"attention on {data['name']}, {count} sequences of {n} tokens: "
    for key, what in (("energy_sum", "Σσ"), ("energy_squares", "Σσ²")):
        last = ["shared", "rank"] if key == "energy_squares" else []
        title = f"{where}{what} of the first {max(1, n // 4)}, over all"
        table = number_table(title, "block", what, "heads", "iid", "rank-d", "shuffled", *last)
        for block in attention["blocks"]:
            nulls = [_mean(block["nulls"][null][key]) for null in ("iid", "low_rank", "shuffled")]
            shared = _mean(block["shared"]) if "shared" in block else "–"
            more = [shared, f"{fmean(block['effective_rank']):.1f}"] if last else []
            table.add_row(str(block["block"]), _mean(block[key]), _limits(block[key]), *nulls, *more)
        table.caption = (
            "shared: Σσ² that one projection for all inputs keeps of inputs it was not made from. rank: effective rank"
            if last
            else "means over heads; heads: least and most. iid, rank-d, shuffled: attention that means nothing"
        )
        yield table


def _share(value: float) -> str:
    return f"{value:.2f}"


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.2f}" if values else "–"


def _limits(values: Sequence[float]) -> str:
    return f"{min(values):.2f} … {max(values):.2f}" if values else "–"
