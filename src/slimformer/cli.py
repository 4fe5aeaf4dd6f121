"""The shell: parse, call one function, write one file.

Commands are the verbs of the library. Results go to standard output (with --json as one JSON object), progress and
notes to standard error. Bad input: one line, exit code 2.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import typer
from rich.console import Console

from slimformer.cli_front import FRONT, curves_of, emit, loaded_for, saved_line
from slimformer.cli_heads import HEADS
from slimformer.errors import OutputExists, SlimformerError
from slimformer.options import (
    AsJson,
    Columns,
    DataOption,
    Device,
    Dtype,
    EvalTokens,
    Force,
    Format,
    HeadData,
    Latency,
    Macs,
    MaxKl,
    Model,
    NoSeed,
    OutFolder,
    Params,
    Quiet,
    RecipeName,
    Refine,
    Samples,
    Seed,
    SeqLen,
    Source,
    Stats,
    Timing,
    Tokens,
)
from slimformer.shell import (
    budget as budget_from,
)
from slimformer.shell import (
    column_names,
    progress_bars,
    run,
    usable_device,
    usable_precision,
)

app = typer.Typer(
    name="slimformer",
    help="Shrink trained transformers to a compute budget, without retraining. MODEL is a folder, a hub id, or "
    "demo:smollm2 / demo:minilm. Start with: slimformer compress demo:smollm2 --macs 0.8 --out smaller",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
recipes_app = typer.Typer(help="The recipes that come with the package.", no_args_is_help=True)
app.add_typer(recipes_app, name="recipes")

err = Console(stderr=True)
out = Console()


def _version(asked: bool) -> None:
    if asked:
        from slimformer import __version__

        typer.echo(f"slimformer {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself; the commands do the work."""


@app.command(epilog="Example: slimformer inspect demo:minilm")
def inspect(
    model: Model, seq_len: SeqLen = None, seed: NoSeed = 0, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Show what a model is made of and what can be cut: family, blocks, heads, neurons, MACs and parameters."""
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.report.inspection import inspection, show_inspection

    loaded = load_model(model)
    architecture = describe(loaded.model)
    found = inspection(loaded, architecture, sequence_length(loaded.model, architecture, seq_len))
    emit(found, as_json, quiet, lambda: show_inspection(found, out))


@app.command(epilog="Example: slimformer calibrate demo:smollm2 --data builtin --out stats")
def calibrate(
    model: Model,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder to write the statistics to")],
    data: DataOption = "builtin",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """One pass over the data: write the moments of every width, from which any budget can be planned."""
    from slimformer import stages
    from slimformer.checkpoint.atomic import require_free, writing
    from slimformer.probe import keep_probes

    stages.require_apart(out_folder, model, data, *data.split(","))
    require_free(out_folder, force)
    loaded, batches = _read(model, data, columns, tokens, samples, seq_len, seed, device, dtype)
    with progress_bars(err, hidden=quiet or as_json) as progress, writing(out_folder, force=force) as folder:
        statistics = stages.calibrate(loaded, batches, folder, progress=progress)
        keep_probes(loaded.model, statistics, batches.splits["select"], progress=progress)
    found = json.loads((out_folder / "stats.json").read_text())
    emit(found, as_json, quiet, lambda: typer.echo(f"statistics of {found['model']} are in {out_folder}"))


@app.command(epilog="Example: slimformer plan stats --macs 0.7 --out plan.json")
def plan(
    stats: Stats,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    out_file: Annotated[Path, typer.Option("--out", metavar="FILE", help="where to write the plan")] = Path(
        "plan.json"
    ),
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    model: Source = "",
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Decide what every block keeps, so that a fraction of the block MACs, parameters or latency stays. Needs no
    data."""
    from slimformer import stages
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.models import describe
    from slimformer.plan.recipe import load_recipe
    from slimformer.report.console import kept, plan_table
    from slimformer.workbench import priced

    budget, chosen = budget_from(macs, params, latency), load_recipe(recipe)
    statistics = open_statistics(stats)
    _require_plan(out_file)
    require_free_file(out_file, force)
    loaded = loaded_for(statistics, model)
    dense = loaded.model
    with progress_bars(err, hidden=quiet or as_json) as progress:
        curves = curves_of(loaded, statistics, chosen, progress)
        budget = priced(budget, dense, statistics.provenance.seq_len, progress)
        made = stages.make_plan(dense, statistics, curves, budget=budget, recipe=chosen, format=format)
        with writing_file(out_file, force=force) as file:
            file.write_text(made.to_json())
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(dense), made))))


@app.command(epilog="Example: slimformer apply stats plan.json --out smaller")
def apply(
    stats: Stats,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="the plan.json `slimformer plan` wrote")],
    out_folder: OutFolder,
    model: Source = "",
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a plan with the statistics it was made from, and save the smaller model."""
    from slimformer import assess, stages
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free
    from slimformer.models import describe
    from slimformer.plan import Plan
    from slimformer.plan.plan import recounted

    made, statistics = Plan.load(plan_file), open_statistics(stats)
    stages.require_apart(out_folder, stats, plan_file, model or statistics.provenance.model)
    require_free(out_folder, force)
    loaded = loaded_for(statistics, model)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        small = stages.replay(made, loaded.model, statistics, progress=progress)
        made = recounted(made, describe(loaded.model))
        report = assess.describe_result(loaded, small, made, statistics.provenance)
        progress("save and verify", 0, 1)
        stages.save_result(loaded, small, made, report, out_folder, force=force)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))


@app.command(
    epilog="Example: slimformer compress demo:smollm2 --macs 0.8 --out smaller\n\n"
    "A classifier: slimformer compress ./bert --macs 0.6 --data train.tsv --columns sentence --out smaller\n\n"
    "A vision model: slimformer compress ./vit --macs 0.5 --data images --format plain --out smaller"
)
def compress(
    model: Model,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    max_kl: MaxKl = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="folder to write the smaller model to")
    ] = None,
    data: DataOption = "builtin",
    recipe: RecipeName = "balanced",
    format: Format = "ragged",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    refine: Refine = None,
    head_data: HeadData = None,
    timing: Timing = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what would be kept if every block lost the same share; no data")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Shrink MODEL to a fraction of its block MACs and save it: calibrate, plan, apply, evaluate, verify."""
    from slimformer import pipeline, stages
    from slimformer.checkpoint.atomic import require_free
    from slimformer.plan.recipe import load_recipe
    from slimformer.report.console import show

    chosen, asked = load_recipe(recipe), _asked(macs, params, latency, max_kl)
    if dry_run:
        return _dry_run(model, asked, chosen, format, seq_len, as_json, quiet)
    if out_folder is None:
        raise SlimformerError("compress needs a folder to write to; give --out DIR (or --dry-run to write nothing)")
    stages.require_apart(out_folder, model, head_data, data, *data.split(","))
    require_free(out_folder, force)
    place = usable_device(device)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        result = pipeline.compress(
            model, data, **asked, recipe=chosen, format=format, seq_len=seq_len, tokens=tokens, samples=samples,
            columns=column_names(columns), seed=seed, device=place, dtype=usable_precision(dtype, place),
            refine=refine, head_data=head_data, timing=timing, progress=progress,
        )  # fmt: skip
        progress("save and verify", 0, 1)
        result.save(out_folder, force=force)
        progress("save and verify", 1, 1)

    def tables() -> None:
        show(result.report, out)
        saved_line(out_folder, result.report)

    emit(result.report.to_dict(), as_json, quiet, tables)


@app.command("eval", epilog="Example: slimformer eval smaller --against demo:smollm2 --data other-text.txt")
def evaluate(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="the smaller model")],
    against: Annotated[str, typer.Option(metavar="MODEL", help="the dense model it came from")],
    data: DataOption = "builtin",
    columns: Columns = "",
    tokens: EvalTokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    device: Device = "cpu",
    timing: Timing = True,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare a smaller model with the dense one on --data; of data it was calibrated on, only what was held out."""
    from slimformer import assess
    from slimformer.models.load import load_model
    from slimformer.report.console import show

    small = load_model(folder, device=usable_device(device))
    loaded, batches = _read(against, data, columns, tokens, samples, seq_len, seed, device, "float32", "evaluation")
    with progress_bars(err, hidden=quiet or as_json) as progress:
        report = assess.evaluate_pair(loaded, small, batches, timing=timing, progress=progress)
    emit(report.to_dict(), as_json, quiet, lambda: show(report, out))


@recipes_app.command("ls", epilog="Example: slimformer recipes ls")
def recipes_ls(seed: NoSeed = 0, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """List the recipes."""
    from slimformer.plan.recipe import load_recipe, names

    found = {name: load_recipe(name).summary for name in names()}

    def tables() -> None:
        for name, summary in found.items():
            typer.echo(f"{name:10} {summary}")

    emit(found, as_json, quiet, tables)


@recipes_app.command("show", epilog="Example: slimformer recipes show balanced > mine.yaml")
def recipes_show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a recipe's name or path")],
    seed: NoSeed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Print a recipe: copy it, change it, and give its path to --recipe."""
    from slimformer.plan.recipe import load_recipe, text_of

    found = load_recipe(name)
    emit(found.model_dump(), as_json, quiet, lambda: typer.echo(text_of(name), nl=False))


for command, example in {**FRONT, **HEADS}.items():
    app.command(epilog=f"Example: {example}")(command)


def main() -> None:
    """Entry point: facts a user can act on become one line and exit code 2; an interrupt leaves nothing behind."""
    sys.exit(run(app, err))


def _asked(macs: str | None, params: str | None, latency: str | None, max_kl: float | None) -> dict[str, float]:
    """The one budget that was given, by its name."""
    if max_kl is None:
        budget = budget_from(macs, params, latency)
        return {budget.by: budget.fraction}
    if (macs, params, latency) != (None, None, None):
        raise SlimformerError("--max-kl is a budget of its own; give it, or --macs, --params or --latency")
    return {"max_kl": max_kl}


def _read(
    model: str, data: str, columns: str, tokens: int | None, samples: int | None, seq_len: int | None, seed: int,
    device: str, dtype: str, purpose: Any = "calibration",
) -> tuple[Any, Any]:  # fmt: skip
    from slimformer.calibrate.gather import gather
    from slimformer.models import describe
    from slimformer.models.load import load_model

    place = usable_device(device)
    loaded = load_model(model, dtype=usable_precision(dtype, place), device=place)
    batches = gather(
        data, loaded.model, loaded.processor, describe(loaded.model),
        seq_len=seq_len, tokens=tokens, samples=samples, columns=column_names(columns), seed=seed, purpose=purpose,
    )  # fmt: skip
    return loaded, batches


def _require_plan(path: Path) -> None:
    """--force is for plans: it must not cost anyone another file."""
    from slimformer.plan import Plan

    if path.is_file():
        try:
            Plan.load(path)
        except SlimformerError:
            raise OutputExists(f"{path} is there already and is not a plan; choose another file") from None


def _dry_run(
    model: str, asked: dict[str, float], recipe: Any, format: str, seq_len: int | None, as_json: bool, quiet: bool
) -> None:
    from slimformer import stages
    from slimformer.calibrate.gather import sequence_length
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.plan.budget import budget_of
    from slimformer.report.console import kept, plan_table
    from slimformer.workbench import priced

    if "max_kl" in asked:
        raise SlimformerError("--dry-run shows sizes for a budget; give --macs, --params or --latency")
    loaded = load_model(model)
    budget = priced(budget_of(**asked), loaded.model, sequence_length(loaded.model, describe(loaded.model), seq_len))
    made = stages.even_plan(loaded.model, budget=budget, recipe=recipe, format=format, seq_len=seq_len)
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(loaded.model), made))))
