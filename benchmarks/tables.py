"""Tables of single benchmarks: from a result file to Markdown. `render.py` puts them where they belong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class NothingToRender(Exception):
    """A document names results that are not there."""


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table, numbers to the right."""
    head = list(header)
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cascade(results: dict[str, Any], _report: str | None) -> str:
    """Cascades chosen on one set at several mean budgets, and what they do on another; then the cuts alone."""
    name = results["settings"]["model"]
    parts = [_protocol(name, results, each) for each in results["protocols"]]
    on = results["protocols"][0]["reported_on"]
    alone = [[f"{100 * row['macs']:.0f} %", _quality(row)] for row in results["alone"]]
    cuts = "refined" if results["settings"].get("refined") else "as `cut` makes them"
    parts.append(f"One cut for all inputs of {on} ({cuts}):\n\n{markdown(['block MACs', _measure(results)], alone)}")
    claim, said = results["claim"], "holds" if results["holds"] else "does not hold"
    parts.append(
        f"The claim (at most {claim['most_macs']:.0%} of the block MACs by input and by token, at most "
        f"{claim['most_lost']:g} lost to the dense model, at the row asked for {claim['asked']:.0%}) {said}."
    )
    return "\n\n".join(parts)


def _protocol(name: str, results: dict[str, Any], protocol: dict[str, Any]) -> str:
    on, there = protocol["chosen_on"], protocol["reported_on"]
    examples = results["settings"]["sets"][there]["examples"]
    measure = _measure(results)
    rows = []
    for row in protocol["points"]:
        found, one = row[there], row["one_cut"]
        shares = [f"{100 * found[key]:.1f} %" for key in ("macs", "token_macs", "routed")]
        lost = _gap(found["lost"], found["lost_low"], found["lost_high"])
        gained = _gap(one["gained"], one["gained_low"], one["gained_high"])
        cuts = f"{row['small']:g} → {row['large']:g}"
        rows.append([f"{row['asked']:.0%}", cuts, *shares, _quality(found), lost, f"{gained} ({one['budget']:g})"])
    header = ["asked", "cuts", "MACs", "by token", "handed on", measure, "lost to dense", "gained over one cut"]
    return (
        f"{name}, chosen on {on}, reported on {there} ({examples:,} held-out examples; 95 % intervals):\n\n"
        f"{markdown(header, rows)}"
    )


def _measure(results: dict[str, Any]) -> str:
    return "accuracy, %" if "accuracy" in results["alone"][0] else "perplexity"


def _quality(row: dict[str, Any]) -> str:
    return f"{100 * row['accuracy']:.2f}" if "accuracy" in row else f"{row['ppl']:.3f}"


def _gap(value: float, low: float, high: float) -> str:
    return f"{value:+.4f} [{low:+.4f}, {high:+.4f}]"


def certificate(results: dict[str, Any], part: str | None) -> str:
    """What the simulations found: false passes of one test, of the whole procedure, and power."""
    return {"power": _power, "validity": _validity, "documents": _documents}[part or "validity"](results)


def _validity(results: dict[str, Any]) -> str:
    settings, allowed = results["settings"], results["tolerance"]
    kinds = list(dict.fromkeys(cell["harms"] for cell in results["front"]))
    rows = []
    for kind in kinds:
        single = {
            test: max(c["false_passes"] for c in results["validity"] if (c["harms"], c["test"]) == (kind, test))
            for test in ("betting", "hoeffding-bentkus")
        }
        whole = next(cell for cell in results["front"] if cell["harms"] == kind)
        returned = f"{whole['mean_returned']:.2f} ε"
        rows.append([kind, *map(str, single.values()), str(whole["false_passes"]), returned])
    header = ["harms", "one test, betting", "one test, Hoeffding–Bentkus", "whole procedure", "mean returned"]
    return (
        f"False passes in {settings['repetitions']} repetitions (δ = {settings['delta']:g}; up to "
        f"{allowed['false_passes_allowed']} are within the {allowed['quantile']:.1%} quantile), and the true mean of "
        f"the model the whole procedure returns:\n\n{markdown(header, rows)}"
    )


def _documents(results: dict[str, Any]) -> str:
    least, largest = results["least_documents"]["betting"], results["largest_means"]
    counts = list(next(iter(largest.values())))
    rows = [
        [clip.removeprefix("clip "), str(least[clip]), *("none" if x is None else f"{x:.2f}" for x in row.values())]
        for clip, row in largest.items()
    ]
    return markdown(["clip", "least n", *(f"n = {n}" for n in counts)], rows)


def _power(results: dict[str, Any]) -> str:
    names = {
        "betting": "betting",
        "hoeffding-bentkus": "Hoeffding–Bentkus",
        "plug-in betting": "betting by the documents seen, stopped at its best (not offered)",
        "empirical Bernstein": "empirical Bernstein (not offered)",
    }
    power = results["mean_power"]
    documents = list(power["betting"])
    rows = [[names[test], *(f"{power[test][n]:.2f}" for n in documents)] for test in names]
    return markdown(["test", *(f"n = {n}" for n in documents)], rows)


def front(results: dict[str, Any], _report: str | None) -> str:
    """Predicted and measured divergence along a front."""
    settings, ratio = results["settings"], results["ratio"]
    rows = [
        [f"{100 * row['macs']:.0f} %", f"{row['predicted_kl']:.3g}", f"{row['kl']:.3g}"] for row in results["points"]
    ]
    return (
        f"{settings['model']}, {settings['report']} ({settings['report_tokens']:,} held-out tokens): rank correlation "
        f"{results['rank_correlation']:.3f} over {len(rows)} points; measured is {ratio['least']:.2g} to "
        f"{ratio['most']:.2g} times predicted.\n\n{markdown(['MACs', 'predicted KL', 'measured KL'], rows)}"
    )


def nested_time(results: dict[str, Any], _report: str | None) -> str:
    """Seconds of five budgets by either route."""
    rows = []
    for route, what in (("cut", "`cut`"), ("compress", "`compress --no-refine`")):
        seconds = [each["cpu"] for each in results[route]]
        rows.append([what, *(f"{value:.1f}" for value in seconds), f"{sum(seconds):.1f}"])
    header = ["CPU seconds", *(f"{100 * budget:.0f} %" for budget in results["budgets"]), "together"]
    ratio, same = results["ratio"], "the same bits" if results["same_bits"] else "NOT the same bits"
    return (
        f"{results['model']}, {results['tokens']['fit']:,} tokens fitted on, one thread; after one calibration of "
        f"{results['calibrate']['cpu']:.0f} s, five cuts take {100 * ratio['cpu']:.1f} % of the time of five runs of "
        f"`compress` ({100 * ratio['cpu_without_measuring']:.1f} % if these did not measure the result); {same}.\n\n"
        f"{markdown(header, rows)}"
    )


def stsb(results: dict[str, Any], _report: str | None) -> str:
    """Spearman and fidelity of a sentence encoder."""
    settings, dense = results["settings"], results["dense"]
    rows = []
    for row in results["cells"]:
        worse = (
            "" if row["recipe"] == results["ours"] or row["to_ours"][1] < 0 else "!" if row["to_ours"][0] > 0 else "="
        )
        low, high = row["to_dense"]
        alike = f"{row['fidelity']:.4f} [{row['fidelity_interval'][0]:.4f}, {row['fidelity_interval'][1]:.4f}]"
        share = f"{100 * row['macs']:.0f} %"
        rows.append([f"`{row['recipe']}`", share, f"{row['spearman']:.4f}{worse}", f"[{low:+.4f}, {high:+.4f}]", alike])
    header = ["recipe", "MACs", "Spearman", "difference to dense", "fidelity"]
    return (
        f"all-MiniLM-L6-v2, STS-B dev ({settings['pairs']:,} pairs; dense {dense['spearman']:.4f}; calibrated on "
        f"{settings['tokens']['fit']:,} tokens of other sentences; 95 % intervals; = no significant difference to "
        f"`{results['ours']}`, ! significantly better than it; fidelity: mean cosine with the dense embedding):\n\n"
        f"{markdown(header, rows)}"
    )
