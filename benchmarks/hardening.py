"""Claim: whatever is in a file and whenever a run is killed, there is no traceback and no half checkpoint.

    python benchmarks/hardening.py [fuzz] [kills] [--examples 700] [--times 40]

fuzz    hypothesis spoils files of every kind (`tests/spoiling.py`); readers must read or refuse them in one line.
kills   compress (in memory and streaming), cut, calibrate and lab run are killed (SIGKILL) at random moments after
        their first progress event. A folder that is then there under its final name must be whole; in the end an
        unharmed run must succeed.

Results: benchmarks/results/hardening.json.
"""
# ruff: noqa: E402  (what is spoilt and how commands are run is said in tests/)

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import torch
import transformers
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rich.progress import Progress
from transformers import AutoModelForImageClassification

from cells import write_json
from slimformer.calibrate.store import open_statistics
from slimformer.checkpoint.load import load
from slimformer.lab.folder import read_folder
from spoiling import Target, attempt, targets
from terminal import save_tiny, slimformer, write_texts

RESULTS = HERE / "results" / "hardening.json"


# --- spoilt files -----------------------------------------------------------------------------------------------


def fuzz(examples: int, root: Path) -> dict[str, Any]:
    """Outcomes by file; of an error that is not ours the smallest example hypothesis finds is printed."""
    found: dict[str, Any] = {}
    tracebacks: list[str] = []
    for name, target in targets(root).items():
        seen: Counter[str] = Counter()
        try:
            spoil_often(target, examples, root / "spoilt", seen)
        except Exception as error:
            traceback.print_exc()
            tracebacks.append(f"{name}: {error!r}")
        found[name] = dict(seen)
        print(f"{name}: {dict(seen)}", flush=True)
    return {"files": found, "examples": sum(sum(each.values()) for each in found.values()), "tracebacks": tracebacks}


def spoil_often(target: Target, examples: int, folder: Path, seen: Counter[str]) -> None:
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(draw=st.randoms(use_true_random=False))
    def tried(draw: random.Random) -> None:
        seen[attempt(target, draw, folder)] += 1

    tried()


# --- killed runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A command, where its result goes, and what tells a whole one."""

    arguments: tuple[object, ...]
    out: Path
    whole: Callable[[Path], object]


def jobs(root: Path) -> dict[str, Job]:
    """Commands on tiny models, a second each."""
    model, text = save_tiny(root / "llama", "llama"), write_texts(root / "text.txt")
    brief = ("--data", text, "--tokens", 600)
    ended = slimformer("calibrate", model, *brief, "--out", root / "stats")
    assert ended.code == 0, ended.err
    lab = root / "lab.yaml"
    lab.write_text(LAB)
    cut = ("--macs", 0.6, "--no-verify", "--out", root / "cut")
    compressed = ("--macs", 0.6, *brief, "--no-timing", "--out", root / "small")
    streamed = ("--macs", 0.6, *brief, "--memory", "2GB", "--out", root / "streamed")
    return {
        "compress": Job(("compress", model, *compressed), root / "small", whole_model),
        "compress --memory": Job(("compress", model, *streamed), root / "streamed", whole_model),
        "cut": Job(("cut", root / "stats", *cut), root / "cut", whole_model),
        "calibrate": Job(("calibrate", model, *brief, "--out", root / "again"), root / "again", whole_statistics),
        "lab run": Job(
            ("lab", "run", lab, "--out", root / "lab", "--workers", 1, "--no-estimate"), root / "lab", whole_runs
        ),
    }


LAB = """
name: killed
task: image-classes
datasets: {digits: {source: digits}}
model: {model_type: vit, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, patch_size: 4}
seeds: [0, 1]
epochs: 2
batch_size: 128
checkpoint_every: 0.1
save_models: true
"""  # noqa: E501


def whole_model(folder: Path) -> None:
    load(folder)
    json.loads((folder / "plan.json").read_text())


def whole_statistics(folder: Path) -> None:
    statistics = open_statistics(folder)
    for i in range(statistics.provenance.n_blocks):
        statistics.block(i)
    statistics.weights()


def whole_runs(folder: Path) -> None:
    """What runs have recorded can be read, and the model of every run that ended opens."""
    if (folder / "lab.json").is_file():
        read_folder(folder)
    for run in (folder / "runs").glob("*.json"):
        AutoModelForImageClassification.from_pretrained(folder / "models" / run.stem)


def started(job: Job) -> tuple[int, int]:
    """A process that does the job, and a pipe that tells its first progress event."""
    heard, say = os.pipe()
    pid = os.fork()
    if pid:
        os.close(say)
        return pid, heard
    os.setsid()
    add_task = Progress.add_task

    def told(self: Progress, *args: Any, **kwargs: Any) -> Any:
        os.write(say, b".")
        return add_task(self, *args, **kwargs)

    Progress.add_task = told  # type: ignore[method-assign]
    ended = slimformer(*job.arguments)
    if ended.code:
        os.write(2, ended.err.encode())
    os._exit(ended.code)


def killed(job: Job, after: float) -> bool:
    """Whether a run was still going so many seconds after its first progress event, when it was killed."""
    pid, heard = started(job)
    os.read(heard, 1)
    os.close(heard)
    time.sleep(after)
    gone, _ = os.waitpid(pid, os.WNOHANG)
    if gone:
        return False
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


def kills(times: int, root: Path, seed: int = 0) -> dict[str, Any]:
    """Kill every job so many times; what is there afterwards is whole or nothing."""
    draw, found = random.Random(seed), {}
    for name, job in jobs(root).items():
        seconds = unharmed(job)
        whole = shutil.copytree(job.out, root / f"whole {name}")
        count, bad, there = 0, 0, 0
        while count < times:
            again = draw.random() < 0.3
            if name != "lab run" or not again:  # a lab goes on with what is there, the others replace it
                shutil.rmtree(job.out, ignore_errors=True)
            if again and name != "lab run":
                shutil.copytree(whole, job.out)
            force = ("--force",) if again and name != "lab run" else ()
            hit = killed(replace(job, arguments=(*job.arguments, *force)), draw.uniform(0, 1.05 * seconds))
            count, there = count + hit, there + (hit and again)
            bad += broken(name, job, must_be_there=bool(force))
        shutil.rmtree(job.out, ignore_errors=True)
        last = slimformer(*job.arguments)
        left = [path.name for path in job.out.parent.iterdir() if f".{job.out.name}." in path.name]
        found[name] = {
            "kills": count, "over_a_result": there, "bad": bad, "seconds": seconds, "next_run": last.code, "left": left,
        }  # fmt: skip
        print(f"{name}: {found[name]}", flush=True)
    return {
        "jobs": found,
        "kills": sum(job["kills"] for job in found.values()),
        "bad": sum(job["bad"] for job in found.values()),
    }


def unharmed(job: Job) -> float:
    """Seconds from the first progress event to the end of a run that nobody kills."""
    pid, heard = started(job)
    os.read(heard, 1)
    began = time.perf_counter()
    _, status = os.waitpid(pid, 0)
    os.close(heard)
    if status:
        raise SystemExit(f"{job.arguments[0]} does not go through unharmed")
    return time.perf_counter() - began


def broken(name: str, job: Job, *, must_be_there: bool) -> bool:
    """Whether what is there under the final name is not whole, or an older result has gone without a successor."""
    try:
        if must_be_there or job.out.exists():
            job.whole(job.out)
    except Exception as error:
        print(f"{name}: {error!r}", flush=True)
        return True
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Spoilt files and killed runs.")
    parser.add_argument("parts", nargs="*", help="fuzz, kills; both unless told")
    parser.add_argument("--examples", type=int, default=700, help="of every kind of file")
    parser.add_argument("--times", type=int, default=40, help="each command is killed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"benchmark": "hardening"}
    for part in asked.parts or ("fuzz", "kills"):
        with tempfile.TemporaryDirectory(prefix="hardening-") as scratch:
            root = Path(scratch)
            known[part] = fuzz(asked.examples, root) if part == "fuzz" else kills(asked.times, root)
        write_json(RESULTS, known, indent=1)
    harmed = (
        known.get("fuzz", {}).get("tracebacks")
        or known.get("kills", {}).get("bad", 0)
        or any(job["next_run"] or job["left"] for job in known.get("kills", {}).get("jobs", {}).values())
    )
    return 1 if harmed else 0


if __name__ == "__main__":
    raise SystemExit(main())
