"""Tables about spoilt files and killed runs."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

REFUSED = {True: "yes", False: "no", None: "not tried"}


def hardening(results: dict[str, Any], part: str | None) -> str:
    """`fuzz`: what became of spoilt files. `kills`: what was there after a run was killed."""
    found = results.get(part or "")
    if found is None:
        raise NothingToRender(f"hardening.json has no part {part!r}")
    return fuzz(found) if part == "fuzz" else kills(found)


def fuzz(found: dict[str, Any]) -> str:
    columns = ("spoilt", "equal", "refused", "misread", "traceback", "slow")
    rows = [[f"`{name}`", *(f"{each[column]:,}" for column in columns)] for name, each in found["files"].items()]
    rows.append(["all", *(f"{found[column]:,}" for column in columns)])
    heads = ["file", "spoilt", "read as what it says", "refused in one line", "misread", "tracebacks", "over 10 s"]
    return markdown(heads, rows)


def kills(found: dict[str, Any]) -> str:
    rows = [
        [
            f"`{name}`", str(job["kills"]), f"{job['seconds']:.1f} s", str(job["over_a_result"]), str(job["bad"]),
            "no" if job["next_run"] or job["left"] else "yes", REFUSED[job.get("refused")],
        ]
        for name, job in found["jobs"].items()
    ]  # fmt: skip
    heads = [
        "command", "kills", "takes", "over a result", "broken, lost or changed", "next run whole, nothing left over",
        "files of others refused",
    ]  # fmt: skip
    said = f"{found['kills']} kills of {len(rows)} commands, {found['bad']} with something broken, lost or changed"
    return f"{said}:\n\n{markdown(heads, rows)}"
