"""ONNX through torch.export: any batch and sequence length, checked in ONNX Runtime; int8 by dynamic quantization."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimformer.errors import CannotExport
from slimformer.export.compare import Difference, Run, difference, require_alike, require_close
from slimformer.export.graph import Graph, free_sizes, longest, sample
from slimformer.export.onnx_int4 import matrices_of, tables_of, to_four_bits

FILE = "model.onnx"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
ONE_FILE = 1_500_000_000  # bytes; protobuf holds less than 2 GB, so more goes into a second file next to it
EXAMPLE = (3, 16)  # batch × sequence that is traced; neither is 0 or 1, which torch takes for constants


def require_packages() -> None:
    """Refuse, before any work, where the extra `onnx` is not installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotExport(f"ONNX needs {', '.join(missing)}; run: pip install 'slimformer[onnx]'")


def write_onnx(
    graph: Graph, folder: Path, *, bits: int | None = None, seq_len: int | None = None, verify: bool = True
) -> Difference | None:
    """Write `model.onnx` (weights over 1.5 GB in a second file) and compare it with torch on several shapes.

    Single precision must agree to 1e-4 of the largest output; of 8 or 4 bits the difference is returned, and a cosine
    of outputs below 0.95 is refused. Cost: one trace, one forward pass for each shape.
    """
    require_packages()
    path = folder / FILE
    sizes = free_sizes(graph.model, seq_len)
    inputs = sample(graph.model, *traced_shape(graph, seq_len))
    arguments = tuple(inputs[name] for name in graph.input_names)
    with quiet(), tracing(), torch.no_grad():
        program = torch.onnx.export(
            graph, arguments, dynamo=True, dynamic_shapes=named(sizes), external_data=False, verbose=False,
            input_names=list(graph.input_names), output_names=list(graph.output_names),
        )  # fmt: skip
        assert program is not None
        program.save(str(path), external_data=_large(graph))
    if bits:
        quantize(path, bits)
    if not verify:
        return None
    gap = difference(graph, runner(path, graph), seq_len=seq_len)
    require_alike(gap) if bits else require_close(gap)
    return gap


def quantize(path: Path, bits: int = 8) -> None:
    """Weights to int8: of matrix products with one scale for each output, tables of embeddings with one for the table.

    Activations are rounded as they come. Tables left alone would be most of a small file. Seven bits of weight are
    used: on processors without VNNI products of eight bits with eight may saturate. With four bits weights take half of
    the file again, and computing is the same (`onnx_int4`).
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(path))
    del model.graph.value_info[:]  # shapes from the trace contradict those of the quantizer
    large = (path.parent / f"{FILE}.data").exists()
    empty = {tensor.name for tensor in model.graph.initializer if 0 in tensor.dims}  # ranks may be 0
    without = [node.name for node in model.graph.node if empty & set(node.input)]
    tables, matrices = (tables_of(model.graph), matrices_of(model.graph)) if bits == 4 else ({}, {})
    with quiet():
        quantize_dynamic(
            model, str(path), per_channel=True, reduce_range=True, weight_type=QuantType.QInt8,
            nodes_to_exclude=[*without, *tables], use_external_data_format=large,
        )  # fmt: skip
    if bits == 4:
        to_four_bits(path, tables, matrices, f"{FILE}.data" if large else None)


def open_session(path: Path, *, threads: int = 0) -> Any:
    """The file in ONNX Runtime on the CPU; 0 threads are as many as it likes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def runner(path: Path, graph: Graph, *, threads: int = 0) -> Run:
    """What ONNX Runtime gives for inputs, by name."""
    session = open_session(path, threads=threads)
    names = list(graph.output_names)

    def run(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        outputs = session.run(names, {name: tensor.numpy() for name, tensor in inputs.items()})
        return {name: torch.from_numpy(array) for name, array in zip(names, outputs, strict=True)}

    return run


def traced_shape(graph: Graph, seq_len: int | None) -> tuple[int, int]:
    """Batch × sequence of the example that is traced."""
    return EXAMPLE[0], seq_len or min(EXAMPLE[1], longest(graph.model) or EXAMPLE[1])


def named(sizes: list[dict[int, Any]]) -> dict[str, dict[int, Any] | None]:
    """Free sizes by the names of the arguments of `Graph.forward`."""
    arguments = ("first", "attention_mask", "token_type_ids")
    return dict(zip(arguments, sizes, strict=False))


def _large(graph: Graph) -> bool:
    return sum(tensor.numel() * tensor.element_size() for tensor in graph.parameters()) > ONE_FILE


@contextmanager
def tracing() -> Iterator[None]:
    """What torch cannot trace is said in one line; it raises a dozen types, some of them pages long."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = (lines[0] if lines else type(error).__name__)[:200]
        raise CannotExport(f"torch cannot export this model: {reason}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Advice of tracers and quantizers, which print, warn and log, would bury our own output."""
    names = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "root", "torch.onnx._internal.exporter")
    loggers = [logging.getLogger(None if name == "root" else name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
