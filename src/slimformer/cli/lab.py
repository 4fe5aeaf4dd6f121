"""`slimformer lab`: small models trained from scratch, from a YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from slimformer.cli import options as opt
from slimformer.cli.lab_experiments import lab_fetch, lab_ls, lab_show
from slimformer.cli.lab_speed import lab_speed
from slimformer.cli.output import emit, err, out
from slimformer.cli.terminal import showing_progress
from slimformer.errors import RunFailed
from slimformer.report.track import tracker

lab = typer.Typer(
    name="lab", help="Train small models from scratch, from a YAML file: grids, seeds, tables.", no_args_is_help=True
)
lab.command("ls", epilog="Example: slimformer lab ls")(lab_ls)
lab.command("show", epilog="Example: slimformer lab show minimal-variants > mine.yaml")(lab_show)
lab.command("fetch", epilog="Example: slimformer lab fetch imdb")(lab_fetch)
lab.command("speed", epilog="Example: slimformer lab speed --lengths 512,4096")(lab_speed)


@lab.command("run", epilog="Example: slimformer lab run minimal-variants --only mnist --out results --workers 2")
@opt.grouped
def lab_run(
    file: Annotated[str, typer.Argument(metavar="NAME", help="a name of `lab ls`, or a .yaml file (docs/lab.md)")],
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="folder of the runs", show_default="lab-<name>")
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", metavar="NAME=PATH", help="where a data set lies; may be given again")
    ] = None,
    only: Annotated[str, typer.Option("--only", metavar="TEXT", help="only rows whose name has this in it")] = "",
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="processes to train in, one thread each")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs and the hours, and train nothing")] = False,
    timing: Annotated[bool, typer.Option("--estimate/--no-estimate", help="time a few steps of each row first")] = True,
    resume: Annotated[bool, typer.Option("--resume/--anew", help="resume from what is there, or start again")] = True,
    force: Annotated[bool, typer.Option("--force", help="run again what was run with other settings or data")] = False,
    track: opt.Track = None,
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Train every run of an experiment: what has ended is skipped, what was stopped goes on to the same bits."""
    import tempfile

    from slimformer.lab.data.packages import pointed, require_there
    from slimformer.lab.grid import expand, named
    from slimformer.lab.settings import load_experiment

    record, experiment = tracker(track), pointed(load_experiment(file), data or ())
    runs = expand(experiment, Path(file).resolve().parent)
    chosen = named(runs, only)
    if dry_run or not (out_folder or Path(f"lab-{experiment.name}")).exists():
        require_there(chosen)

    from slimformer.lab.folder import alone, open_folder
    from slimformer.lab.model import require_known
    from slimformer.lab.same_data import other_data, require_same_data

    for run in runs:
        if run.start is None:
            require_known(run.model)
    with showing_progress(hidden=shown.hidden) as progress:
        if dry_run:
            with tempfile.TemporaryDirectory() as place:  # tokenizers of a dry run are thrown away
                return show_estimate(chosen, Path(place), workers, progress, shown)
        folder = open_folder(out_folder or Path(f"lab-{experiment.name}"), chosen, force=force or not resume)
        with alone(folder):
            if resume and not force:
                require_same_data(folder, chosen)
            other = other_data(folder, chosen) if resume and force else {}
            folder.describe(experiment, runs)
            folder.forget([run for run in chosen if not resume or run.name in other or folder.changed([run])])
            waiting = [run for run in chosen if folder.result(run) is None]
            if timing and waiting and not shown.hidden:
                show_estimate(waiting, folder.texts, workers, progress, opt.SHOWN, err)
            failed = train_all(chosen, folder, workers, experiment.checkpoint_every, progress, record, shown.hidden)
    show_table(folder.path, shown)
    if failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise RunFailed(f"{failed[0]}{more}; the other runs are in {folder.path}, the same command tries these again")


@lab.command("table", epilog="Example: slimformer lab table results")
@opt.grouped
def lab_table(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a folder `slimformer lab run` wrote")],
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Make the table and the figures of an experiment again from the runs that have ended."""
    show_table(folder, shown)


def show_estimate(
    runs: Any, texts: Path, workers: int, progress: Any, shown: opt.Shown, console: Console = out
) -> None:
    """Rows with their sizes and seconds, and the hours in all."""
    from dataclasses import asdict

    from slimformer.lab.estimate import estimate, hours

    lines = estimate(runs, texts, progress)
    total = hours(lines, workers)

    def tables() -> None:
        table = Table("", "runs", "parameters", "steps", "ms per step", "minutes per run")
        for line in lines:
            numbers = (f"{line.parameters:,}", f"{line.steps:,}", f"{1000 * line.step_seconds:.1f}")
            table.add_row(escape(line.row), str(line.runs), *numbers, f"{line.seconds / 60:.1f}")
        console.print(table)
        noun = "worker" if workers == 1 else "workers"
        count = sum(line.runs for line in lines)
        console.print(f"{count} runs: about {total:.2f} hours with {workers} {noun}, a core for each")

    emit({"workers": workers, "hours": total, "rows": [asdict(line) for line in lines]}, shown, tables)


def train_all(runs: Any, folder: Any, workers: int, every: float, progress: Any, record: Any, quiet: bool) -> list[str]:
    """Run, record each as it ends, and say at once which went wrong; what failed and has no result."""
    from slimformer.lab.runner import run_all

    failed: list[str] = []

    def ended(run: Any, wrong: str) -> None:
        result = folder.result(run)
        if result is None:
            failed.append(f"{run.name}: {wrong}")
        else:
            record("lab", result)
        note = wrong or (result or {}).get("note")
        if note and not quiet:
            err.print(f"{run.name} stopped: {note}", style="yellow", markup=False, highlight=False)

    for pretrained in (False, True):  # what has to be pretrained is done before anything starts from it
        wave = [run for run in runs if (run.before is not None) == pretrained]
        run_all(wave, folder, workers=workers, every=every, progress=progress, ended=ended)
    return failed


def show_table(place: Path, shown: opt.Shown) -> None:
    """Write tables and figures into the folder of the runs, and print the table."""
    from slimformer.lab.figures import can_draw, draw
    from slimformer.lab.folder import read_folder
    from slimformer.lab.table import cells, data_lines, summarise, write_tables

    experiment, rows, results = read_folder(place)
    entries = summarise(results, experiment, rows)
    data = data_lines(results)
    files = write_tables(place, experiment, entries, data)
    files += draw(place, experiment, results, entries) if can_draw() else []

    def tables() -> None:
        header, lines = cells(entries)
        table = Table(*map(escape, header))
        for line in lines:
            table.add_row(*map(escape, line))
        out.print(Text("\n".join(data)))
        out.print(table)
        names = ", ".join(file.name for file in files)
        out.print(f"{len(results)} runs are in {place}; table and figures: {names}", markup=False)
        if not can_draw():
            err.print("figures need matplotlib; run: pip install 'slimformer[plots]'", markup=False)

    emit({"name": experiment.name, "folder": str(place), "data": data, "rows": entries}, shown, tables)
