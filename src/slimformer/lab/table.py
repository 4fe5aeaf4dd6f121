"""The table of an experiment: mean ± standard deviation over seeds, one row for each setting."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slimformer.checkpoint.atomic import replacing
from slimformer.evaluate.intervals import share_interval
from slimformer.lab.settings import Experiment

Facts = dict[str, Any]
MEASURES = ("loss", "accuracy", "perplexity")
PARTS = ("train", "validation")


def summarise(results: Sequence[Facts], experiment: Experiment, rows: Sequence[str]) -> list[Facts]:
    """One entry for each row that has runs, in the order of the file; of runs that diverged only the number."""
    published = experiment.published.rows if experiment.published else {}
    entries = []
    for row in rows:
        runs = [result for result in results if result["row"] == row]
        if runs:
            entries.append({**_entry(row, runs), "published": published.get(row, {})})
    return entries


def _entry(row: str, runs: Sequence[Facts]) -> Facts:
    whole = [result for result in runs if not result["note"]]
    entry: Facts = {
        "row": row, "labels": runs[0]["labels"], "seeds": [result["seed"] for result in whole],
        "diverged": {str(result["seed"]): result["note"] for result in runs if result["note"]},
        "parameters": runs[0]["parameters"], "q": runs[0]["q"], "steps": runs[0]["steps"],
        "seconds": spread([result["cpu_seconds"] for result in runs]),
    }  # fmt: skip
    for part in PARTS if whole else ():
        entry[part] = {
            key: spread([result[part][key] for result in whole]) for key in MEASURES if key in whole[0][part]
        }
    return entry


def spread(values: Sequence[float]) -> Facts:
    """Mean and standard deviation (of the sample: n − 1; none for a single value)."""
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else None}


def data_lines(results: Sequence[Facts]) -> list[str]:
    """One line for each data set: its name, its amounts, and how far an accuracy may be from that of all examples."""
    by_data: dict[str, list[Facts]] = {}
    for each in results:
        by_data.setdefault(_data_of(each), []).append(each)
    return [f"{name}{_doubt(runs)}" for name, runs in by_data.items()]


def _data_of(run: Facts) -> str:
    settings, sizes = run["settings"], run["data"]
    source = settings["data"]["source"]
    name = settings["dataset"] if settings["dataset"] == source else f"{settings['dataset']} ({source})"
    unit = "examples" if settings["task"].endswith("classes") else "sequences"
    seen = min(settings["train_evaluation"], sizes["train"])
    return (
        f"measured on {name}: {sizes['validation']:,} {unit} held out for validation; train columns on {seen:,} of the "
        f"{sizes['train']:,} trained on; ± is the deviation over seeds"
    )


def _doubt(runs: Sequence[Facts]) -> str:
    """Half of the widest 95 % interval that a run's accuracy has over examples; tokens of a text are no examples."""
    whole = [run for run in runs if not run["note"] and run["settings"]["task"].endswith("classes")]
    if not whole or (n := whole[0]["data"]["validation"]) < 2:
        return ""
    halves = []
    for run in whole:
        right = round(run["validation"]["accuracy"] * n)
        interval = share_interval([1.0] * right + [0.0] * (n - right))
        halves.append((interval.high - interval.low) / 2)
    return f"; over examples a run's validation accuracy has a 95 % interval of up to ± {100 * max(halves):.2g} points"


def cells(entries: Sequence[Facts]) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text."""
    measures = [
        (part, key) for part in PARTS for key in MEASURES if any(key in entry.get(part, {}) for entry in entries)
    ]
    if entries and not measures:  # every run diverged
        measures = [("validation", "loss")]
    published = list(dict.fromkeys(key for entry in entries for key in entry["published"]))
    header = ["", "seeds", "parameters", "Q", *(f"{part} {key}" for part, key in measures), "CPU s"]
    lines = []
    for entry in entries:
        line = [entry["row"], str(len(entry["seeds"])), f"{entry['parameters']:,}", f"{entry['q']:.2f}"]
        line += [_measured(entry, part, key) for part, key in measures]
        line += [shown(entry["seconds"], 0), *(_plain(entry["published"].get(key)) for key in published)]
        lines.append(line)
    return [*header, *(f"published {key}" for key in published)], lines


def _measured(entry: Facts, part: str, key: str) -> str:
    if part not in entry:
        return "diverged"
    score = entry[part].get(key)
    percent = key == "accuracy"
    text = "" if score is None else shown(score, 2 if percent or key == "perplexity" else 4, 100 if percent else 1)
    lost = len(entry["diverged"])
    return f"{text} ({lost} diverged)" if lost and key == "loss" and part == "validation" else text


def shown(score: Mapping[str, float | None], digits: int, scale: float = 1) -> str:
    """`1.23 ± 0.04`."""
    mean, std = score["mean"], score["std"]
    assert mean is not None
    return f"{scale * mean:.{digits}f}" + (f" ± {scale * std:.{digits}f}" if std is not None else "")


def _plain(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:g}"


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table, numbers to the right."""
    rows = [[cell.replace("|", "\\|") for cell in line] for line in (header, *lines)]
    every = [rows[0], ["---", *("---:" for _ in header[1:])], *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in every) + "\n"


def write_tables(folder: Path, experiment: Experiment, entries: Sequence[Facts], data: Sequence[str]) -> list[Path]:
    """The table as Markdown below its data, as CSV with plain numbers, and as JSON."""
    header, lines = cells(entries)
    above = "".join(f"{line}\n\n" for line in data)
    title = f"# {experiment.name}\n\n{experiment.summary}\n\n" if experiment.summary else f"# {experiment.name}\n\n"
    source = f"\nPublished: {experiment.published.source}\n" if experiment.published else ""
    facts = {"slimformer_lab_table": 1, "name": experiment.name}
    texts = {
        "table.md": f"{title}{above}{markdown(header, lines)}{source}",
        "table.csv": _csv(entries),
        "table.json": json.dumps({**facts, "data": list(data), "rows": list(entries)}, indent=1),
    }
    for name, text in texts.items():
        with replacing(folder / name) as file:
            file.write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def _csv(entries: Sequence[Facts]) -> str:
    flat = [_flat(entry) for entry in entries]
    fields = list(dict.fromkeys(key for row in flat for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _flat(entry: Facts) -> Facts:
    flat: Facts = {key: entry[key] for key in ("row", "parameters", "q", "steps")}
    flat |= {"seeds": len(entry["seeds"]), "diverged": len(entry["diverged"])}
    for part in PARTS:
        for key, score in entry.get(part, {}).items():
            flat |= {f"{part}_{key}_{kind}": value for kind, value in score.items()}
    flat |= {f"seconds_{kind}": value for kind, value in entry["seconds"].items()}
    return {**flat, **{f"published_{key}": value for key, value in entry["published"].items()}}
