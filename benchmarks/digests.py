"""What must not change when code is moved: hashes of plans and weights, recipe by recipe and family by family.

    python benchmarks/digests.py write FILE         before a change
    python benchmarks/digests.py compare FILE       after it; exit code 1 where anything differs

Tiny random models of every family with every recipe, stories15M with the main ones, and models that are quantized or
made sparse. Bits depend on the processor and on the number of threads (one here), so both files must come from one
machine; the file says which it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
import transformers

import slimformer
from families import FAMILIES, MODEL_TYPES
from recipes import shared_file
from slimformer.compress import quantize, sparsify
from slimformer.errors import SlimformerError
from terminal import save_tiny, write_images, write_texts

BUDGET = 0.6
RECIPES = ("balanced", "fast", "bypass", "linear-mlp", "stat", "uniform", "depth", "lossless")
REAL = ("balanced", "stat", "uniform", "lossless", "depth")
UNBUDGETED = ("lossless",)
Case = Callable[[], Any]


def digest(result: Any) -> dict[str, str]:
    """Hashes of the plan and of all weights, in the order of their names."""
    weights = hashlib.sha256()
    for name, tensor in sorted(result.model.state_dict().items()):
        weights.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        weights.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return {
        "plan": hashlib.sha256(result.plan.to_json().encode()).hexdigest()[:16],
        "weights": weights.hexdigest()[:16],
    }


def compressed(model: Path, recipe: str, data: Path, **how: Any) -> Case:
    """One compression, with a budget where the recipe takes one."""
    budget = {} if recipe in UNBUDGETED else {"macs": BUDGET}
    told = {"data": data, "tokens": 600} if recipe not in UNBUDGETED else {}
    return lambda: slimformer.compress(model, recipe=recipe, timing=False, **{**budget, **told, **how})


def cases(root: Path) -> Iterator[tuple[str, Case]]:
    """Everything that is made, by name."""
    text, images = write_texts(root / "text.txt"), write_images(root / "images")
    for kind in MODEL_TYPES:
        model, data = save_tiny(root / kind, kind), images if FAMILIES[kind].image else text
        for recipe in RECIPES:
            yield f"{kind} {recipe}", compressed(model, recipe, data)
        yield f"{kind} balanced plain", compressed(model, "balanced", data, format="plain")
        grouped = {"k": 16, "window": 16, "keep_exact": 1, "macs": None}
        yield f"{kind} long-context", compressed(model, "long-context", data, **grouped)
    for kind in ("llama", "bert"):
        yield f"{kind} balanced 8 bits", compressed(root / kind, "balanced", text, bits=8)
        yield f"{kind} balanced in 40 kB", compressed(root / kind, "balanced", text, size=40_000, macs=None)
        yield (
            f"{kind} quantize 4",
            lambda m=root / kind: quantize(m, text, bits=4, tokens=600, timing=False),
        )
        yield f"{kind} sparsify 2:4", lambda m=root / kind: sparsify(m, text, tokens=600, timing=False)
    stories = shared_file("models", "stories15M", "config.json").parent
    told = shared_file("data", "tinystories_sample", "tinystories_sample.txt")
    for recipe in REAL:
        yield (
            f"stories15M {recipe}",
            compressed(stories, recipe, told, **({} if recipe in UNBUDGETED else {"tokens": 4096})),
        )


def everything(only: str) -> dict[str, Any]:
    """The hashes of every case whose name holds `only`."""
    found, root = {}, Path(tempfile.gettempdir()) / "slimformer-digests"  # not a new name: splits of images go by paths
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name, make in cases(root):
        if only not in name:
            continue
        try:
            found[name] = digest(make())
        except SlimformerError as error:
            found[name] = {"refused": type(error).__name__}
        print(f"{name}: {found[name]}", flush=True)
    shutil.rmtree(root)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("write", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    found = everything(options.only)
    if options.what == "write":
        machine = {
            "processor": platform.processor() or platform.machine(),
            "kernels": torch.backends.cpu.get_cpu_capability(),
        }
        options.file.write_text(json.dumps({"machine": machine, "torch": torch.__version__, "cases": found}, indent=1))
        return 0
    before = json.loads(options.file.read_text())["cases"]
    changed = [name for name in found if found[name] != before.get(name)]
    for name in changed:
        print(f"CHANGED {name}: {before.get(name)} -> {found[name]}")
    print(f"{len(found)} cases, {len(changed)} changed")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
