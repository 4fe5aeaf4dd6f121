"""Tables about models larger than memory, and about more than one process."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown


def streaming(results: dict[str, Any], _report: str | None) -> str:
    """What was measured of memory and of time, each with its target; parts that were not run are left out."""
    rows = []
    if found := results.get("large"):
        what = f"{found['params'] / 1e9:.2f} billion parameters ({found['bytes'] / 1e9:.1f} GB) to "
        what += f"{100 * found['macs']:.0f} % of the MACs: peak anonymous memory"
        rows.append([what, f"{found['peak'] / 1e9:.2f} GB", f"≤ {found['allowed'] / 1e9:g} GB"])
        rows.append(["the same: estimated before", f"{found['estimate']['peak'] / 1e9:.2f} GB", "at least the peak"])
        rate = 1e9 * found["cpu"] / found["params"]
        rows.append(["the same: CPU seconds for every billion parameters", f"{rate:,.0f}", ""])
    for row in results.get("time", {}).get("rows", []):
        how = "with correction" if row["refine"] else "without correction"
        what = f"time over that in memory, {results['time']['params'] / 1e6:.1f} million parameters, {how}"
        rows.append([what, f"{row['ratio']:.2f}", f"≤ {results['time']['target']:g}"])
    if not rows:
        raise NothingToRender("streaming.json has no part that was run")
    return f"Random weights and tokens, `uniform`:\n\n{markdown(['', 'measured', 'target'], rows)}"


def distributed(results: dict[str, Any], _report: str | None) -> str:
    """Two processes against one: agreement and time."""
    rows = [
        ["largest relative difference of a Gram matrix", f"{results['difference']:.1e}", "≤ 1e-06"],
        ["the same plan", "yes" if results["same_plan"] else "no", "yes"],
        ["wall time of two processes over that of one", f"{results['ratio']:.2f}", ""],
    ]
    cores, load = results["machine"]["cores"], results["machine"]["load"]
    what = (
        f"{results['model']}, {results['tokens']:,} tokens, one thread for each process, {cores} cores with a load of "
        f"{load:.0f} from other work; starting Python and opening the model is part of both times"
    )
    return f"{what}:\n\n{markdown(['', 'measured', 'target'], rows)}"
