"""Claim: a model of 1.1 billion parameters, 4.4 GB in float32, is compressed to half its block MACs within 3 GB of
anonymous memory; and block by block costs at most 1.3 times the time of the path in memory.

    python benchmarks/streaming.py time                     both paths on one small model, CPU seconds, three times each
    python benchmarks/streaming.py large --scratch DIR      writes the checkpoint (4.4 GB), compresses it, removes it
    python benchmarks/streaming.py large --threads 2        as many threads as there are cores

The large model has the shape of TinyLlama (22 blocks, width 2048, 32 heads over 4 key/value heads, 5632 neurons, 32000
words) and random weights, written shard by shard; it is fitted on few random tokens, because memory and time do not
depend on what weights and words say. `RssAnon` of this process is read from /proc/self/status twenty times a second
while it works. Nothing is said here about quality. DIR needs about 20 GB: the checkpoint, moments, states and shards.
Exit code 1 when the claim does not hold. Results: benchmarks/results/streaming.json, one part for each command.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from safetensors.torch import save_file

from cells import HERE, deciding_code, write_json
from slimformer import compress, compress_streamed
from slimformer.files.versions import versions
from slimformer.models.weight_files import INDEX
from slimformer.steps.memory import anonymous_memory

LARGE = {
    "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
SMALL = {
    "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2,
    "intermediate_size": 704, "vocab_size": 2000, "max_position_embeddings": 512,
}  # fmt: skip
MEMORY, MOST = 3 * 10**9, 1.3
REPEATS = 3


def write_checkpoint(folder: Path, sizes: dict[str, int]) -> int:
    """A LLaMA with random weights, one block at a time; the number of its parameters."""
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=False)
    with torch.device("meta"):
        skeleton = transformers.LlamaForCausalLM(config)
    shapes = {name: tensor.shape for name, tensor in skeleton.state_dict().items()}
    groups: dict[str, list[str]] = {}
    for name in shapes:
        groups.setdefault(".".join(name.split(".")[:3]) if ".layers." in name else "outside", []).append(name)
    folder.mkdir(parents=True, exist_ok=True)
    places, generator = {}, torch.Generator().manual_seed(0)
    for n, names in enumerate(groups.values(), 1):
        file = f"model-{n:05d}-of-{len(groups):05d}.safetensors"
        save_file({name: _drawn(name, shapes[name], generator) for name in names}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.float32
    config.save_pretrained(folder)
    return sum(shape.numel() for shape in shapes.values())


def _drawn(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.ones(shape)
    return torch.randn(shape, generator=generator) / (1.0 if "embed" in name else shape[-1] ** 0.5)


def token_ids(words: int, rows: int, length: int) -> torch.Tensor:
    return torch.randint(words, (rows, length), generator=torch.Generator().manual_seed(1))


@contextmanager
def watched() -> Iterator[list[int]]:
    """The most anonymous memory this process had while inside, as the last entry."""
    seen, over = [anonymous_memory()], threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen[0] = max(seen[0], anonymous_memory())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def large(scratch: Path, console: Console, blocks: int = 22) -> dict[str, Any]:
    """The large model, or its first blocks, within the memory that is allowed."""
    free = shutil.disk_usage(scratch).free
    if free < 20 * 10**9:
        raise SystemExit(f"{scratch} has {free / 1e9:.0f} GB of room and 20 are needed; give --scratch")
    with tempfile.TemporaryDirectory(dir=scratch, prefix="slimformer-streaming-") as place:
        params = write_checkpoint(Path(place) / "dense", LARGE | {"num_hidden_layers": blocks})
        stored = sum(file.stat().st_size for file in (Path(place) / "dense").glob("*.safetensors"))
        console.print(f"{params:,} parameters, {stored / 1e9:.2f} GB")
        ids = token_ids(LARGE["vocab_size"], 56, 256)
        wall, cpu = time.perf_counter(), time.process_time()
        with watched() as seen:
            done = compress_streamed(
                Path(place) / "dense", Path(place) / "small", ids, memory=MEMORY, macs=0.5, recipe="uniform",
                tokens=4096, seq_len=256, say=console.print, progress=_printed(console),
            )  # fmt: skip
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "params": params, "blocks": blocks, "bytes": stored, "allowed": MEMORY, "peak": seen[0],
        "estimate": done.estimate.to_json(),
        "macs": done.report.macs_kept, "small_params": done.report.small.params, "tokens": done.report.data["tokens"],
        "wall": wall, "cpu": cpu, "seconds": done.report.seconds, "threads": torch.get_num_threads(),
        "holds": seen[0] <= MEMORY,
    }  # fmt: skip


def _printed(console: Console) -> Callable[[str, int, int], None]:
    started = time.perf_counter()

    def progress(stage: str, done: int, total: int) -> None:
        if stage != "read":
            console.print(f"{time.perf_counter() - started:7.0f} s  {stage} {done}/{total}")

    return progress


def timed(scratch: Path, console: Console) -> dict[str, Any]:
    """Both paths on one small model: from the folder to the written checkpoint, without reloading it."""
    rows = []
    with tempfile.TemporaryDirectory(dir=scratch, prefix="slimformer-streaming-") as place:
        folder = Path(place)
        params = write_checkpoint(folder / "dense", SMALL)
        ids = token_ids(SMALL["vocab_size"], 64, 128)
        for refine in (False, True):
            how: dict[str, Any] = {"macs": 0.5, "recipe": "uniform", "refine": refine}
            found: dict[str, list[float]] = {"in memory": [], "streamed": []}
            for n in range(REPEATS):
                started = time.process_time()
                made = compress(str(folder / "dense"), ids, timing=False, **how)
                made.save(folder / f"memory-{refine}-{n}", verify=False)
                found["in memory"].append(time.process_time() - started)
                started = time.process_time()
                compress_streamed(
                    folder / "dense", folder / f"streamed-{refine}-{n}", ids, memory=10**11, verify=False, **how
                )
                found["streamed"].append(time.process_time() - started)
                console.print({path: f"{seconds[-1]:.2f} s" for path, seconds in found.items()})
            middle = {path: statistics.median(seconds) for path, seconds in found.items()}
            rows.append({"refine": refine, "cpu": found, "ratio": middle["streamed"] / middle["in memory"]})
    worst = max(row["ratio"] for row in rows)
    return {"params": params, "rows": rows, "target": MOST, "threads": torch.get_num_threads(), "holds": worst <= MOST}


def main() -> int:
    """Run one part, keep the other, and say whether the claim holds."""
    parser = argparse.ArgumentParser(
        description="Compress block by block: memory of a large model, time of a small one."
    )
    parser.add_argument("part", choices=["time", "large"])
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="a folder with room")
    parser.add_argument("--blocks", type=int, default=22, help="of the large model; fewer for a trial")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder for the result file")
    options, console = parser.parse_args(), Console(width=120)
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    scratch = options.scratch
    found = timed(scratch, console) if options.part == "time" else large(scratch, console, options.blocks)
    file = options.out / "streaming.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    about = {"benchmark": "streaming", "versions": versions(), "code": deciding_code()}
    write_json(file, {**known, **about, options.part: found}, indent=1)
    console.print(found)
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
