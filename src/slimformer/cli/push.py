"""`slimformer push`: a compressed model on the hub, with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli import options as opt
from slimformer.cli.output import emit, show_notes
from slimformer.cli.terminal import showing_progress


@opt.grouped
def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a folder `compress`, `cut` or `apply` wrote")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="where it goes on the hub")],
    private: Annotated[bool, typer.Option("--private", help="for you and your organisation only")] = False,
    base_model: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME", help="what it was made from", show_default="as the report says"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent; nothing is")] = False,
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Put a compressed model on the hub with its card: what it was made from, tags, metrics. One commit, or none.

    The token is that of `hf auth login` or of HF_TOKEN.
    """
    from slimformer.verbs.share import push as send_folder

    with showing_progress(hidden=shown.hidden) as progress:
        content = send_folder(
            folder, repository, private=private, base_model=base_model, dry_run=dry_run, progress=progress
        )
    show_notes(content["notes"], hidden=shown.hidden)
    emit(content, shown, lambda: _show_parcel(content))


def _show_parcel(content: dict[str, Any]) -> None:
    for file in content["files"]:
        typer.echo(f"{file['bytes']:>14,}  {file['path']}")
    visibility = "private" if content["private"] else "public"
    if content["dry_run"]:
        typer.echo(f"\nwould go to {content['repository']} ({visibility}); nothing was sent")
    else:
        typer.echo(f"\nsent to {content['url']} ({visibility})")
