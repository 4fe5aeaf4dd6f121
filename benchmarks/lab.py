"""The experiments that come with the package (`slimformer lab ls`), run with `slimformer lab run`, and what they found.

    python benchmarks/lab.py --list                          what there is, and what it costs
    python benchmarks/lab.py minimal-encoders --dry-run      hours, measured on this machine
    python benchmarks/lab.py minimal-encoders --workers 2    run (or go on), write benchmarks/results/lab-<name>.json
    python benchmarks/lab.py resume                          a runner killed thrice, beside one that was not

Data that npm has are fetched (`slimformer lab fetch`); the stories lie in the folder of data beside the repository.
Runs lie in ~/.cache/slimformer/benchmarks/lab/<name>; what has ended there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from slimformer.errors import SlimformerError
from slimformer.lab.data.packages import PACKAGES, fetch
from slimformer.lab.experiments import names
from slimformer.lab.folder import read_folder
from slimformer.lab.settings import load_experiment
from slimformer.lab.table import summarise

HERE = Path(__file__).resolve().parent
STORIES = HERE.parents[1] / "shared" / "data" / "tinystories_sample" / "tinystories_sample.txt"
RUNS = Path("~/.cache/slimformer/benchmarks/lab").expanduser()
RESULTS = HERE / "results"
KILLS = 3
DIGITS = {
    "name": "resume", "task": "image-classes", "datasets": {"digits": {"source": "digits"}},
    "model": {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 32, "patch_size": 2, "hidden_dropout_prob": 0.1},
    "variants": {"MLP of ratio 1": {}, "MLP of ratio 4": {"intermediate_size": 128}},
    "seeds": [0, 1], "epochs": 4, "batch_size": 64, "optimiser": {"lr": 0.003}, "augmentation": {"shift": 1},
    "checkpoint_every": 0.5, "save_models": True,
}  # fmt: skip


def command(file: str | Path, out: Path, *more: str) -> list[str]:
    """`slimformer lab run`, with the Python that runs this."""
    return [sys.executable, "-m", "slimformer", "lab", "run", str(file), "--out", str(out), *more]


def brought(name: str) -> list[str]:
    """Fetch the data of an experiment; the options that say where the rest lie."""
    datasets = load_experiment(name).datasets
    for data in datasets:
        if data in PACKAGES:
            fetch(data)
    return ["--data", f"stories={STORIES}"] if "stories" in datasets else []


def run(name: str, workers: int, *more: str) -> None:
    """Run an experiment to its end, and write what it found."""
    started = time.perf_counter()
    code = subprocess.run(command(name, RUNS / name, "--workers", str(workers), *brought(name), *more)).returncode
    if code:
        sys.exit(code)
    if "--dry-run" not in more:
        write(name, {"workers": workers, "last_call_seconds": time.perf_counter() - started, **found(RUNS / name)})


def found(place: Path) -> dict[str, Any]:
    """Settings, rows with mean and deviation, and the end of every run."""
    experiment, rows, results = read_folder(place)
    kept = ("row", "seed", "steps", "note", "train", "validation", "seconds", "cpu_seconds", "digest")
    return {
        "name": experiment.name, "summary": experiment.summary,
        "published_source": experiment.published.source if experiment.published else None,
        "rows": summarise(results, experiment, rows),
        "data": {each["labels"]["dataset"]: each["data"] for each in results},
        "epochs": {each["labels"]["dataset"]: each["settings"]["epochs"] for each in results},
        "batch_size": experiment.batch_size, "optimiser": experiment.optimiser.model_dump(),
        "runs": [{key: each.get(key) for key in kept} for each in results],
    }  # fmt: skip


def write(name: str, results: dict[str, Any]) -> None:
    """benchmarks/results/lab-<name>.json."""
    machine = {"python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count()}
    text = json.dumps({"benchmark": "lab", "machine": machine, **results}, indent=1)
    (RESULTS / f"lab-{name}.json").write_text(text + "\n")


def resume() -> None:
    """Kill the runner thrice in the middle, let it finish, and compare everything with a run left in peace."""
    with tempfile.TemporaryDirectory() as place:
        file, whole, torn = (Path(place) / part for part in ("resume.yaml", "whole", "torn"))
        file.write_text(yaml.safe_dump(DIGITS))
        quiet = ("--no-estimate", "-q", "--workers", "2")
        subprocess.run(command(file, whole, *quiet), check=True)
        kills = [_kill(command(file, torn, *quiet), torn, i) for i in range(KILLS)]
        subprocess.run(command(file, torn, *quiet), check=True)
        tables = [_lasting(json.loads((folder / "table.json").read_text())) for folder in (whole, torn)]
        weights = [_weights(folder) for folder in (whole, torn)]
        same = weights[0].keys() == weights[1].keys() and all(
            torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items()
        )
        told = {"kills": kills, "same_table": tables[0] == tables[1], "same_weights": same, **found(torn)}
        write("resume", {**told, "tensors": len(weights[0])})
        shutil.rmtree(place, ignore_errors=True)


def _kill(argv: list[str], folder: Path, number: int) -> dict[str, int]:
    """Start, wait until states have been written since, and send SIGKILL; how much was there then."""
    started, process = time.time(), subprocess.Popen(argv)
    while process.poll() is None:
        fresh = [file for file in folder.glob("runs/*.safetensors") if file.stat().st_mtime > started]
        if len(fresh) >= 2 or (number and fresh):
            break
        time.sleep(0.02)
    time.sleep(0.3 * (number + 1))
    process.send_signal(signal.SIGKILL)
    process.wait()
    runs = folder / "runs"
    return {"finished": len(list(runs.glob("*.json"))), "under_way": len(list(runs.glob("*.safetensors")))}


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    files = sorted(folder.glob("models/*/model.safetensors"))
    return {f"{file.parent.name}/{name}": tensor for file in files for name, tensor in load_file(file).items()}


def _lasting(table: dict[str, Any]) -> list[dict[str, Any]]:
    """Without the seconds."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in table["rows"]]


def main() -> None:
    """Run what is named."""
    parser = argparse.ArgumentParser(description="Experiments of the lab.")
    parser.add_argument("name", nargs="?", choices=[*names(), "resume"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--dry-run", action="store_true", help="hours only")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    if options.list or options.name is None:
        for name in names():
            print(f"{name}\n    {load_experiment(name).summary}")
        return
    try:
        if options.name == "resume":
            resume()
        else:
            run(options.name, options.workers, *(["--dry-run"] if options.dry_run else []))
    except SlimformerError as error:
        sys.exit(f"lab.py: {error}")


if __name__ == "__main__":
    main()
