"""The report as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from slimformer.evaluate.elsewhere import elsewhere_line, headline_metrics
from slimformer.evaluate.report import Footprint, Report
from slimformer.evaluate.verdict import verdict
from slimformer.messages.short import count
from slimformer.models import Architecture
from slimformer.models.architecture import block_of
from slimformer.plan import Plan
from slimformer.plan.memory import in_words
from slimformer.report.card import (
    embedding_line,
    ends_line,
    experts_line,
    healed_line,
    narrow_line,
    opening_line,
    replaced_line,
    size_line,
    vocabulary_line,
)
from slimformer.report.heads import fresh_head_line
from slimformer.report.names import measured_line
from slimformer.report.tables import number_table

STYLES = {"green": "green", "amber": "yellow", "red": "red", "grey": "dim"}
MANY = 3  # of one word in a row of words


def show(report: Report, console: Console) -> None:
    """Print before and after, what was kept in each block, and samples of text."""
    summary = verdict(report.to_dict())
    console.print(Text(summary.sentence, style="bold"))
    console.print(Text(summary.light, style=STYLES[summary.colour]))
    console.print(before_after(report))
    if report.lossless:
        console.print(savings_table(report.lossless["rewrites"]))
        moved, on = report.lossless["largest_change"], report.lossless["dtype"]
        console.print(Text(f"largest change of an output on a random sample, in {on}: {moved:.1e} of the largest"))
        if report.lossless.get("hint"):
            console.print(Text(f"note: {report.lossless['hint']}"))
    elif report.long_context:
        console.print(layers_table(report.long_context))
        console.print(Text(grouped_line(report.long_context)))
    elif report.sites:
        console.print(kept_table(report.sites))
    if report.replaced:
        console.print(replaced_table(report.replaced))
        console.print(Text(replaced_line(report.replaced)))
    for title, text in (report.samples or {}).items():
        console.print(Panel(Text(text), title=title, title_align="left"))
    if report.head:
        console.print(Text(fresh_head_line(report.head)))
    if report.embedding:
        console.print(Text(embedding_line(report.embedding)))
    if line := size_line(report.sizing or {}):
        console.print(Text(line))
    if report.experts:
        console.print(Text(experts_line(report.experts)))
    if report.vocabulary:
        console.print(Text(vocabulary_line(report.vocabulary)))
    if report.ends:
        console.print(Text(ends_line(report.ends)))
    if report.healing:
        console.print(Text(healed_line(report.healing)))
    if report.quantization:
        console.print(Text(narrow_line(report.quantization)))
    if report.certificate:
        console.print(Text(f"certified: {report.certificate['statement']}"))
    for warning in report.warnings:
        console.print(Text(f"note: {warning}", style="yellow"))


def layers_table(section: dict[str, Any]) -> Table:
    """What grouping keys does to the output of every attention, and where it was done."""
    table = number_table("attention over groups of keys", "layer", "error of its output", "second order", "keys")
    keys = f"{section['k']} groups" + (f" + {section['window']}" if section["window"] else "")
    for each in section["layers"]:
        order = "yes" if each["second_order"] else "no"
        table.add_row(str(each["layer"]), f"{each['error']:.3f}", order, keys if each["grouped"] else "all")
    return table


def grouped_line(section: dict[str, Any]) -> str:
    """How far the outputs moved, where layers were chosen and on documents that took no part."""
    count = sum(each["grouped"] for each in section["layers"])
    return (
        f"{count} of {len(section['layers'])} layers are grouped: {section['harm_is']} {section['harm_select']:.4f} "
        f"where they were chosen, {section['harm_report']:.4f} on {section['tokens_report']:,} other tokens"
    )


def savings_table(savings: Sequence[dict[str, Any]]) -> Table:
    """What each lossless rewrite saves, or why it is not possible."""
    table = Table(title="rewrites that change no output", title_justify="left")
    for column in ("rewrite", "parameters", "MACs / token", "KV cache"):
        table.add_column(column, justify="left" if column == "rewrite" else "right")
    table.add_column("")
    for each in savings:
        saved = [f"{each[key]:,}" if each["possible"] else "" for key in ("params", "macs", "kv_cache_bytes")]
        notes = [each["says"] if each["possible"] else "not offered", each["why"]]
        if each["implicit"]:
            notes.append(f"{each['implicit']:,} numbers become 0 or 1")
        table.add_row(each["rewrite"], *saved, Text(": ".join(note for note in notes if note)))
    return table


def before_after(report: Report) -> RenderableType:
    """The table of numbers: dense, small and their ratio, below the data they were measured on."""
    title = f"{report.model} · {report.recipe} · {report.format}"
    table = sizes_table(title, report.dense, report.small, report.seq_len)
    if report.latency:
        for part in ("body", "end_to_end"):
            timing = report.latency[part]
            name, values = f"latency, {part.replace('_', ' ')}", (timing["dense"], timing["small"])
            table.add_row(name, *map(_milliseconds, values), f"{timing['ratio']:.3f}")
    for metric in report.metrics:
        table.add_row(*_metric(metric))
    for other in report.other_data:
        table.add_section()
        for metric in headline_metrics(other["metrics"]) if other.get("unfitted") else other["metrics"]:
            what, *cells = _metric(metric)
            table.add_row(Text(f"{what} · {Path(other['name']).name}"), *cells)
    above, caption = measured_line(report.data, report.metrics), _caption(report)
    lines = [above, elsewhere_line(report.elsewhere) if report.elsewhere else ""]
    return Group(*(Text(line) for line in lines if line), table, *([Text(caption, style="dim")] if caption else []))


def sizes_table(title: str, dense: Footprint, small: Footprint, seq_len: int) -> Table:
    """What both models cost: MACs, parameters, weights and cache."""
    table = number_table(title, "", "dense", "small", "ratio / difference")
    _row(table, f"block MACs / token (T={seq_len})", dense.block_macs, small.block_macs, count)
    _row(table, "MACs outside blocks / token", dense.outside_macs, small.outside_macs, count)
    if dense.outside_macs:
        every = [each.block_macs + each.outside_macs for each in (dense, small)]
        _row(table, "all MACs / token", every[0], every[1], count)
    _row(table, "parameters", dense.params, small.params, count)
    _row(table, "  in blocks", dense.block_params, small.block_params, count)
    _row(table, "weights", dense.bytes, small.bytes, _bytes)
    if dense.kv_cache_bytes:
        _row(table, f"KV cache (T={seq_len})", dense.kv_cache_bytes, small.kv_cache_bytes, _bytes)
    return table


def harm_line(plan: Plan, *, probabilities: bool) -> str:
    """What a plan is expected to do to the outputs, and what that is worth."""
    if plan.predicted_kl is None:
        return "predicted harm: not known, because nothing was probed"
    what = f"KL {plan.predicted_kl:.4g} nats" if probabilities else f"{plan.predicted_kl:.4g} of the energy"
    return f"predicted harm at the outputs: {what} (cuts of single parts, added up; many together do more)"


def kept_table(sites: Sequence[dict[str, Any]]) -> Table:
    """What every block keeps."""
    ranked = any("qk" in site for site in sites)
    rank_columns = ("qk rank", "vo rank") if ranked else ()
    table = number_table("kept in each block", "block", "heads", "kv heads", *rank_columns, "neurons")
    for i in sorted({site["block"] for site in sites}):
        heads, neurons = (
            [s for s in sites if s["block"] == i and s["kind"] == k] for k in ("attn.heads", "ffn.hidden")
        )
        cells = [
            [f"{s['keep']}/{s['of']}" for s in heads],
            [f"{s['groups']}/{s['of_groups']}" for s in heads],
            *([f"{s[rank]}/{s['of_rank']}" if rank in s else "" for s in heads] for rank in ("qk", "vo") if ranked),
            [f"{s['keep']}/{s['of']}" + _instead(s) for s in neurons],
        ]
        stack, number = block_of((heads or neurons)[0]["site"])
        table.add_row(f"{stack} {number}" if stack else str(i), *(", ".join(counted(cell)) for cell in cells))
    return table


def counted(words: Iterable[str]) -> list[str]:
    """Words in their order, each once, with how many there are where they are many (experts)."""
    counts = Counter(filter(None, words))
    return [word if n < MANY else f"{n} × {word}" for word, n in counts.items() for _ in range(n if n < MANY else 1)]


def _instead(site: dict[str, Any]) -> str:
    """What there is beside the neurons of a part, or in their place."""
    if site.get("replaced"):
        return ", replaced"
    return f" + rank {site['path']}" if site.get("path") else ""


def replaced_table(section: dict[str, Any]) -> Table:
    """What stands in the place of feed-forward parts, and what each does alone."""
    title = f"feed-forward parts replaced: {section['by']}" + (f", λ by {section['scale']}" if section["scale"] else "")
    harm = f"{section['harm_is']}, alone"
    table = number_table(title, "block", "R²", "cosine", harm, "MACs / token", "replaced")
    for each in section["blocks"]:
        macs = f"{count(each['of_macs'])} → {count(each['macs'])}"
        figures = (f"{each['r2']:.3f}", f"{each['cosine']:.3f}", f"{each['harm']:.4f}")
        table.add_row(str(each["block"]), *figures, macs, "yes" if each["replaced"] else "no")
    return table


def plan_table(architecture: Architecture, plan: Plan) -> list[dict[str, Any]]:
    """What a plan keeps at every site, in the form `kept_table` shows."""
    rows: dict[str, dict[str, Any]] = {}
    for edit in plan.edits:
        if edit.site in architecture.by_name:
            site = architecture[edit.site]
            of_groups = site.units // max(1, site.group)
            rows[edit.site] = {"block": site.block, "kind": site.kind, **asdict(edit), "of_groups": of_groups}
            paired = {"keep": edit.keep + 2 * edit.rank}  # without a gate a path is made of neurons
            rows[edit.site] |= {"path": edit.rank} if site.gated else paired
    for edit in plan.edits:
        if edit.site not in rows:  # a rank, which belongs to the heads of its block
            block, rank = edit.site.rsplit(".", 1)
            heads = architecture[f"{block}.heads"]
            rows[f"{block}.heads"] |= {rank: edit.keep * heads.unit // edit.of, "of_rank": heads.unit}
    return list(rows.values())


def _caption(report: Report) -> str:
    parts = []
    if report.latency:
        runs, threads = report.latency["repeats"], report.latency["threads"]
        plural = "" if threads == 1 else "s"
        parts.append(f"latency: medians of {runs} interleaved runs, {threads} thread{plural}")
    if report.opening.get("device"):
        parts.append(f"on {report.opening['device']}")
    parts.append(opening_line(report.opening).removesuffix("."))
    return " · ".join(part for part in parts if part)


def _row(table: Table, name: str, dense: float, small: float, show_value: Any) -> None:
    ratio = f"{small / dense:.3f}" if dense else ""
    table.add_row(name, show_value(dense), show_value(small), ratio)


def _metric(metric: dict[str, Any]) -> tuple[str, str, str, str]:
    part = f", {metric['on']:,} tokens of {metric.get('documents') or 0:,} texts" if metric.get("on") else ""
    name = f"{metric['name']} ({'↓' if metric['better'] == 'lower' else '↑'}{part})"
    dense = "" if metric["dense"] is None else f"{metric['dense']:.4g}"
    interval = "" if metric["low"] is None else f"{metric['low']:+.3g} … {metric['high']:+.3g}"
    return name, dense, f"{metric['small']:.4g}", interval


def _bytes(value: float) -> str:
    return f"{value / 1e6:.1f} MB" if value >= 1e5 else in_words(int(value))


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:.1f} ms"
