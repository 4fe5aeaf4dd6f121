"""The options of the commands, each said once: name, kind of value, help."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.models.opening import Opening, usable_device

Model = Annotated[str, typer.Argument(metavar="MODEL", help="a folder, a hub id, demo:smollm2 or demo:minilm")]
Stats = Annotated[Path, typer.Argument(metavar="STATS", help="the folder `slimformer calibrate` wrote")]
DataOption = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        "--task",
        metavar="DATA",
        help="text, jsonl, tsv, csv or parquet file, an image folder, a data set's name such as sst2 or wikitext2, "
        "builtin, or self: text the model writes; several (by commas, or --data again) are mixed evenly",
        show_default="builtin",
    ),
]
OnlyData = Annotated[
    bool, typer.Option("--only-data", help="fit on --data alone, without the broad text that is fitted beside it")
]
EvalData = Annotated[
    list[str] | None,
    typer.Option(
        "--eval-data", metavar="DATA", help="other data, never fitted on, to measure on beside; may be given again"
    ),
]
Columns = Annotated[
    str, typer.Option(metavar="NAMES", help="columns to read, e.g. sentence; two for pairs", show_default="by name")
]
Source = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="where the model is now, if it was moved", show_default=False)
]
Macs = Annotated[
    str | None,
    typer.Option("--macs", "--mu", metavar="FRACTION", help="fraction of the block MACs to keep, e.g. 0.5"),
]
Params = Annotated[
    str | None, typer.Option("--params", metavar="FRACTION", help="or: fraction of the blocks' parameters to keep")
]
Latency = Annotated[
    str | None,
    typer.Option(
        "--latency", metavar="FRACTION", help="or: fraction of the blocks' latency to keep, measured on this machine"
    ),
]
MaxKl = Annotated[
    float | None,
    typer.Option(metavar="NATS", help="or: the smallest model whose mean KL is certified to be at most this"),
]
Refine = Annotated[
    bool | None, typer.Option(help="correct every reader on what the cut model sends it", show_default="recipe")
]
Verify = Annotated[bool, typer.Option(help="reload the result in a fresh process and compare")]
HeadData = Annotated[
    str | None,
    typer.Option(
        "--head-data", metavar="DATA", help="labelled rows to fit a fresh head on after the cut, in closed form"
    ),
]
Size = Annotated[
    str | None,
    typer.Option(
        "--size", metavar="BYTES", help="or: all weights in at most this, e.g. 60MB; budget and bits are chosen"
    ),
]
KeptBits = Annotated[
    int | None,
    typer.Option("--bits", metavar="N", help="also store what is left in 8 or 4 bits; needs the extra quant"),
]
KeptGroup = Annotated[
    int | None,
    typer.Option(
        "--group", metavar="N", help="with --bits: weights of a row that share a step; 0 for the row", show_default="32"
    ),
]
Timing = Annotated[bool, typer.Option(help="measure latency before and after")]
MaybeOut = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="folder to write the smaller model to")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="show what would be kept if every block lost the same share; no data")
]
Groups = Annotated[
    int | None,
    typer.Option("--k", metavar="N", help="recipe long-context: keys attention runs over", show_default="128"),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="recipe long-context: cluster, mean, least-squares or learned",
        show_default="recipe",
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="recipe long-context: last tokens a decoder sees exactly (half of them at least)",
        show_default="256",
    ),
]
KeepExact = Annotated[
    int | None,
    typer.Option(min=0, metavar="N", help="recipe long-context: leave the N worst layers as they are"),
]
Steps = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="recipe long-context, kind learned: steps of training", show_default="200"),
]
OutFolder = Annotated[Path, typer.Option("--out", metavar="DIR", help="folder to write the smaller model to")]
Memory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="read the model block by block within this much memory, e.g. 4GB; the same command goes on"
    ),
]
Tokens = Annotated[int | None, typer.Option(min=1, metavar="N", help="tokens to fit on (default 32768)")]
EvalTokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="as for compress; a half of it is read of held-out data")
]
Samples = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="read at most this many documents or images (default all)")
]
SeqLen = Annotated[
    int | None,
    typer.Option(
        min=2, metavar="N", help="sequence length (default 512 for decoders, 128 for encoders, or all the model reads)"
    ),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="decides the splits; the same seed gives the same model")]
NoSeed = Annotated[
    int, typer.Option("--seed", min=0, metavar="N", help="every command takes one; in this one nothing is drawn")
]
Device = Annotated[str, typer.Option(metavar="NAME", help="cpu, cuda, mps, or auto: the best that is here")]
ModelClass = Annotated[
    str | None,
    typer.Option(
        "--class", metavar="NAME", help="open MODEL as this class, e.g. AutoModelForSequenceClassification",
        show_default="by config.json",
    ),
]  # fmt: skip
Revision = Annotated[
    str | None, typer.Option(metavar="NAME", help="branch, tag or commit of a hub model", show_default="main")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="run the code of MODEL's config and tokenizer (see SECURITY.md)")
]
Dtype = Annotated[
    str, typer.Option(metavar="NAME", help="precision to compute in: float32, float64, bfloat16 or float16")
]
RecipeName = Annotated[
    str, typer.Option("--recipe", metavar="NAME", help="a name `slimformer recipes` lists, or a path to a .yaml file")
]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="STEP.KEY=VALUE", help="any other setting of a step, e.g. cut.ridge=0.01; may be given again"
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="NAME", help="ragged: every block its own sizes; plain: sizes the stock config can say"
    ),
]
Paths = Annotated[
    bool,
    typer.Option(
        "--paths/--no-paths", help="gather neurons with their input, too, so that linear paths may stand beside neurons"
    ),
]
Track = Annotated[
    str | None, typer.Option(metavar="NAME", help="record the numbers with trackio, wandb or tensorboard, offline")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier result of slimformer at the same place")]
AS_USUAL = Opening()


def opens_model(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how a model is opened; it takes them as one `opening`.

    A command that has no use for a device says so by a parameter `opening` on the CPU.
    """
    signature = inspect.signature(command, eval_str=True)
    on = signature.parameters["opening"].default.device
    asked: dict[str, tuple[Any, Any]] = {
        **({"device": (Device, on)} if on == AS_USUAL.device else {}), "model_class": (ModelClass, None),
        "revision": (Revision, None), "trust_remote_code": (TrustRemoteCode, False),
    }  # fmt: skip
    options = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind, default=default)
        for name, (kind, default) in asked.items()
    ]

    @wraps(command)
    def call(**given: Any) -> None:
        opening = Opening(**{"device": on, **{name: given.pop(name) for name in asked}})
        usable_device(opening.device)  # refused before the work
        command(opening=opening, **given)

    others = list(signature.parameters.values())
    at = list(signature.parameters).index("opening")
    call.__signature__ = signature.replace(parameters=[*others[:at], *options, *others[at + 1 :]])  # type: ignore
    call.__annotations__ = {p.name: p.annotation for p in call.__signature__.parameters.values()}  # type: ignore
    return call
