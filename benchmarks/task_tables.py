"""Tables of tasks scored as in the papers, before and after, at every budget."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

TITLES = {"sst2": "SST-2", "squad": "XQuAD, in the form of SQuAD 1.1", "stsb": "STS-B", "mrpc": "MRPC"}


def tasks(results: dict[str, Any], report: str | None) -> str:
    """Scores before and after at every budget, a table for each task; `report` is a subject of the benchmark."""
    subjects = results["subjects"]
    if report is not None and report not in subjects:
        raise NothingToRender(f"there is no subject {report!r}; choose from {', '.join(subjects)}")
    parts = []
    for name, subject in subjects.items():
        for task in subject["cells"][0]["tasks"] if report in (None, name) else ():
            rows = [row for cell in subject["cells"] for row in _task_rows(cell, task)]
            first = subject["cells"][0]["tasks"][task]
            about = (
                f"{TITLES[task]}: {first['examples']:,} held-out {first['unit']}, recipe "
                f"`{results['settings']['recipe']}`, {results['settings']['tokens']:,} calibration tokens; in brackets "
                "95 % intervals, p of the paired randomisation test"
            )
            header = ["kept MACs", "score", "dense", "small", "small − dense", "p", "recovery"]
            parts.append(f"{about}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _task_rows(cell: dict[str, Any], task: str) -> list[list[str]]:
    return [
        [
            f"{100 * cell['budget']:g} %", m["name"], f"{m['dense']:.1f}",
            f"{m['small']:.1f} [{m['small_low']:.1f}, {m['small_high']:.1f}]",
            f"{m['difference']:+.1f} [{m['low']:+.1f}, {m['high']:+.1f}]", f"{m['p']:.3f}", _recovery(m["recovery"]),
        ]
        for m in cell["tasks"][task]["metrics"]
    ]  # fmt: skip


def _recovery(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} %"
