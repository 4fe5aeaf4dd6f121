"""What commands print: one JSON object, tables, notes, where a result is and how it is opened."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from slimformer.cli.options import Shown
from slimformer.errors import ReportNotFound, SlimformerError
from slimformer.files.reading import read_text

if TYPE_CHECKING:
    from rich.table import Table

out = Console()
err = Console(stderr=True)


def emit(content: Any, shown: Shown, tables: Callable[[], None]) -> None:
    """One JSON object, or tables, or nothing."""
    from slimformer.checkpoint.lines import strict

    if shown.as_json:
        typer.echo(json.dumps(strict(content), allow_nan=False))
    elif not shown.quiet:
        tables()


def show_notes(notes: Iterable[str], *, hidden: bool) -> None:
    """What one should know, on standard error."""
    for note in notes if not hidden else ():
        err.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)


def save_result(result: Any, folder: Path, force: bool, progress: Any, *, verify: bool = True) -> Any:
    """The result, once it is written and verified in a fresh process."""
    progress("save and verify", 0, 1)
    result.save(folder, force=force, verify=verify)
    progress("save and verify", 1, 1)
    return result


def saved_line(folder: Path, report: Any) -> None:
    """Where the result is, and the line that loads it."""
    from slimformer.models.registered import is_own

    place = str(folder)
    known = "import slimformer; " if is_own(report.model_type) or report.long_context else ""
    plain = f"{known}from transformers import {report.load_class} as M; model = M.from_pretrained({place!r})"
    ragged = f"import slimformer; model = slimformer.load({place!r})"
    typer.echo(f"\nsaved in {place}; load it with:\n  {python_line(plain if report.format == 'plain' else ragged)}")


def python_line(code: str) -> str:
    """A line that runs `code`, to be copied into a shell."""
    plain = not re.search(r'["$`\\!]', code)
    return f'python -c "{code}"' if plain else f"python -c {shlex.quote(code)}"


def show_result(report: Any, folder: Path, shown: Shown) -> None:
    """The report of a model that was made, and where it is."""
    from slimformer.report.console import show

    def tables() -> None:
        show(report, out)
        saved_line(folder, report)

    emit(report.to_dict(), shown, tables)


def show_data(data: Any) -> None:
    """Above a table of what is planned: the text that statistics are of, and that nothing was measured."""
    from rich.text import Text

    from slimformer.evaluate.assessment import known_data
    from slimformer.report.names import measured_line

    out.print(Text(measured_line(known_data(data), [])))


def show_cut(provenance: Any, loaded: Any, result: Any, folder: Path) -> None:
    """What was cut from statistics: their data, what it costs and is expected to do, and where the result is."""
    report = result.report
    show_plan(provenance, loaded, result.plan, (report.dense, report.small))
    typer.echo(f"measure it with `slimformer eval {folder}`")
    show_notes(result.plan.notes, hidden=False)
    saved_line(folder, report)


def show_plan(provenance: Any, loaded: Any, plan: Any, sizes: tuple[Any, Any]) -> None:
    """What every block keeps, what both models cost, and the predicted harm; above it the data of the statistics."""
    from slimformer.models import describe
    from slimformer.models.architecture import is_bare
    from slimformer.report.console import harm_line, kept_table, plan_table, sizes_table

    show_data(provenance)
    out.print(kept_table(plan_table(describe(loaded.model), plan)))
    out.print(sizes_table(f"{loaded.name} · {plan.recipe} · {plan.format}", *sizes, plan.seq_len))
    typer.echo(kept_line(plan))
    typer.echo(harm_line(plan, probabilities=not is_bare(loaded.model)))


def kept_line(plan: Any) -> str:
    """What a plan keeps of the blocks."""
    return f"kept: {plan.macs:.1%} of the block MACs, {plan.params:.1%} of the blocks' parameters"


def front_table(rows: list[dict[str, Any]]) -> Table:
    """One line for each budget."""
    from slimformer.report.tables import number_table

    names = [metric["name"] for metric in rows[0].get("metrics", [])] if rows else []
    table = number_table("", "budget", "MACs", "parameters", "predicted harm", *names)
    for row in rows:
        predicted = "" if row["predicted_kl"] is None else f"{row['predicted_kl']:.4g}"
        measured = [_with_interval(metric) for metric in row.get("metrics", [])]
        table.add_row(f"{row['budget']:g}", f"{row['macs']:.3f}", f"{row['params']:.3f}", predicted, *measured)
    return table


def _with_interval(metric: dict[str, Any]) -> str:
    """A value above the interval of its difference to the dense model, where there is one."""
    value = f"{metric['small']:.4g}"
    return value if metric["low"] is None else f"{value}\n{metric['low']:+.2g}\n{metric['high']:+.2g}"


def recorded_report(folder: str) -> dict[str, Any]:
    """The report of a folder; without one there is nothing to write into."""
    from slimformer.evaluate.report_file import read_report

    file = Path(folder) / "report.json"
    try:
        return read_report(file)
    except ReportNotFound as error:
        raise SlimformerError(f"there is no report to record in: {error}, or leave out --record") from None


def record_in(folder: str, changed: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the report of a folder, and its page and card unless somebody has changed them."""
    from slimformer.checkpoint.atomic import revising
    from slimformer.checkpoint.lines import json_text, strict
    from slimformer.report.page import html_page, is_page_as_made

    place, known = Path(folder), recorded_report(folder)
    card, report = _card_as_made(place, known), strict(changed(known))
    with revising(place, "report.json") as file:
        file.write_text(json_text(report), encoding="utf-8")
    if is_page_as_made(place / "report.html"):
        with revising(place, "report.html") as file:
            file.write_text(html_page(report, folder=place.resolve().name), encoding="utf-8")
    if card:
        with revising(place, "README.md") as file:
            file.write_text(_card(report, place), encoding="utf-8")


def _card(report: dict[str, Any], place: Path) -> str:
    from slimformer.evaluate.report import Footprint, Report
    from slimformer.report.card import model_card

    known = {name: report[name] for name in Report.__dataclass_fields__ if name in report}
    whole = {**known, **{side: Footprint(**report[side]) for side in ("dense", "small")}}
    return model_card(Report(**whole), folder=place.resolve().name)


def _card_as_made(place: Path, report: dict[str, Any]) -> bool:
    """Is the card in a folder the one its report gives?"""
    try:
        return read_text(place / "README.md") == _card(report, place)
    except (OSError, ValueError):
        return False
