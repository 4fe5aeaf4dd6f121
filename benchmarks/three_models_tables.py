"""What a cut buys for three models, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

NAMES = {
    "encoder": "all-MiniLM-L6-v2", "classifier": "the same, with a head solved on SST-2", "language": "SmolLM2-135M",
}  # fmt: skip


def three_models(results: dict[str, Any], part: str | None) -> str:
    """Dense and cut, one line each."""
    if part is not None:
        raise NothingToRender(f"three_models results have no part {part!r}")
    lines = []
    for row in results["rows"]:
        for side, name in (("dense", NAMES[row["kind"]]), ("small", f"**at {row['macs']:.0%} of its block MACs**")):
            value = row["quality"][side]
            quality = f"{row['metric']} {value:.1f}" if value > 2 else f"{row['metric']} {value:.3f}"
            lines.append([name, f"{row['bytes'][side] / 1e6:.0f}", _speed(row, side), quality])
    one = "one thread" if results["threads"] == 1 else f"{results['threads']} threads"
    return markdown(["model", "MB", f"speed, one at a time, {one}", "quality"], lines)


def _speed(row: dict[str, Any], side: str) -> str:
    """Texts a second, or tokens read and written a second; of the smaller model how many times that of the dense."""
    said = []
    for name, phase in row["phases"].items():
        rate = phase[side]
        what = {"prefill": f"{rate:,.0f} tokens/s read", "decode": f"{rate:,.0f}/s written"}.get(
            name, f"{rate / row['seq_len']:,.0f} texts/s"
        )
        said.append(what + (f" (× {1 / phase['ratio']:.2f})" if side == "small" else ""))
    return ", ".join(said)
