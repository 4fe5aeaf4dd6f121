"""The options of the commands, each said once: name, kind of value, help."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from slimformer.models.opening import Opening

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
MeasuredData = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="DATA",
        help="as for compress; with --task a file or folder of it",
        show_default="what was held out of the data it was calibrated on",
    ),
]
OnlyData = Annotated[
    bool, typer.Option("--only-data", help="fit on --data alone, without the broad text that is added to it")
]
EvalData = Annotated[
    list[str] | None,
    typer.Option(
        "--eval-data", metavar="DATA", help="other data, never fitted on, to measure on as well; may be given again"
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
TotalMacs = Annotated[
    str | None,
    typer.Option("--total-macs", metavar="FRACTION", help="or: fraction of all MACs to keep, with the head's"),
]
MaxKl = Annotated[
    float | None,
    typer.Option(metavar="NATS", help="or: the smallest model whose mean KL is certified to be at most this"),
]
Refine = Annotated[
    bool | None, typer.Option(help="correct every reader on what the cut model sends it", show_default="recipe")
]
HealFor = Annotated[
    str | None,
    typer.Option(
        "--heal", metavar="TIME", help="learn from the dense model for so long, e.g. 10m; needs the extra heal"
    ),
]
Verify = Annotated[bool, typer.Option(help="reload the result in a fresh process and compare")]
HeadData = Annotated[
    str | None,
    typer.Option(
        "--head-data", metavar="DATA", help="labelled rows to fit a fresh head on after the cut, in closed form"
    ),
]
Vocab = Annotated[
    str | None,
    typer.Option(
        "--vocab",
        metavar="N|SHARE",
        help="also keep only N tokens, or, below 1, as many as cover that share of the text",
    ),
]
VocabData = Annotated[
    str | None,
    typer.Option("--vocab-data", metavar="DATA", help="with --vocab: text to count tokens on", show_default="--data"),
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
        "--group",
        metavar="N",
        help="with --bits: weights of a row that share a step; 0 for the row",
        show_default="32; --size: 64",
    ),
]
Tables = Annotated[
    bool | None,
    typer.Option("--tables/--no-tables", help="with --bits: embeddings and the head of words, too", show_default="no"),
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
Tokens = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="tokens to fit on (default 32768, for encoders of text 65536)")
]
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
FamilyFile = Annotated[
    str | None,
    typer.Option(
        "--family", metavar="FILE", help="where models of this type keep their widths (see `slimformer families`)",
        show_default="by type",
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
Target = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="NAME",
        help="where it will be served: transformers, sentence-transformers, onnx, llama.cpp or vllm; the format and "
        "what is cut follow",
    ),
]
Paths = Annotated[
    bool,
    typer.Option(
        "--paths/--no-paths", help="gather neurons with their input, too, so that blocks may keep linear paths, too"
    ),
]
Track = Annotated[
    str | None, typer.Option(metavar="NAME", help="record the numbers with trackio, wandb or tensorboard, offline")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress, no tables")]
Force = Annotated[bool, typer.Option("--force", help="replace an earlier result of slimformer at the same place")]
Budgets = Annotated[
    str, typer.Option("--macs", "--mu", metavar="FRACTIONS", help="budgets, e.g. 0.9,0.7,0.5", show_default="all")
]
Small = Annotated[str, typer.Argument(metavar="DIR", help="the smaller model")]
Against = Annotated[str, typer.Option(metavar="MODEL", help="the dense model it came from")]
Record = Annotated[bool, typer.Option("--record", help="also write the result into DIR/report.json")]
Narrowable = Annotated[
    str, typer.Argument(metavar="MODEL", help="a folder (dense or compressed), a hub id, demo:smollm2 or demo:minilm")
]
WithHead = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="save the model with its head here")]
ReadLength = Annotated[int, typer.Option("--seq-len", min=2, metavar="N", help="tokens read of each text at most")]
Lengths = Annotated[
    str,
    typer.Option(metavar="NUMBERS", help="lengths to look at attention at, e.g. 64,128", show_default="as data allow"),
]
Sequences = Annotated[int, typer.Option(min=1, metavar="N", help="sequences to look at attention on, for each length")]


@dataclass(frozen=True)
class OpeningAsked:
    """How a model is to be opened, as the options say it. Whether this machine can do so, only torch knows."""

    device: Device = "auto"
    model_class: ModelClass = None
    revision: Revision = None
    trust_remote_code: TrustRemoteCode = False
    family: FamilyFile = None

    def resolve(self) -> Opening:
        """The same for the library; refused where there is no such device."""
        from slimformer.models.opening import Opening, usable_device

        usable_device(self.device)
        return Opening(**vars(self))


@dataclass(frozen=True)
class Reading:
    """How --data are read."""

    columns: Columns = ""
    tokens: Tokens = None
    samples: Samples = None
    seq_len: SeqLen = None
    seed: Seed = 0

    def arguments(self) -> dict[str, Any]:
        """The same for the library."""
        return {**vars(self), "columns": column_names(self.columns)}


@dataclass(frozen=True)
class Shown:
    """How a result is shown: tables, or one JSON object, or nothing."""

    as_json: AsJson = False
    quiet: Quiet = False

    @property
    def hidden(self) -> bool:
        """Are progress and notes left out?"""
        return self.as_json or self.quiet


AS_USUAL, READING, SHOWN = OpeningAsked(), Reading(), Shown()
GROUPS = (OpeningAsked, Reading, Shown)


def column_names(text: str) -> list[str] | None:
    """The names in `sentence1,sentence2`."""
    return [name.strip() for name in text.split(",") if name.strip()] or None


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take options that belong together as one parameter, whose default is one of `GROUPS`.

    A command that has no use for a device says so by a parameter `opening` on the CPU: then there is no --device.
    """
    signature = inspect.signature(command, eval_str=True)
    members: dict[str, list[str]] = {}
    options: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = parameter.default
        if not isinstance(group, GROUPS):
            options.append(parameter)
            continue
        kinds = get_type_hints(type(group), include_extras=True)
        given = {name: value for name, value in vars(group).items() if (name, value) != ("device", "cpu")}
        members[parameter.name] = list(given)
        options += [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kinds[name], default=default)
            for name, default in given.items()
        ]

    @wraps(command)
    def call(**given: Any) -> None:
        groups = {
            name: replace(signature.parameters[name].default, **{member: given.pop(member) for member in names})
            for name, names in members.items()
        }
        command(**groups, **given)

    call.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options}
    return call
