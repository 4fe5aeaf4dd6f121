"""What the records of the built-in text become: the table of docs/calibration-data.md, and NOTICE."""

import re
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/calibration-data.md"
MARKED = re.compile(r"(<!-- builtin -->\n).*?(<!-- /builtin -->)", re.DOTALL)
LICENCES = Path(__file__).with_name("builtin_licences.txt")


def write_table(records: list[dict[str, Any]]) -> None:
    lines = ["| kind | documents | characters | from (package version: what, licence) |", "|---|---|---|---|"]
    for kind, group in groupby(records, key=lambda entry: entry["kind"]):
        entries = list(group)
        total = sum(entry["characters"] for entry in entries)
        documents = sum(entry["documents"] for entry in entries)
        said = "; ".join(
            f"{entry['package']} {entry['version']}: {entry['taken']}, {entry['licence'].removeprefix('LicenseRef-')},"
            f" {entry['characters'] / total:.0%}"
            for entry in entries
        )
        lines.append(f"| `{kind}` | {documents:,} | {total:,} | {said} |")
    page = PAGE.read_text("utf-8")
    table = "\n".join(lines) + "\n"
    PAGE.write_text(MARKED.sub(lambda match: match[1] + table + match[2], page), encoding="utf-8")


def write_notice(records: list[dict[str, Any]]) -> None:
    lines = [
        "slimformer",
        "",
        "src/slimformer/calibrate/builtin/texts.jsonl.xz holds excerpts of the works below, as data. Each stays under",
        "its own licence; the licence of the package does not replace it. The excerpts were changed: markup, notes,",
        "tables and repetitions were taken out, lines joined, passages chosen. sources.json in the same folder says",
        "which rows are whose.",
        "",
    ]
    works = dict.fromkeys((entry["package"], entry["version"], entry["by"], entry["licence"]) for entry in records)
    lines += [
        f"* {package} {version}: {by}; {licence.removeprefix('LicenseRef-')}" for package, version, by, licence in works
    ]
    text = "\n".join(lines) + "\n\n" + LICENCES.read_text("utf-8")
    (ROOT / "NOTICE").write_text(text, encoding="utf-8")
