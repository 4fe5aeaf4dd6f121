"""Tables of the lab's experiments, with the numbers others have published beside ours."""

from __future__ import annotations

from typing import Any

from slimformer.lab.table import cells
from tables import NothingToRender, markdown

Results = dict[str, Any]


def lab(results: Results, report: str | None) -> str:
    """One data set of an experiment (`lab-minimal-variants/mnist`), or all of it."""
    if results["name"] == "resume":
        return resumed(results)
    rows = [row for row in results["rows"] if report in (None, row["labels"]["dataset"])]
    if not rows:
        raise NothingToRender(f"{results['name']} has no data set {report!r}")
    if report:
        rows = [{**row, "row": row["row"].removeprefix(f"{report}, ")} for row in rows]
    header, lines = cells(rows)
    first = rows[0]["parameters"]
    place = header.index("parameters") + 1
    header.insert(place, "of the first row")
    for row, line in zip(rows, lines, strict=True):
        line.insert(place, f"{100 * row['parameters'] / first:.1f} %")
    return f"{_caption(results, report)}\n\n{markdown(header, lines)}"


def _caption(results: Results, report: str | None) -> str:
    names = [report] if report else list(results["data"])
    parts = []
    for name in names:
        sizes = results["data"][name]
        epochs = results["epochs"][name]
        long = f"{epochs:g} epochs" if epochs else f"{results['rows'][0]['steps']:,} steps"
        parts.append(
            f"{name} ({sizes['train']:,} examples to train on, {sizes['validation']:,} to validate on, {long})"
        )
    rate = f"batches of {results['batch_size']}, rate {results['optimiser']['lr']:g}"
    beside = f" Published: {results['published_source']}." if results["published_source"] else ""
    return f"{'; '.join(parts)}; {rate}; mean ± standard deviation over seeds.{beside}"


def resumed(results: Results) -> str:
    """What was killed, and whether it made a difference."""
    kills = "; ".join(f"{at['finished']} ended, {at['under_way']} under way" for at in results["kills"])
    said = {True: "the same", False: "NOT the same"}
    text = (
        f"A runner with {len(results['runs'])} runs on two workers, killed {len(results['kills'])} times with SIGKILL "
        f"(runs then: {kills}) and started again, beside one left in peace: {said[results['same_table']]} table, "
        f"{said[results['same_weights']]} bits in all {results['tensors']} tensors of its models."
    )
    header, lines = cells(results["rows"])
    return f"{text}\n\n{markdown(header, lines)}"
