"""What a model is made of, as tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slimformer.messages.words import option
from slimformer.report.console import counted, savings_table


def show_brief(inspection: dict[str, Any], console: Console) -> None:
    """The lines that decide what can be done with a model."""
    first = [site for site in inspection["sites"] if site["site"].split("blocks.")[-1].startswith("0.")]
    macs, least = inspection["macs_per_token"], inspection["least_macs"]
    share = macs["ffn.hidden"] / macs["blocks"] if macs["blocks"] else 0.0
    fixed = sorted({site["fixed"] for site in inspection["sites"] if "fixed" in site})
    free = sum(each["params"] for each in inspection["lossless"] if each["possible"])
    widths = ", ".join(
        counted(f"{site['units']:,} {'heads' if '.heads' in site['site'] else 'neurons'}" for site in first)
    )
    cache = inspection["kv_cache_bytes"]
    rows = [
        ("blocks", f"{inspection['blocks']} of width {inspection['hidden']:,}; in the first {widths}"),
        ("parameters", f"{inspection['params']['total']:,}, {inspection['params']['blocks']:,} of them in blocks"),
        ("block MACs", f"{macs['blocks']:,} per token (T={inspection['seq_len']}), {100 * share:.0f} % feed-forward"),
        ("other MACs", f"{macs['outside']:,} per token"),
        *([("KV cache", f"{cache:,} bytes for one sequence")] if cache else []),
        ("smallest", f"{option('macs')} {least['ragged']:.3f} ragged, {_plain(least['plain'])}"),
        ("without loss", f"{f'{free:,} parameters' if free else 'nothing'} by {option('recipe', 'lossless')}"),
        ("replacing MLPs", _replacing(inspection)),
        *([("stays as it is", "; ".join(fixed))] if fixed else []),
    ]
    title = f"{inspection['model']} · {inspection['class']} ({inspection['family']} family)"
    console.print(Text(title), soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in rows:
        table.add_row(name, Text(value))
    console.print(table)


def _plain(least: float | None) -> str:
    return "plain none: the blocks differ" if least is None else f"{least:.3f} plain"


def _replacing(inspection: dict[str, Any]) -> str:
    """Which maps the step `replace` may put in the place of feed-forward parts."""
    if not inspection["replaceable_mlp"]:
        return "not offered for this family"
    ways = "also one" if inspection["scale_free_mlp"]["offered"] else "but none"
    return f"by maps, {ways} right up to scale ({option('recipe', 'replace-mlp')})"


def show_inspection(inspection: dict[str, Any], console: Console) -> None:
    """Print all of it as a table."""
    title = Text(f"{inspection['model']} · {inspection['class']} ({inspection['family']} family)")
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    heads, neurons, plain = inspection["sites"][0], inspection["sites"][1], inspection["least_macs"]["plain"]
    macs = inspection["macs_per_token"]
    rows = [
        ("blocks", str(inspection["blocks"])),
        ("hidden size", str(inspection["hidden"])),
        ("heads (kv heads) of width", f"{heads['units']} ({heads['kv_heads']}) of {heads['unit']}, first block"),
        *([("  not to be cut", heads["fixed"])] if "fixed" in heads else []),
        ("neurons", f"{neurons['units']}, first block"),
        ("parameters", f"{inspection['params']['total']:,}"),
        ("  in blocks", f"{inspection['params']['blocks']:,}"),
        *_terms(inspection["parameters"]["terms"], inside=True),
        ("  outside", f"{inspection['params']['outside']:,}"),
        *_terms(inspection["parameters"]["terms"], inside=False),
        *_rule_of_thumb(inspection["parameters"]),
        (f"block MACs per token (T={inspection['seq_len']})", f"{macs['blocks']:,}"),
        ("  attention", f"{macs['attn.heads']:,}"),
        ("    projections", f"{macs['attn.projections']:,}"),
        ("    scores and context", f"{macs['attn.scores']:,}"),
        ("  feed-forward", f"{macs['ffn.hidden']:,}"),
        ("MACs outside blocks per token", f"{macs['outside']:,}"),
        *_cache(inspection),
        (
            "MLP up to scale (A v ≈ λu)",
            "yes, a norm follows: replace.by=scale-free" if inspection["scale_free_mlp"]["offered"] else "no, pre-norm",
        ),
        (f"smallest {option('macs')}, ragged", f"{inspection['least_macs']['ragged']:.3f}"),
        (f"smallest {option('macs')}, plain", "none: the blocks differ" if plain is None else f"{plain:.3f}"),
    ]
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    console.print(savings_table(inspection["lossless"]))


def _cache(inspection: dict[str, Any]) -> list[tuple[str, str]]:
    """Nothing for encoders, which keep nothing."""
    size = inspection["kv_cache_bytes"]
    return [(f"KV cache of one sequence (T={inspection['seq_len']})", f"{size:,} bytes")] if size else []


def _terms(terms: list[dict[str, Any]], *, inside: bool) -> list[tuple[str, str]]:
    return [(f"    {term['what']}", _valued(term)) for term in terms if term["inside"] == inside]


def _valued(term: dict[str, Any]) -> str:
    return f"{term['symbols']} = {term['value']:,}" if term["symbols"] else f"{term['value']:,}"


def _rule_of_thumb(parameters: dict[str, Any]) -> list[tuple[str, str]]:
    tied, rule, ratio = parameters["tied"], parameters["rule_of_thumb"], parameters["rule_over_exact"]
    kind = {True: "tied: V D", False: "not tied: 2 V D", None: "V D"}[tied]
    off = "" if ratio is None else f" ({100 * (ratio - 1):+.1f} %)"
    return [(f"  rule of thumb 12 L D² + embeddings ({kind})", f"{rule['total']:,}{off}")]
