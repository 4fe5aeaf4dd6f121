"""Vocabulary, widths and bits of a sentence encoder, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

HEAD = ["", "MB", "STS-B", "difference, 95 %", "tokens per sentence"]


def ends(results: dict[str, Any], part: str | None) -> str:
    """All ways, the dense model first."""
    if part is not None:
        raise NothingToRender(f"ends.json has no part {part!r}")
    rows = [[name, *_row(way)] for name, way in results["ways"].items()]
    pairs, tokens = results["pairs"], results["calibration_tokens"]
    return f"STS-B dev, {pairs:,} pairs; {tokens:,} tokens of built-in text:\n\n{markdown(HEAD, rows)}"


def _row(way: dict[str, Any]) -> list[str]:
    low, high = way.get("difference", (None, None))
    gap = "" if low is None else f"{low:+.4f} … {high:+.4f}"
    length = f"{way['tokens']:.1f}" if "tokens" in way else ""
    return [f"{way['mb']:.1f}", f"**{way['spearman']:.4f}**", gap, length]
