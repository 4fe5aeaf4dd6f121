"""From a loaded model to a folder another runtime opens: whole or not at all, and checked before it is put in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.checkpoint.atomic import require_free, writing
from slimformer.checkpoint.lines import json_text
from slimformer.checkpoint.save import write_belongings
from slimformer.checkpoint.sentence import pooling_of
from slimformer.checkpoint.verify import in_float32
from slimformer.errors import CannotExport, SequenceTooLong
from slimformer.export.asked import Target
from slimformer.export.compare import TOLERANCE, Difference
from slimformer.export.graph import Graph, free_sizes, longest
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models.load import Loaded
from slimformer.models.sample_inputs import require_no_experts, require_one_stack
from slimformer.nn.long_context import keys_are_grouped

FORMAT = 1


@dataclass(frozen=True)
class Export:
    """What was written and how far its outputs are from those of the model; as export.json says it."""

    to: str
    model: str
    file: str
    bytes: int
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    seq_len: int | None = None  # fixed, or None where any length will do
    longest: int | None = None
    number: str = "f32"
    verified: bool = False
    tolerance: float | None = None  # of the largest output
    difference: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"slimformer_export": FORMAT, **self.__dict__}


def export_model(
    loaded: Loaded,
    folder: str | Path,
    target: Target,
    *,
    verify: bool = True,
    force: bool = False,
    progress: Progress = silent,
) -> Export:
    """Write `loaded` for another runtime, and with `verify` compare the outputs there with those of the model.

    ONNX and torch take every model, dense, plain or ragged; GGUF decoders of the LLaMA family, ragged ones by whole
    heads and neurons.
    """
    require_free(Path(folder), force)
    if keys_are_grouped(loaded.model):
        raise CannotExport(
            f"attention of {loaded.name} runs over groups of keys, which other runtimes cannot say; export the model "
            "it was made from"
        )
    require_one_stack(loaded.model.config, "export")
    require_no_experts(loaded.model.config, "export")
    model = in_float32(loaded.model).eval()
    if model.dtype != torch.float32:
        model = copy.deepcopy(model).float()
    write = _writer(model, loaded, target, verify)
    with writing(Path(folder), "export", force=force) as partial:
        progress("export", 0, 1)
        written = write(partial)
        model.config.save_pretrained(partial)
        processor = loaded.processor if target.to != "gguf" else None  # which holds it; transformers would mix the two
        write_belongings(partial, processor, loaded.companions, parts=False)
        (partial / "export.json").write_text(json_text(written.to_dict()), encoding="utf-8")
        progress("export", 1, 1)
    return written


def _writer(model: PreTrainedModel, loaded: Loaded, target: Target, verify: bool) -> Callable[[Path], Export]:
    """What writes the file; all that can be refused is refused before."""
    if target.to == "gguf":
        from slimformer.export.gguf_file import require_sayable

        quant = target.quant or "f16"
        require_sayable(model, loaded.processor, quant)
        return lambda folder: _gguf(model, loaded, folder, quant, verify)
    if longest(model) is None and target.seq_len is not None:
        raise SequenceTooLong(f"{option('seq_len')} is for text; an image has one size")
    free_sizes(model, target.seq_len)
    if target.to == "onnx":
        from slimformer.export.onnx_file import require_packages

        require_packages()
    graph = Graph(model, pooling_of(loaded.companions or loaded.folder)).eval()
    return lambda folder: _traced(graph, loaded.name, folder, target, verify)


def _traced(graph: Graph, name: str, folder: Path, target: Target, verify: bool) -> Export:
    from slimformer.export import onnx_file, torch_file

    bits, seq_len = target.bits, target.seq_len
    packages: tuple[str, ...] = ("torch", "transformers")
    if target.to == "onnx":
        file, gap = onnx_file.FILE, onnx_file.write_onnx(graph, folder, bits=bits, seq_len=seq_len, verify=verify)
        packages += onnx_file.PACKAGES
    else:
        file, gap = torch_file.FILE, torch_file.write_program(graph, folder, seq_len=seq_len, verify=verify)
    notes = ["there is no cache: every call reads the whole sequence"] if graph.uncached else []
    return Export(
        target.to, name, file, _size(folder, file), list(graph.input_names), list(graph.output_names), seq_len,
        longest(graph.model), f"int{bits}" if bits else "f32", verify, None if bits or not verify else TOLERANCE,
        _as_dict(gap), notes, {package: version(package) for package in packages},
    )  # fmt: skip


def _gguf(model: PreTrainedModel, loaded: Loaded, folder: Path, quant: str, verify: bool) -> Export:
    from slimformer.export.gguf_check import check_gguf
    from slimformer.export.gguf_file import FILE, write_gguf

    written = write_gguf(model, loaded.processor, folder, quant=quant, name=loaded.name.rstrip("/").split("/")[-1])
    gap, checked = check_gguf(model, loaded.processor, folder, written, quant) if verify else (None, [])
    notes = [f"{written.stored['f16']} tensors whose rows are no whole blocks of 32 are f16"]
    notes = [*checked, *(notes if quant == "q8_0" and written.stored["f16"] else [])]
    if written.needs_config:
        notes.append("transformers does not read all of this file: give it the config.json of this folder (config=)")
    packages = {package: version(package) for package in ("torch", "transformers", "gguf")}
    return Export(
        "gguf", loaded.name, FILE, _size(folder, FILE), ["input_ids"], ["logits"], None, longest(model), quant, verify,
        TOLERANCE if verify else None, _as_dict(gap), notes, packages,
    )  # fmt: skip


def _as_dict(gap: Difference | None) -> dict[str, Any] | None:
    return None if gap is None else gap.to_dict()


def _size(folder: Path, file: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(f"{file}*"))
