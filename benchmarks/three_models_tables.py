"""What a cut buys for three models, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

RATES = {"forward": "tokens/s", "prefill": "tokens/s of a prompt", "decode": "new tokens/s"}


def three_models(results: dict[str, Any], part: str | None) -> str:
    """Dense and cut, one line each."""
    if part is not None:
        raise NothingToRender(f"three_models results have no part {part!r}")
    lines = []
    for row in results["rows"]:
        for side, name in (("dense", row["model"]), ("small", f"**at {row['macs']:.0%} of its block MACs**")):
            speed = ", ".join(
                f"{phase[side]:,.0f} {RATES[what]}" + (f" (× {1 / phase['ratio']:.2f})" if side == "small" else "")
                for what, phase in row["phases"].items()
            )
            value = row["quality"][side]
            quality = f"{value:.1f}" if value > 2 else f"{value:.3f}"
            lines.append([name, f"{row['bytes'][side] / 1e6:.0f}", speed, f"{row['metric']} {quality}"])
    return markdown(["model", "MB", f"{results['threads']} thread(s)", "on text it was not fitted on"], lines)
