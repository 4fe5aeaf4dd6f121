"""Tables about spoilt files and killed runs."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown


def hardening(results: dict[str, Any], part: str | None) -> str:
    """`fuzz`: what became of spoilt files. `kills`: what was there after a run was killed."""
    found = results.get(part or "")
    if found is None:
        raise NothingToRender(f"hardening.json has no part {part!r}")
    return fuzz(found) if part == "fuzz" else kills(found)


def fuzz(found: dict[str, Any]) -> str:
    rows = [
        [f"`{name}`", f"{sum(seen.values()):,}", f"{seen.get('read', 0):,}", f"{seen.get('refused', 0):,}"]
        for name, seen in found["files"].items()
    ]
    said = f"{found['examples']:,} spoilt files, {len(found['tracebacks'])} tracebacks"
    return f"{said}:\n\n{markdown(['file', 'spoilt', 'read all the same', 'refused in one line'], rows)}"


def kills(found: dict[str, Any]) -> str:
    rows = [
        [
            f"`{name}`", str(job["kills"]), f"{job['seconds']:.1f} s", str(job["over_a_result"]), str(job["bad"]),
            "no" if job["next_run"] or job["left"] else "yes",
        ]
        for name, job in found["jobs"].items()
    ]  # fmt: skip
    heads = ["command", "kills", "takes", "over something there", "broken folders", "next run whole, nothing left over"]
    return f"{found['kills']} kills, {found['bad']} broken folders:\n\n{markdown(heads, rows)}"
