"""Table of the speed of training minimal transformers."""

from __future__ import annotations

from typing import Any

from tables import markdown

HEADER = ["qk / vo", "heads", "MLP", "parameters", "block MACs per token", "time of a step (interval)"]


def minimal_speed(results: dict[str, Any], _report: str | None) -> str:
    """Every variant against torch's own layers."""
    rows = [
        [
            _name(row), str(row["heads"]), str(row["mlp_ratio"]) if row["mlp_ratio"] else "none",
            f"{row['params']:,}", f"{row['block_macs']:,}",
            f"{row['time']:.2f}" + ("" if row["qk"] is None else f" ({row['low']:.2f} … {row['high']:.2f})"),
        ]
        for row in results["rows"]
    ]  # fmt: skip
    said = (
        f"A step of training (forward, backward, Adam), {results['blocks']} blocks of width {results['width']}, "
        f"{results['positions']} positions, batches of {results['batch']}, {results['machine']['threads']} thread: "
        f"time relative to the same model of `torch.nn.TransformerEncoderLayer` with as many heads, medians of "
        f"{results['repeats']} rounds in which all took turns"
    )
    return f"{said}:\n\n{markdown(HEADER, rows)}"


def _name(row: dict[str, Any]) -> str:
    if row["qk"] is None:
        return "torch's layers"
    return f"{row['qk']} / {row['vo']}" + (", shaped, no path around" if row["shaped"] else "")
