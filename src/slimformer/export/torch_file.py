"""A program by torch.export: `model.pt2`, which any torch opens without transformers and without slimformer."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from slimformer.checkpoint.fresh import run_fresh
from slimformer.errors import ExportFailed
from slimformer.export import reopen
from slimformer.export.compare import Difference, difference, require_close
from slimformer.export.graph import Graph, free_sizes, sample, trial_shapes
from slimformer.export.onnx_file import named, quiet, traced_shape, tracing

FILE = "model.pt2"


def write_program(graph: Graph, folder: Path, *, seq_len: int | None = None, verify: bool = True) -> Difference | None:
    """Trace the model, save it, and compare what a fresh process gives on several shapes with what the model gives.

    Cost: one trace; to verify, starting Python with torch and one forward pass for each shape.
    """
    path, sizes = folder / FILE, free_sizes(graph.model, seq_len)
    inputs = sample(graph.model, *traced_shape(graph, seq_len))
    arguments = tuple(inputs[name] for name in graph.input_names)
    with quiet(), tracing(), torch.no_grad():
        program = torch.export.export(graph, arguments, dynamic_shapes=named(sizes), strict=False)
        torch.export.save(program, path)
    if not verify:
        return None
    gap = _fresh(path, graph, seq_len)
    answers = iter(gap)
    result = difference(graph, lambda _: next(answers), seq_len=seq_len)
    require_close(result)
    return result


def _fresh(path: Path, graph: Graph, seq_len: int | None) -> list[dict[str, Tensor]]:
    """Outputs of a fresh process for the inputs `difference` compares on, in its order."""
    shapes = trial_shapes(graph.model, seq_len)
    trials = [sample(graph.model, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    given = {
        f"{i}/{j}": trial[name].contiguous()
        for i, trial in enumerate(trials)
        for j, name in enumerate(graph.input_names)
    }
    with tempfile.TemporaryDirectory(prefix="slimformer-export-") as scratch:
        inputs, outputs = Path(scratch) / "inputs.safetensors", Path(scratch) / "outputs.safetensors"
        save_file(given, inputs)
        if wrong := run_fresh(reopen.__file__, path, inputs, outputs):
            raise ExportFailed(f"the program does not run in a fresh process: {wrong}; it was not kept")
        results = load_file(outputs)
    names = graph.output_names
    return [{name: results[f"{i}/{j}"] for j, name in enumerate(names)} for i in range(len(trials))]
