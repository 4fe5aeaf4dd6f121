"""The shell: parse, call one function, write one file.

Commands are the verbs of the library. Results go to standard output (with --json as one JSON object), progress and
notes to standard error. Bad input: one line, exit code 2.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import typer
from rich.console import Console

from slimformer.cli.cascade import CASCADE
from slimformer.cli.compress import (
    asked_for,
    by_blocks,
    require_place,
    saved,
    show_dry_run,
    show_dry_run_by_blocks,
    show_result,
)
from slimformer.cli.evaluate import MEASURE
from slimformer.cli.export import EXPORT
from slimformer.cli.frontier import FRONT, emit, loaded_for, read_data, saved_line, started_from
from slimformer.cli.heads import HEADS
from slimformer.cli.inspect import INSPECT
from slimformer.cli.lab import lab_app
from slimformer.cli.options import (
    AS_USUAL,
    AsJson,
    Columns,
    DataOption,
    DryRun,
    Dtype,
    EvalData,
    Force,
    Format,
    Groups,
    HeadData,
    KeepExact,
    KeptBits,
    KeptGroup,
    Kind,
    Latency,
    Macs,
    MaxKl,
    MaybeOut,
    Memory,
    Model,
    NoSeed,
    OnlyData,
    OutFolder,
    Params,
    Paths,
    Quiet,
    RecipeName,
    Refine,
    Samples,
    Seed,
    SeqLen,
    Setting,
    Size,
    Source,
    Stats,
    Steps,
    Timing,
    Tokens,
    Track,
    Window,
    opens_model,
)
from slimformer.cli.quantize import QUANTIZE
from slimformer.cli.recipes import recipes_app
from slimformer.cli.report import REPORT
from slimformer.cli.steps import steps as list_steps
from slimformer.cli.terminal import (
    budget as budget_from,
)
from slimformer.cli.terminal import (
    column_names,
    joined,
    paragraphs,
    progress_bars,
    require_alone,
    run,
    with_precision,
)
from slimformer.models.opening import Opening

app = typer.Typer(
    name="slimformer",
    help="Shrink trained transformers to a compute budget, without retraining. MODEL is a folder, a hub id, or "
    "demo:smollm2 / demo:minilm. Start with: slimformer compress demo:smollm2 --macs 0.8 --out smaller",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(recipes_app, name="recipes")
app.add_typer(lab_app, name="lab")

err = Console(stderr=True)
out = Console()


def _version(asked: bool) -> None:
    if asked:
        from slimformer import __version__

        typer.echo(f"slimformer {__version__}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself; the commands do the work."""
    require_alone(context.invoked_subcommand)


for command, example in INSPECT.items():
    app.command(epilog=f"Example: {example}")(command)


@app.command(epilog="Example: slimformer calibrate demo:smollm2 --data builtin --out stats")
@opens_model
def calibrate(
    model: Model,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="folder to write the statistics to")],
    data: DataOption = None,
    only_data: OnlyData = False,
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    dtype: Dtype = "float32",
    paths: Paths = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """One pass over the data: write the moments of every width, from which any budget can be planned."""
    from slimformer.calibrate.distributed import is_follower
    from slimformer.calibrate.metric import shared_metric
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free, writing
    from slimformer.evaluate.data_notes import thin_data, unnamed_data
    from slimformer.models import describe
    from slimformer.models.load import load_model
    from slimformer.nn.long_context import require_every_key
    from slimformer.steps.calibration import calibrate as gather_moments
    from slimformer.steps.calibration import keep_probes, require_together
    from slimformer.steps.result import require_apart

    name = joined(data)
    require_apart(out_folder, model, name, *name.split(","))
    require_free(out_folder, force)
    how = with_precision(opening, dtype)
    loaded = load_model(model, how)
    require_every_key(loaded.model)
    batches = read_data(loaded, name, columns, tokens, samples, seq_len, seed, "calibration", broad=not only_data)
    require_together(loaded, batches)
    place = TemporaryDirectory() if is_follower() else writing(out_folder, "statistics", force=force)
    with progress_bars(err, hidden=quiet or as_json) as progress, place as folder:
        metric = shared_metric(loaded.model, batches.splits["fit"], seed=batches.seed, progress=progress)
        statistics = gather_moments(loaded, batches, Path(folder), metric=metric, joint=paths, progress=progress)
        keep_probes(loaded.model, statistics, batches.splits["select"], progress=progress)
    notes = [*batches.notes, *thin_data(describe(loaded.model), batches), *unnamed_data(batches.reading, batches.name)]
    for note in notes if not (quiet or as_json) else ():
        err.print(f"note: {note}", style="yellow", markup=False, highlight=False, soft_wrap=True)
    found = asdict(open_statistics(out_folder).provenance)
    emit(found, as_json, quiet, lambda: typer.echo(f"statistics of {found['model']} are in {out_folder}"))


@app.command(epilog="Example: slimformer plan stats --macs 0.7 --out plan.json")
@opens_model
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
    opening: Opening = AS_USUAL,
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Decide what every block keeps, so that a fraction of the block MACs, parameters or latency stays. Needs no
    data."""
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free_file, writing_file
    from slimformer.files.content import PLAN
    from slimformer.models import describe
    from slimformer.recipe import cut_settings
    from slimformer.report.console import kept, plan_table
    from slimformer.steps.make import make_plan, priced

    budget, settings = budget_from(macs, params, latency), cut_settings(recipe)
    statistics = open_statistics(stats)
    require_free_file(out_file, force, PLAN)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        run = started_from(statistics, settings, format, (model, opening), progress)
        made = make_plan(run, priced(run, budget), settings)
        with writing_file(out_file, force=force, kind=PLAN) as file:
            file.write_text(made.to_json())
    emit(json.loads(made.to_json()), as_json, quiet, lambda: out.print(kept(plan_table(describe(run.dense), made))))


@app.command(epilog="Example: slimformer apply stats plan.json --out smaller")
@opens_model
def apply(
    stats: Stats,
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="the plan.json `slimformer plan` wrote")],
    out_folder: OutFolder,
    model: Source = "",
    opening: Opening = AS_USUAL,
    seed: NoSeed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Carry out a plan with the statistics it was made from, and save the smaller model."""
    from slimformer.calibrate.store import open_statistics
    from slimformer.checkpoint.atomic import require_free
    from slimformer.evaluate import assessment as assess
    from slimformer.models import describe
    from slimformer.plan import Plan
    from slimformer.plan.plan import recounted
    from slimformer.steps.make import replay
    from slimformer.steps.result import Result, require_apart

    made, statistics = Plan.load(plan_file), open_statistics(stats)
    require_apart(out_folder, stats, plan_file, model or statistics.provenance.model)
    require_free(out_folder, force)
    loaded = loaded_for(statistics, model, opening)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        small = replay(made, loaded.model, statistics, progress=progress)
        made = recounted(made, describe(loaded.model))
        report = assess.describe_result(loaded, small, made, statistics.provenance)
        progress("save and verify", 0, 1)
        Result(small, made, report, loaded).save(out_folder, force=force)
        progress("save and verify", 1, 1)
    emit(report.to_dict(), as_json, quiet, lambda: saved_line(out_folder, report))


@app.command(
    epilog="Example: slimformer compress demo:smollm2 --macs 0.8 --out smaller\n\n"
    "A classifier: slimformer compress ./bert --macs 0.6 --data train.tsv --columns sentence --out smaller\n\n"
    "Long texts: slimformer compress demo:smollm2 --recipe long-context --k 128 --out long\n\n"
    "What changes no output, without budget and data: slimformer compress ./bert --recipe lossless --out smaller\n\n"
    "A vision model: slimformer compress ./vit --macs 0.5 --data images --format plain --out smaller\n\n"
    "Larger than memory: slimformer compress ./llama --macs 0.5 --memory 4GB --no-refine --out smaller"
)
@opens_model
def compress(
    model: Model,
    macs: Macs = None,
    params: Params = None,
    latency: Latency = None,
    max_kl: MaxKl = None,
    size: Size = None,
    out_folder: MaybeOut = None,
    data: DataOption = None,
    only_data: OnlyData = False,
    eval_data: EvalData = None,
    recipe: RecipeName = "balanced",
    settings: Setting = None,
    format: Format = "ragged",
    columns: Columns = "",
    tokens: Tokens = None,
    samples: Samples = None,
    seq_len: SeqLen = None,
    seed: Seed = 0,
    opening: Opening = AS_USUAL,
    dtype: Dtype = "float32",
    refine: Refine = None,
    head_data: HeadData = None,
    bits: KeptBits = None,
    group: KeptGroup = None,
    timing: Timing = True,
    track: Track = None,
    k: Groups = None,
    window: Window = None,
    kind: Kind = None,
    keep_exact: KeepExact = None,
    steps: Steps = None,
    memory: Memory = None,
    dry_run: DryRun = False,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Shrink MODEL to a fraction of its block MACs and save it: calibrate, plan, apply, evaluate, verify."""
    from slimformer.compress import compress as make_smaller
    from slimformer.report.track import tracker

    name, texts = joined(data), {"macs": macs, "params": params, "latency": latency, "size": size}
    steps_of = {
        "max_kl": max_kl, "refine": refine, "head_data": head_data, "bits": bits, "group": group, "k": k,
        "window": window, "kind": kind, "keep_exact": keep_exact, "steps": steps,
    }  # fmt: skip
    asked = {
        "recipe": recipe, "format": format, "seq_len": seq_len, "tokens": tokens, "samples": samples, "seed": seed,
        "columns": column_names(columns), "only_data": only_data, "eval_data": eval_data, "timing": timing,
        **asked_for(texts, steps_of, settings), **vars(with_precision(opening, dtype)),
    }  # fmt: skip
    if dry_run and memory is not None:
        return show_dry_run_by_blocks(model, name, memory, asked, as_json, quiet)
    if dry_run:
        return show_dry_run(model, asked, as_json, quiet)
    record = tracker(track)
    out_folder = require_place(out_folder, force, model, head_data, name, *name.split(","), *(eval_data or ()))
    if memory is not None:
        return record("compress", by_blocks(model, out_folder, name, memory, asked, (force, as_json, quiet)))
    with progress_bars(err, hidden=quiet or as_json) as progress:
        report = saved(make_smaller(model, name, progress=progress, **asked), out_folder, force, progress).report
    record("compress", report.to_dict())
    show_result(report, out_folder, as_json, quiet)


app.command("steps", epilog="Example: slimformer steps cut")(list_steps)
for command, example in {**FRONT, **MEASURE, **CASCADE, **QUANTIZE, **HEADS, **EXPORT, **REPORT}.items():
    name = command.__name__.rstrip("_")
    app.command(name, epilog=f"Example: {example}", help=paragraphs(command.__doc__ or ""))(command)


def main() -> None:
    """Entry point: facts a user can act on become one line and exit code 2; an interrupt leaves nothing behind."""
    sys.exit(run(app, err))
