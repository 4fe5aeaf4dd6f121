"""`slimformer export`: a model for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from slimformer.cli import inputs
from slimformer.cli import options as opt
from slimformer.cli.output import emit, python_line
from slimformer.cli.terminal import showing_progress
from slimformer.export.asked import Target

ON_CPU = opt.OpeningAsked("cpu")  # files are traced and compared there
To = Annotated[str, typer.Option("--to", metavar="NAME", help="onnx, torch (a torch.export program) or gguf")]
Int8 = Annotated[bool, typer.Option("--int8", help="onnx: weights to int8, by dynamic quantization")]
Int4 = Annotated[
    bool, typer.Option("--int4", help="onnx: four bits in the file, int8 in computing; for ONNX Runtime alone")
]
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


@opt.grouped
def export(
    model: opt.Model,
    to: To,
    out_folder: OutFolder,
    int8: Int8 = False,
    int4: Int4 = False,
    quant: Quant = None,
    seq_len: FixedLength = None,
    opening: opt.OpeningAsked = ON_CPU,
    seed: opt.NoSeed = 0,
    verify: Verify = True,
    force: opt.Force = False,
    shown: opt.Shown = opt.SHOWN,
) -> None:
    """Write MODEL, dense or compressed, for another runtime, and check that it gives the same outputs there.

    ONNX and torch take every model; batch and sequence are free, decoders have no cache. GGUF takes language models of
    the LLaMA family in plain format, with their tokenizer.
    """
    Target(to, int8, quant, seq_len, int4)
    inputs.require_place(out_folder, force, model)
    inputs.require_model(model, opening)

    from slimformer.verbs.share import export as write

    with showing_progress(hidden=shown.hidden) as progress:
        exported = write(
            model, to=to, out=out_folder, int8=int8, int4=int4, quant=quant, seq_len=seq_len, verify=verify,
            force=force, progress=progress, **vars(opening.resolve()),
        )  # fmt: skip
    emit(exported.to_dict(), shown, lambda: _show(exported, out_folder))


def _show(exported: Any, folder: Path) -> None:
    size = f"{exported.bytes / 1e6:.1f} MB"
    typer.echo(f"{folder / exported.file} ({size}; {', '.join(exported.inputs)} → {', '.join(exported.outputs)})")
    if exported.difference:
        far, shapes = exported.difference, exported.difference["shapes"]
        typer.echo(
            f"checked on {len(shapes)} shapes: outputs differ by at most {far['largest']:.2g} (their scale is "
            f"{far['scale']:.2g}), cosine {far['cosine']:.6f}"
        )
    else:
        typer.echo("not checked")
    for note in exported.notes:
        typer.echo(f"note: {note}")
    path = str(folder / exported.file)
    lines = {
        "onnx": f"import onnxruntime; session = onnxruntime.InferenceSession({path!r})",
        "torch": f"import torch; program = torch.export.load({path!r}).module()",
        "gguf": "from transformers import AutoModelForCausalLM as M; "
        f"model = M.from_pretrained({str(folder)!r}, gguf_file={exported.file!r})",
    }
    typer.echo(f"\nopen it with:\n  {python_line(lines[exported.to])}")
