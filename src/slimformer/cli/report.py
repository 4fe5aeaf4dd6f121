"""`slimformer report`: a report as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slimformer.cli import options as opt
from slimformer.cli.output import emit


@opt.grouped
def report(
    place: Annotated[Path, typer.Argument(metavar="DIR", help="a folder `compress` wrote, or a report.json")],
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="the page to write", show_default="next to the report")
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="open it in the browser")] = False,
    seed: opt.NoSeed = 0,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Make one self-contained HTML page of a report: numbers, front, budget slider, heat maps, texts. No network."""
    from slimformer.checkpoint.atomic import require_free_file, revising, writing_file
    from slimformer.evaluate.report_file import read_report
    from slimformer.files.content import FileKind
    from slimformer.report.page import html_page, is_page, is_page_as_made

    content = read_report(place)
    usual = place / "report.html" if place.is_dir() else place.with_suffix(".html")
    target = usual if out_file is None else out_file
    folder = (place if place.is_dir() else place.parent).resolve().name or "smaller"
    page = FileKind("a page", is_page)
    anew = force or is_page_as_made(target)  # a page of ours can be made anew until somebody changes it
    require_free_file(target, anew, page)
    own = target.resolve() == usual.resolve()
    writer = revising(target.parent, target.name, anew=force) if own else writing_file(target, force=anew, kind=page)
    with writer as file:
        file.write_text(html_page(content, folder=folder), encoding="utf-8")
    if open_page:
        import webbrowser

        webbrowser.open(target.resolve().as_uri())
    emit({"page": str(target)}, shown, lambda: typer.echo(f"the page is {target}; open it in any browser"))
