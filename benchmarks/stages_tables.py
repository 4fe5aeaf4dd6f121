"""What recipes cost stage by stage and what the time buys, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

STAGES = ("metric", "calibrate", "profile", "probe", "apply", "refine")


def stages(results: dict[str, Any], model: str | None) -> str:
    """The rows of one model."""
    rows = [row for row in results["rows"].values() if row["model"] == model]
    if not rows:
        raise NothingToRender(f"nothing was measured of {model!r}")
    budgets = [cell["budget"] for cell in rows[0]["cells"]]
    counted = sorted({sum(row["tokens"][split] for split in ("fit", "select")) for row in rows})
    header = ["recipe", "× the bound", *STAGES, *(f"excess at {100 * b:g} %" for b in budgets)]
    cells = [
        [
            f"`{row['recipe']}`",
            f"{row['ratio']:.1f}{_target(results, row['recipe'])}",
            *(f"{row['seconds'].get(stage, 0) / row['bound_seconds']:.1f}" for stage in STAGES),
            *(", ".join(f"{nats:.3f}" for nats in cell["excess"].values()) for cell in row["cells"]),
        ]
        for row in rows
    ]
    other = ", and on other text" if "other" in rows[0]["cells"][0]["excess"] else ""
    what = (
        f"{model}, {', '.join(f'{n:,}' for n in counted)} tokens to fit and choose on, one thread: seconds over the "
        f"bound, and excess nats per token on held-out text of the same kind{other}"
    )
    return f"{what}:\n\n{markdown(header, cells)}"


def _target(results: dict[str, Any], recipe: str) -> str:
    target = results["targets"].get(recipe)
    return f" (target ≤ {target:g})" if target else ""
