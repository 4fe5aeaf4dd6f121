"""Dense and small in another runtime, as they would serve there: passes over whole inputs, without a cache.

Both are written as ONNX into a folder that is thrown away and opened by the runtime on the CPU; they take turns, as in
`evaluate/bench.py`, in whose words the result is given. What a call takes of memory the runtime does not tell.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slimformer.calibrate.gather import sequence_length
from slimformer.errors import ExtraNotInstalled, UnknownMethod
from slimformer.evaluate.bench import Bench, Workload, measurement, random_inputs
from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.export.asked import RUNTIMES, Target
from slimformer.export.graph import input_names
from slimformer.export.write import export_model
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.load import Loaded

Pair = Mapping[str, Loaded]
Call = Callable[[Mapping[str, Tensor]], object]


def require_runtime(runtime: str) -> None:
    """Refuse a runtime that is not known, or not installed."""
    if runtime not in RUNTIMES:
        raise UnknownMethod(f"there is no runtime {runtime!r} to measure in; choose from {', '.join(RUNTIMES)}")
    try:
        if runtime != "torch":
            importlib.import_module(runtime)
    except ImportError:
        extra = "onnx" if runtime == "onnxruntime" else "openvino"
        raise ExtraNotInstalled(f"{runtime} is not installed; run: pip install 'slimformer[{extra}]'") from None


def bench_in(
    runtime: str, pair: Pair, workload: Workload, rounds: Rounds, *, threads: int | None = None,
    progress: Progress = silent,
) -> Bench:  # fmt: skip
    """Measure both models at every batch size. Cost: two exports, and (repeats + warmup) passes of each."""
    require_runtime(runtime)
    dense = pair["dense"].model
    family, length = describe(dense).family, sequence_length(dense, describe(dense), workload.seq_len)
    measured = []
    with tempfile.TemporaryDirectory(prefix="slimformer-") as place:
        calls = {name: _opened(runtime, each, Path(place) / name, threads) for name, each in pair.items()}
        weights = {name: sum(f.stat().st_size for f in (Path(place) / name).glob("model.onnx*")) for name in pair}
        for i, batch in enumerate(workload.batch_sizes):
            progress("bench", i, len(workload.batch_sizes))
            inputs = _inputs(pair["small"], batch, length, rounds.seed)
            turns = {name: partial(call, inputs) for name, call in calls.items()}
            items = 1 if family.image else length
            times = compare_latency(turns, rounds, device=torch.device("cpu"))
            measured.append(measurement("forward", (batch, items, 1), times, (0, 0)))
        progress("bench", len(workload.batch_sizes), len(workload.batch_sizes))
    return Bench(
        dense=pair["dense"].name, small=pair["small"].name, device="cpu", threads=threads or torch.get_num_threads(),
        seq_len=length, new_tokens=0, repeats=rounds.repeats, warmup=rounds.warmup, unit=family.unit,
        weights_bytes=weights, kv_cache_bytes={"dense": 0, "small": 0}, measurements=measured, runtime=runtime,
    )  # fmt: skip


def _opened(runtime: str, loaded: Loaded, folder: Path, threads: int | None) -> Call:
    """A call of the model in the runtime, on as many threads as torch has where nothing else is said."""
    from slimformer.export.onnx_file import FILE, open_session

    export_model(loaded, folder, Target("onnx", False, None, None, False), verify=False)
    names, count = input_names(loaded.model), threads or torch.get_num_threads()
    if runtime == "onnxruntime":
        session = open_session(folder / FILE, threads=count)
        return lambda inputs: session.run(None, {name: inputs[name].numpy() for name in names})
    openvino: Any = importlib.import_module("openvino")
    how = {"INFERENCE_NUM_THREADS": count, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(folder / FILE), "CPU", how)
    return lambda inputs: compiled({name: inputs[name].numpy() for name in names})


def _inputs(loaded: Loaded, batch: int, length: int, seed: int) -> dict[str, Tensor]:
    """As for torch, with what a graph asks for besides."""
    model = loaded.model
    arrays = {name: tensor.cpu() for name, tensor in random_inputs(model, batch, length, seed).items()}
    first = next(iter(arrays.values()))
    return {name: arrays.get(name, torch.zeros_like(first)) for name in input_names(model)}
