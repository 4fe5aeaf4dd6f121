"""The program: its commands, each from a file of its own, in the groups its help shows.

Commands are the verbs of the library. Results go to standard output (with --json as one JSON object), progress and
notes to standard error. Bad input: one line, exit code 2. A command refuses what it can before it imports torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated

import typer

from slimformer import __version__
from slimformer.cli.adapt import adapt
from slimformer.cli.apply import apply
from slimformer.cli.attention import attention
from slimformer.cli.bench import bench
from slimformer.cli.calibrate import calibrate
from slimformer.cli.cascade import cascade
from slimformer.cli.compress import EXAMPLES, compress
from slimformer.cli.cut import cut
from slimformer.cli.evaluate import eval_
from slimformer.cli.export import export
from slimformer.cli.families import families
from slimformer.cli.frontier import frontier
from slimformer.cli.heal import heal
from slimformer.cli.inspect import inspect
from slimformer.cli.lab import lab
from slimformer.cli.match import match
from slimformer.cli.plan import plan
from slimformer.cli.probe import probe
from slimformer.cli.push import push
from slimformer.cli.quantize import quantize
from slimformer.cli.recipes import recipes
from slimformer.cli.report import report
from slimformer.cli.sparsify import sparsify
from slimformer.cli.steps import steps
from slimformer.cli.sweep import sweep
from slimformer.cli.terminal import require_alone, run

# A group, its commands and an example of each; sub-commands have their own examples.
COMMANDS: dict[str, dict[Callable[..., None] | typer.Typer, str]] = {
    "Shrink": {
        compress: EXAMPLES,
        calibrate: "slimformer calibrate demo:smollm2 --data builtin --out stats",
        plan: "slimformer plan stats --macs 0.7 --out plan.json",
        apply: "slimformer apply stats plan.json --out smaller",
        cut: "slimformer cut stats --macs 0.6 --out smaller",
        quantize: "slimformer quantize demo:smollm2 --bits 4 --group 32 --out smaller",
        sparsify: "slimformer sparsify demo:smollm2 --pattern 2:4 --out sparse",
        heal: "slimformer heal smaller --teacher demo:smollm2 --data text.txt --minutes 10 --out healed",
        cascade: "slimformer cascade ./my-classifier --macs 0.3,1 --data reviews.tsv --out cascade",
        steps: "slimformer steps cut",
        recipes: "",
        families: "",
    },
    "Look": {
        inspect: "slimformer inspect demo:minilm --data builtin --figures figures",
        frontier: "slimformer frontier stats --out front.json",
        sweep: "slimformer sweep stats --macs 0.8,0.6",
        eval_: "slimformer eval smaller --against demo:smollm2 --data other-text.txt\n\n"
        "As in the papers: slimformer eval smaller --against ./bert --task sst2 --data glue/SST-2",
        bench: "slimformer bench smaller --against demo:smollm2 --batch-sizes 1,8",
        report: "slimformer report smaller --open",
    },
    "Solve heads": {
        probe: "slimformer probe demo:minilm --data train.tsv --eval dev.tsv --out classifier",
        adapt: "slimformer adapt demo:smollm2 --data domain.txt --source-data builtin --out adapted",
        match: "slimformer match --source ./vit --target demo:minilm --data captions.jsonl --out map",
    },
    "Long texts and lab": {
        attention: "slimformer attention demo:minilm --data builtin --lengths 128",
        lab: "",
    },
    "Share": {
        export: "slimformer export smaller --to onnx --out smaller-onnx",
        push: "slimformer push smaller my-name/smaller-model --dry-run",
    },
}

app = typer.Typer(
    name="slimformer",
    help="Shrink trained transformers to a compute budget, without retraining. MODEL is a folder, a hub id, or "
    "demo:smollm2 / demo:minilm. Start with: slimformer compress demo:smollm2 --macs 0.8 --out smaller",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
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


def paragraphs(text: str) -> str:
    """A docstring for a terminal of any width: lines of one paragraph joined."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


for group, commands in COMMANDS.items():
    for command, example in commands.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, rich_help_panel=group)
        else:
            name, words = command.__name__.rstrip("_"), paragraphs(command.__doc__ or "")
            app.command(name, help=words, epilog=f"Example: {example}", rich_help_panel=group)(command)


def main() -> None:
    """Entry point: facts a user can act on become one line and exit code 2; an interrupt leaves nothing behind."""
    sys.exit(run(app))
