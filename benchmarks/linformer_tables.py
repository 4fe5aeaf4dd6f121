"""Tables of `linformer_speed.py` and `linformer_batch.py`, from a result file to Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tables import NothingToRender, markdown

Cells = dict[int, dict[str, dict[str, Any]]]
MOST = 1.1  # exponent of time in n that is still called linear


def linformer_speed(results: dict[str, Any], part: str | None) -> str:
    """One part of the benchmark: time, memory, training, kinds, peers or exponents."""
    if part not in PARTS:
        raise NothingToRender(f"there is no part {part!r}; choose from {', '.join(PARTS)}")
    return PARTS[part](results)


def _cells(results: dict[str, Any], mode: str) -> Cells:
    return {int(n): {row["rival"]: row for row in rows} for n, rows in results["cells"][mode].items()}


def _said(results: dict[str, Any], what: str) -> str:
    layer, machine = results["layer"], results["machine"]
    return (
        f"{what}; one attention layer of {layer['heads']} heads, width {layer['width']}, one sample, "
        f"{machine['threads']} thread(s), ratios within one run"
    )


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}×"


def _three(results: dict[str, Any], ratio: Callable[[dict[str, Any], dict[str, Any]], float], paper: str) -> str:
    """Length by k: against sdpa / against attention written out / the paper's."""
    rows = []
    for n, found in _cells(results, "forward").items():
        row = [f"{n:,}"]
        for i, k in enumerate(results["ks"]):
            if f"k={k}" not in found:
                row.append("–")
                continue
            own, naive = found[f"k={k}"], found.get("naive")
            theirs = results["paper"][paper][str(n)]
            values = [ratio(found["sdpa"], own), None if naive is None else ratio(naive, own)]
            row.append(" / ".join(_times(v) for v in [*values, theirs[i] if i < len(theirs) else None]))
        rows.append(row)
    return markdown(["n", *(f"k = {k}" for k in results["ks"])], rows)


def _time(results: dict[str, Any]) -> str:
    def faster(other: dict[str, Any], own: dict[str, Any]) -> float:
        return own["speedup"] / other["speedup"]

    what = "Forward pass, times faster than `sdpa` / than attention written out / in the paper (V100, written out)"
    return f"{_said(results, what)}\n\n{_three(results, faster, 'time')}"


def _memory(results: dict[str, Any]) -> str:
    def smaller(other: dict[str, Any], own: dict[str, Any]) -> float:
        return other["peak_bytes"] / max(1, own["peak_bytes"])

    what = "Forward pass, peak memory of `sdpa` / of attention written out over ours / in the paper"
    cells, heads = _cells(results, "forward"), results["layer"]["heads"]
    beyond = [n for n in cells if n > results["naive_up_to"]["forward"]]
    sizes = [[f"{n:,}", _bytes(c["sdpa"]["peak_bytes"]), _bytes(c["k=128"]["peak_bytes"]),
              _bytes(c["naive"]["peak_bytes"]) if "naive" in c else f"({_bytes(heads * n * n * 4)} of scores)"]
             for n, c in cells.items()]  # fmt: skip
    table = markdown(["n", "sdpa", "k = 128", "written out"], sizes)
    note = f"In bytes; written-out attention beyond {min(beyond) // 2:,} was not run, the size is computed"
    return f"{_said(results, what)}\n\n{_three(results, smaller, 'memory')}\n\n{note}:\n\n{table}"


KINDS = ("k=128", "stochastic", "mean", "max", "conv", "cluster", "causal")


def _kinds(results: dict[str, Any]) -> str:
    rows = []
    for n, found in _cells(results, "forward").items():
        dense = found["sdpa"]["peak_bytes"]
        shown = (found[name] for name in KINDS)
        rows.append([f"{n:,}", *(f"{_times(o['speedup'])} ({_times(dense / max(1, o['peak_bytes']))})" for o in shown)])
    header = ["n", "`linear`", "`linear`, row-stochastic", "`mean`", "`max`", "`conv`", "`cluster`", "`linear`, causal"]
    what = "Forward pass at k = 128, times faster than `sdpa` without a causal mask (peak memory of `sdpa` over it)"
    return f"{_said(results, what)}\n\n{markdown(header, rows)}"


def _training(results: dict[str, Any]) -> str:
    rows = []
    for n, found in _cells(results, "training").items():
        dense = found["sdpa"]
        row = [f"{n:,}", f"{_ms(dense)}, {_bytes(dense['peak_bytes'])}"]
        for name in ("naive", *(f"k={k}" for k in results["ks"])):
            other = found.get(name)
            row.append(
                "–" if other is None
                else f"{_times(other['speedup'])} ({_times(dense['peak_bytes'] / max(1, other['peak_bytes']))})"
            )  # fmt: skip
        rows.append(row)
    header = ["n", "sdpa", "written out", *(f"k = {k}" for k in results["ks"])]
    what = "Forward and backward pass, times faster than `sdpa` (peak memory of `sdpa` over it)"
    return f"{_said(results, what)}\n\n{markdown(header, rows)}"


def _peers(results: dict[str, Any]) -> str:
    names = sorted({r.partition(" k=")[0] for c in _cells(results, "forward").values() for r in c if " k=" in r})
    rows = []
    for mode in ("forward", "training"):
        for n, found in _cells(results, mode).items():
            for k in (128, 512):
                own = found.get(f"k={k}")
                if own is None or n < 1024:
                    continue
                row = [f"{mode}, n = {n:,}, k = {k}", f"{_ms(own)}, {_bytes(own['peak_bytes'])}"]
                row += [_over(found.get(f"{name} k={k}"), own) for name in names]
                rows.append(row)
    header = ["", "ours, E = F", *("ours, E ≠ F" if name == "headwise" else f"`{name}`" for name in names)]
    return f"{_said(results, 'Time (and peak memory) over that of our layer')}\n\n{markdown(header, rows)}"


def _over(peer: dict[str, Any] | None, own: dict[str, Any]) -> str:
    if peer is None:
        return "–"
    return f"{_times(own['speedup'] / peer['speedup'])} ({_times(peer['peak_bytes'] / max(1, own['peak_bytes']))})"


def _exponents(results: dict[str, Any]) -> str:
    found = {(row["mode"], row["rival"]): row for row in results["exponents"]}
    rows = []
    for name in dict.fromkeys(rival for _, rival in found):
        row = [f"`{name}`"]
        for mode in ("forward", "training"):
            one = found.get((mode, name))
            row.append("–" if one is None else f"{one['exponent']:.2f} (n ≥ {one['from']:,}, {one['lengths']} lengths)")
        rows.append(row)
    own = [row for row in results["exponents"] if row["rival"].startswith("k=") or row["rival"] == "causal"]
    over = [f"`{row['rival']}` {row['mode']}" for row in own if row["exponent"] > MOST]
    verdict = f"at most {MOST}" if not over else f"above {MOST} for {', '.join(over)}"
    table = markdown(["", "forward", "training"], rows)
    return f"Slope of log time over log n, k fixed; ours with a trained E: {verdict}\n\n{table}"


def linformer_batch(results: dict[str, Any], _part: str | None) -> str:
    """The largest batch that was seen to fit, and the smallest that was seen not to."""
    rows = []
    for row in results["rows"]:
        beyond = "–" if row["over"] is None else f"{row['over']} ({_bytes(row['over_bytes'])})"
        rows.append([f"`{row['rival']}`", f"{row['batch']} ({_bytes(row['peak_bytes'])})", beyond])
    what = f"Largest batch of {results['n']:,} tokens in {_bytes(results['room_bytes'])} besides weights and input"
    return f"{what}, forward and backward pass\n\n{markdown(['', 'fits (peak)', 'does not (peak)'], rows)}"


def _ms(row: dict[str, Any]) -> str:
    value = row["median"] * 1e3
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def _bytes(value: float) -> str:
    return f"{value / 2**30:.3g} GB" if value >= 2**30 else f"{value / 2**20:.3g} MB"


PARTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "time": _time, "memory": _memory, "training": _training, "kinds": _kinds, "peers": _peers,
    "exponents": _exponents,
}  # fmt: skip
