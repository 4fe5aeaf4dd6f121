"""The commands by which a result leaves the house: for other runtimes, and to the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli.frontier import emit, err
from slimformer.cli.options import AsJson, Force, Model, NoSeed, Quiet, opens_model
from slimformer.cli.terminal import progress_bars, python_line
from slimformer.models.opening import Opening

ON_CPU = Opening("cpu")  # files are traced and compared there
To = Annotated[str, typer.Option("--to", metavar="NAME", help="onnx, torch (a torch.export program) or gguf")]
Int8 = Annotated[bool, typer.Option("--int8", help="onnx: weights to int8, by dynamic quantization")]
Quant = Annotated[
    str | None, typer.Option(metavar="NAME", help="gguf: numbers to store, f32, f16 or q8_0", show_default="f16")
]
FixedLength = Annotated[
    int | None, typer.Option("--seq-len", min=2, metavar="N", help="fix the sequence length", show_default="any")
]
OutFolder = Annotated[
    Path, typer.Option("--out", metavar="DIR", help="folder to write the file and what belongs to it")
]
Verify = Annotated[bool, typer.Option(help="run the file and compare its outputs with those of the model")]


@opens_model
def export(
    model: Model,
    to: To,
    out_folder: OutFolder,
    int8: Int8 = False,
    quant: Quant = None,
    seq_len: FixedLength = None,
    opening: Opening = ON_CPU,
    seed: NoSeed = 0,
    verify: Verify = True,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write MODEL, dense or compressed, for another runtime, and check that it gives the same outputs there.

    ONNX and torch take every model; batch and sequence are free, decoders have no cache. GGUF takes language models of
    the LLaMA family in plain format, with their tokenizer.
    """
    from slimformer.checkpoint.atomic import require_free
    from slimformer.export.write import export_model
    from slimformer.models.load import load_model
    from slimformer.steps.result import require_apart

    require_apart(out_folder, model)
    require_free(out_folder, force)
    with progress_bars(err, hidden=quiet or as_json) as progress:
        progress("load", 0, 1)
        loaded = load_model(model, opening)
        progress("load", 1, 1)
        made = export_model(
            loaded, out_folder, to=to, int8=int8, quant=quant, seq_len=seq_len, verify=verify, force=force,
            progress=progress,
        )  # fmt: skip
    emit(made.to_dict(), as_json, quiet, lambda: _show(made, out_folder))


def push(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a folder `compress`, `cut` or `apply` wrote")],
    repository: Annotated[str, typer.Argument(metavar="ORG/NAME", help="where it goes on the hub")],
    private: Annotated[bool, typer.Option("--private", help="for you and your organisation only")] = False,
    base_model: Annotated[
        str | None,
        typer.Option(metavar="ORG/NAME", help="what it was made from", show_default="as the report says"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show what would be sent; nothing is")] = False,
    seed: NoSeed = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Put a compressed model on the hub with its card: what it was made from, tags, metrics. One commit, or none.

    The token is that of `hf auth login` or of HF_TOKEN.
    """
    from slimformer.export.push import prepare, send

    parcel = prepare(folder, repository, private=private, base_model=base_model)
    found: dict[str, Any] = {**parcel.to_dict(), "dry_run": dry_run, "url": None}
    if not dry_run:
        with progress_bars(err, hidden=quiet or as_json) as progress:
            found["url"] = send(parcel, progress=progress)
    for note in parcel.notes if not (quiet or as_json) else ():
        err.print(f"note: {note}", style="yellow", soft_wrap=True)
    emit(found, as_json, quiet, lambda: _show_parcel(found))


EXPORT: dict[Callable[..., None], str] = {
    export: "slimformer export smaller --to onnx --out smaller-onnx",
    push: "slimformer push smaller my-name/smaller-model --dry-run",
}


def _show(made: Any, folder: Path) -> None:
    size = f"{made.bytes / 1e6:.1f} MB"
    typer.echo(f"{folder / made.file} ({size}; {', '.join(made.inputs)} → {', '.join(made.outputs)})")
    if made.difference:
        far, shapes = made.difference, made.difference["shapes"]
        typer.echo(
            f"checked on {len(shapes)} shapes: outputs differ by at most {far['largest']:.2g} (their scale is "
            f"{far['scale']:.2g}), cosine {far['cosine']:.6f}"
        )
    else:
        typer.echo("not checked")
    for note in made.notes:
        typer.echo(f"note: {note}")
    path = str(folder / made.file)
    lines = {
        "onnx": f"import onnxruntime; session = onnxruntime.InferenceSession({path!r})",
        "torch": f"import torch; program = torch.export.load({path!r}).module()",
        "gguf": "from transformers import AutoModelForCausalLM as M; "
        f"model = M.from_pretrained({str(folder)!r}, gguf_file={made.file!r})",
    }
    typer.echo(f"\nopen it with:\n  {python_line(lines[made.to])}")


def _show_parcel(found: dict[str, Any]) -> None:
    for file in found["files"]:
        typer.echo(f"{file['bytes']:>14,}  {file['path']}")
    visibility = "private" if found["private"] else "public"
    if found["dry_run"]:
        typer.echo(f"\nwould go to {found['repository']} ({visibility}); nothing was sent")
    else:
        typer.echo(f"\nsent to {found['url']} ({visibility})")
