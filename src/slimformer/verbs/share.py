"""A model handed on: to another runtime, or to the hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from slimformer.checkpoint.atomic import require_apart
from slimformer.export.asked import Target
from slimformer.export.push import prepare, send
from slimformer.export.write import Export, export_model
from slimformer.messages.arguments import PATH, TEXT, YES_OR_NO, check_arguments
from slimformer.messages.progress import Progress, silent
from slimformer.models.load import open_for_work
from slimformer.models.opening import Opening, OpeningOptions, opening_in
from slimformer.verbs.asked import MODEL_OR_LOADED, Model

ON_CPU = Opening(device="cpu")  # files are traced and compared there


class ExportOptions(OpeningOptions, total=False):
    """`int8` and `int4` are of ONNX, `quant` (f32, f16, q8_0) of GGUF, `seq_len` fixes the length of sequences;
    `processor` of a model in memory; not compared without `verify`; `force` replaces an older export."""

    int8: bool
    int4: bool
    quant: str | None
    seq_len: int | None
    processor: Any
    verify: bool
    force: bool


@check_arguments(
    model=MODEL_OR_LOADED, out=PATH, to=TEXT, int8=YES_OR_NO, int4=YES_OR_NO, quant=replace(TEXT, optional=True)
)
def export(
    model: Model, *, to: str, out: str | Path, progress: Progress = silent, **how: Unpack[ExportOptions]
) -> Export:
    """Write `model`, dense or compressed, for another runtime (onnx, torch or gguf), and compare its outputs there.

    ONNX and torch take every model; batch and sequence are free, decoders have no cache. GGUF takes language models of
    the LLaMA family, with their tokenizer. Cost: a copy of the weights in float32, and a few forward passes of both.

    >>> slimformer.export("llama", to="torch", out="program", seq_len=8, verify=False).file
    'model.pt2'
    """
    given: dict[str, Any] = dict(how)
    target = Target(
        to, given.pop("int8", False), given.pop("quant", None), given.pop("seq_len", None), given.pop("int4", False)
    )
    require_apart(Path(out), model if isinstance(model, str | Path) else None)
    progress("load", 0, 1)
    loaded = open_for_work(model, given.pop("processor", None), opening_in(given, ON_CPU))
    progress("load", 1, 1)
    return export_model(loaded, out, target, progress=progress, **given)


@check_arguments(repository=TEXT, private=YES_OR_NO, base_model=replace(TEXT, optional=True), dry_run=YES_OR_NO)
def push(
    folder: str | Path, repository: str, *, private: bool = False, base_model: str | None = None, dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:  # fmt: skip
    """Put a compressed model on the hub with its card, in one commit or none: what was sent, and where it is.

    `repository` is ORG/NAME; `base_model` what it was made from, where the report does not say. With `dry_run` nothing
    is sent. The token is that of `hf auth login` or of HF_TOKEN.

    >>> sent = slimformer.push("smaller", "me/smaller", dry_run=True)
    >>> sent["url"], "config.json" in {file["path"] for file in sent["files"]}
    (None, True)
    """
    parcel = prepare(folder, repository, private=private, base_model=base_model)
    url = None if dry_run else send(parcel, progress=progress)
    return {**parcel.to_dict(), "dry_run": dry_run, "url": url}
