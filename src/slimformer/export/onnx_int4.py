"""Weights of an ONNX file in four bits: codes, and a scale for every 64 neighbours in a row of the model.

    w ≈ s q,    q ∈ {−8, …, 7},    s = max |w| / 7 over the block

Tables are looked up in their codes (`GatherBlockQuantized` of ONNX Runtime). Matrices become int8 when the file is
opened: the graph says round(q s / S) for the scale S of an output, all of it constant, so ONNX Runtime does it once and
computes as in any int8 file. Weights that are on such a grid already, because the model was stored in four bits, get
the same codes and scales again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = (128, 64, 32, 16)  # neighbours that share a scale
USUAL = BLOCKS[1:]  # for weights that are on no grid: the first that divides a row
SAME = 1e-4  # of the largest weight: what rounding to the grid of the model itself may change
FOUR_BITS = 21  # the version of ONNX that casts them
FEW_ROWS = 256  # smaller tables save nothing
RUNTIME = "com.microsoft"  # the set of operators that lookups belong to
Weight = NDArray[np.float32]


def tables_of(graph: Any) -> dict[str, Weight]:
    """By the name of the node that looks it up: every table that can be stored so."""
    from onnx import numpy_helper

    weights = {tensor.name: tensor for tensor in graph.initializer}
    looked_up = [node for node in graph.node if node.op_type == "Gather" and node.input[0] in weights]
    tables = {node.name: numpy_helper.to_array(weights[node.input[0]]) for node in looked_up}
    return {name: W for name, W in tables.items() if _fits(W) and len(W) >= FEW_ROWS}


def matrices_of(graph: Any) -> dict[str, Weight]:
    """By their names: matrices that inputs are multiplied with, transposed, so that a row is an output."""
    from onnx import numpy_helper

    read = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    matrices = {tensor.name: numpy_helper.to_array(tensor).T for tensor in graph.initializer if tensor.name in read}
    return {name: W for name, W in matrices.items() if _fits(W)}


def to_four_bits(
    path: Path, tables: dict[str, Weight], matrices: dict[str, Weight], weights_file: str | None = None
) -> None:
    """Rewrite an int8 file with these weights in four bits; `weights_file` is the file that holds large weights."""
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    for place, node in enumerate(list(graph.node)):
        if node.name in tables:
            graph.node.remove(node)
            graph.node.insert(place, _lookup(graph, node, tables[node.name]))
    written = {tensor.name: tensor for tensor in graph.initializer}
    opened = [
        node
        for name, W in matrices.items()
        if f"{name}_quantized" in written
        for node in _opened(graph, written[f"{name}_quantized"], written[f"{name}_scale"], W)
    ]
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*opened, *rest])
    outputs = {node.output[0] for node in opened}
    read = {name for node in graph.node for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.name not in read or tensor.name in outputs:
            graph.initializer.remove(tensor)
    for each in model.opset_import:
        each.version = max(each.version, FOUR_BITS) if each.domain == "" else each.version
    if all(each.domain != RUNTIME for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(RUNTIME, 1))
    onnx.save(model, str(path), save_as_external_data=weights_file is not None, location=weights_file)


def codes_and_scales(W: Weight) -> tuple[NDArray[np.int8], Weight]:
    """Q of the shape of W, and for every row and block its scale: on the grid W is on, or to the nearest."""
    most = float(np.abs(W).max(initial=0))
    fitting = [block for block in BLOCKS if W.shape[1] % block == 0]
    for block in fitting:
        Q, s = _nearest(W, block)
        if np.abs(Q.reshape(*s.shape, block) * s[..., None] - W.reshape(*s.shape, block)).max() <= SAME * most:
            return Q, s
    return _nearest(W, next(block for block in fitting if block in USUAL))


def _nearest(W: Weight, block: int) -> tuple[NDArray[np.int8], Weight]:
    parts = W.reshape(len(W), -1, block)
    s = np.abs(parts).max(2) / 7
    s[s == 0] = 1
    return np.clip(np.round(parts / s[..., None]), -8, 7).astype(np.int8).reshape(W.shape), s.astype(np.float32)


def _fits(W: Weight) -> bool:
    """A matrix of floats that blocks divide."""
    return W.dtype == np.float32 and W.ndim == 2 and W.size > 0 and any(W.shape[1] % block == 0 for block in USUAL)


def _codes(Q: NDArray[np.int8], name: str) -> Any:
    """Two codes in a byte."""
    from onnx import TensorProto, helper

    nibbles = (Q & 0xF).astype(np.uint8).reshape(-1, 2)
    data = (nibbles[:, 0] | (nibbles[:, 1] << 4)).tobytes()
    return helper.make_tensor(name, TensorProto.INT4, Q.shape, data, raw=True)


def _lookup(graph: Any, node: Any, W: Weight) -> Any:
    """The node that looks rows up in codes, in place of `node`."""
    from onnx import helper, numpy_helper

    (Q, s), name = codes_and_scales(W), node.input[0]
    codes, scales = f"{name}_codes", f"{name}_scales"
    if all(tensor.name != codes for tensor in graph.initializer):
        graph.initializer.extend([_codes(Q, codes), numpy_helper.from_array(s, scales)])
    return helper.make_node(
        "GatherBlockQuantized", [codes, node.input[1], scales], list(node.output), name=f"{node.name}_in_four_bits",
        domain=RUNTIME, gather_axis=0, quantize_axis=1, block_size=W.shape[1] // s.shape[1],
    )  # fmt: skip


def _opened(graph: Any, int8: Any, scale: Any, W: Weight) -> list[Any]:
    """Nodes that make the int8 weight of a matrix (inputs × outputs, as the quantizer left it) from four bits."""
    from onnx import TensorProto, helper, numpy_helper

    Q, s = codes_and_scales(W)
    S = np.broadcast_to(numpy_helper.to_array(scale), len(W))[:, None]
    name, (rows, blocks), ratios = int8.name, s.shape, (s / S)[..., None].astype(np.float16)
    shapes = {"cut": [rows, blocks, -1], "whole": [rows, W.shape[1]]}
    graph.initializer.extend(
        [
            _codes(Q, f"{name}_codes"), numpy_helper.from_array(ratios, f"{name}_ratios"),
            *(numpy_helper.from_array(np.array(shape), f"{name}_{at}") for at, shape in shapes.items()),
        ]
    )  # fmt: skip
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Cast", ["codes"], "floats", {"to": TensorProto.FLOAT}),
        ("Reshape", ["floats", "cut"], "blocks", {}),
        ("Cast", ["ratios"], "factors", {"to": TensorProto.FLOAT}),
        ("Mul", ["blocks", "factors"], "scaled", {}),
        ("Round", ["scaled"], "rounded", {}),
        ("Cast", ["rounded"], "bytes", {"to": TensorProto.INT8}),
        ("Reshape", ["bytes", "whole"], "rows", {}),
    ]
    nodes = [
        helper.make_node(kind, [f"{name}_{each}" for each in read], [f"{name}_{out}"], name=f"{name}_to_{out}", **how)
        for kind, read, out, how in steps
    ]
    return [*nodes, helper.make_node("Transpose", [f"{name}_rows"], [name], name=f"{name}_opened", perm=[1, 0])]
