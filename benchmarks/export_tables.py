"""The table of runtimes: latency ratios, bytes, and how far embeddings move."""

from __future__ import annotations

from typing import Any

from tables import markdown


def export_speed(results: dict[str, Any], _report: str | None) -> str:
    """One row for each model in each runtime; the first is what the others are compared with."""
    shapes = list(dict.fromkeys((row["batch"], row["length"]) for row in results["latency"]))
    ratios = {(row["name"], row["batch"], row["length"]): row for row in results["latency"]}
    rows = []
    for name, found in results["competitors"].items():
        cells = [_ratio(ratios[name, *shape]) for shape in shapes]
        size = "–" if found["bytes"] is None else f"{found['bytes'] / 1e6:.1f}"
        far = [f"{found['largest']:.1g}", f"{found['lowest_cosine']:.4f}", f"{found['cosine_to_dense']:.3f}"]
        rows.append([name, *cells, size, *far])
    header = [
        "model, runtime", *(f"latency {batch} × {length}" for batch, length in shapes), "MB",
        "largest difference to its own", "lowest cosine to its own", "mean cosine to the dense",
    ]  # fmt: skip
    machine = results["machine"]
    threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    said = (
        f"{results['model']}, dense and at {100 * results['macs']:.0f} % of its block MACs ({results['tokens']:,} "
        f"calibration tokens): latency as a ratio to the dense model in torch within one run of {results['repeats']} "
        f"rounds, {threads}, batch × tokens (median, quartiles); embeddings of {results['texts']:,} held-out texts; "
        f"float32 files differ from torch by at most {results['tolerance']:g} of the largest output, or are refused"
    )
    return f"{said}:\n\n{markdown(header, rows)}"


def _ratio(row: dict[str, Any]) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f} – {row['high']:.2f})"
