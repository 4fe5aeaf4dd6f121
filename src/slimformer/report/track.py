"""The numbers of a report, a task, a bench or a training, recorded by a tracker of experiments.

All three trackers work without a network.

    trackio       a local database; `trackio show` opens it
    wandb         a folder `wandb/`, sent later with `wandb sync`, unless WANDB_MODE says otherwise
    tensorboard   event files below `runs/`; `tensorboard --logdir runs` opens them

Packages are imported when a tracker is asked for, before the long work, so that a missing one is known at once.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slimformer.errors import TrackerNotFound
from slimformer.messages.words import option
from slimformer.report.names import last_name

PROJECT = "slimformer"
SETTINGS = ("model_type", "recipe", "format", "budget", "budget_by", "seq_len")
TASK_SETTINGS = ("task", "examples", "unit", "settings")
BENCH_SETTINGS = ("device", "threads", "seq_len", "new_tokens", "repeats", "warmup", "unit")
Record = Callable[[str, Mapping[str, Any]], None]  # kind of run, what was found


@dataclass(frozen=True)
class Run:
    """What there is to record: settings, numbers by name, and numbers by block (of a training: by evaluation)."""

    name: str
    settings: dict[str, Any]
    numbers: dict[str, float]
    by_block: list[dict[str, float]]


def tracker(name: str | None) -> Record:
    """The function that records a report with the tracker of that name; one that does nothing for none."""
    if name is None:
        return lambda _kind, _report: None
    if name not in TRACKERS:
        raise TrackerNotFound(f"there is no tracker {name!r}; choose from {', '.join(TRACKERS)}")
    if not _installed(name):
        raise TrackerNotFound(
            f"{option('track', name)} needs the package {name}; install it with pip install 'slimformer[{name}]'"
        )
    write = TRACKERS[name]

    def record(kind: str, report: Mapping[str, Any]) -> None:
        with redirect_stdout(sys.stderr):  # standard output is for results, perhaps as JSON; trackers like to talk
            write(run_of(kind, report))

    return record


def _installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a folder of that name is no package


def run_of(kind: str, result: Mapping[str, Any]) -> Run:
    """What a command found as a run. Where models and data lay on the disk is left out, as in the card."""
    if "slimformer_task" in result:
        settings = _flat({"dense": last_name(result["dense"]), **{key: result[key] for key in TASK_SETTINGS}})
        return Run(_name(kind, result["small"], result["task"]), dict(settings), dict(_task_numbers(result)), [])
    if "slimformer_bench" in result:
        settings = _flat({"dense": last_name(result["dense"]), **{key: result[key] for key in BENCH_SETTINGS}})
        return Run(_name(kind, result["small"]), dict(settings), dict(_bench_numbers(result)), [])
    if "slimformer_lab_run" in result:
        return _lab_run(kind, result)
    return _report_run(kind, result)


def _lab_run(kind: str, result: Mapping[str, Any]) -> Run:
    """A training: its evaluations are the steps of the curve, the end is the numbers."""
    settings = dict(_flat({"row": result["row"], "seed": result["seed"], **result["settings"]}))
    settings = {key: value for key, value in settings.items() if not key.endswith("path")}
    numbers = {key: result[key] for key in ("parameters", "q", "steps", "seconds", "cpu_seconds")}
    numbers |= dict(_flat({part: result[part] for part in ("train", "validation") if part in result}))
    return Run(_name(kind, result["name"]), settings, numbers, [dict(at) for at in result["history"]])


def _name(kind: str, model: str, *more: str) -> str:
    """It becomes the name of a folder."""
    parts = (kind, last_name(model), *more, time.strftime("%Y%m%d-%H%M%S"))
    return "-".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)


def _flat(numbers: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Settings within settings by names with slashes: trackers show one level."""
    for key, value in numbers.items():
        yield from _flat(value, f"{before}{key}/") if isinstance(value, Mapping) else [(f"{before}{key}", value)]


def _task_numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for metric in result["metrics"]:
        name = re.sub(r"[^\w.-]+", "_", metric["name"]).strip("_")
        numbers = {key: value for key, value in metric.items() if isinstance(value, float | int) and key != "level"}
        yield from ((f"{result['task']}/{name}/{key}", value) for key, value in numbers.items())


def _bench_numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for size in ("weights_bytes", "kv_cache_bytes"):
        yield from ((f"{which}/{size}", value) for which, value in result[size].items())
    for each in result["measurements"]:
        place = f"{each['phase']}/batch_{each['batch']}"
        yield from ((f"{place}/{key}", value) for key, value in each.items() if key not in ("phase", "batch"))


def _report_run(kind: str, report: Mapping[str, Any]) -> Run:
    name = _name(kind, report["model"], f"{report['macs_kept']:.2f}")
    data = report.get("data") or {}
    settings = {key: report[key] for key in SETTINGS if key in report}
    settings |= {"model": last_name(report["model"]), **{f"data_{key}": data.get(key) for key in ("hash", "seed")}}
    settings |= {f"version_{key}": value for key, value in report.get("versions", {}).items()}
    return Run(name, settings, dict(_numbers(report)), _by_block(report))


def _numbers(report: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    yield "macs_kept", report["macs_kept"]
    for which in ("dense", "small"):
        yield from ((f"{which}/{name}", value) for name, value in report[which].items())
    for metric in report.get("metrics", []):
        for part in ("dense", "small", "low", "high"):
            if metric.get(part) is not None:
                yield f"{metric['name']}/{part}", metric[part]
    for part in ("body", "end_to_end") if report.get("latency") else ():
        yield from ((f"latency/{part}/{name}", value) for name, value in report["latency"][part].items())
    yield from ((f"seconds/{stage}", value) for stage, value in report.get("seconds", {}).items())


def _by_block(report: Mapping[str, Any]) -> list[dict[str, float]]:
    """Units kept, and error before and after the refinement, of every block."""
    blocks: dict[int, dict[str, float]] = {}
    places = {site["site"]: site["block"] for site in report.get("sites", [])}
    units = {name: ".".join(name.split(".")[-2:]) for name in places}  # without stack and block
    for site in report.get("sites", []):
        blocks.setdefault(site["block"], {})[f"kept/{units[site['site']]}"] = site["keep"]
    for each in report.get("correction", []):
        if each["site"] in places:
            parts = [part for part in ("before", "after") if each[part] is not None]
            blocks[places[each["site"]]] |= {f"error/{units[each['site']]}/{part}": each[part] for part in parts}
    return [blocks[i] for i in sorted(blocks)]


def _trackio(run: Run) -> None:
    import trackio

    trackio.init(project=PROJECT, name=run.name, config=run.settings)
    for values in run.by_block:
        trackio.log(values)
    trackio.log(run.numbers)
    trackio.finish()


def _wandb(run: Run) -> None:
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    with wandb.init(project=PROJECT, name=run.name, config=run.settings, mode=mode) as active:
        for step, values in enumerate(run.by_block):
            active.log(values, step=step)
        active.summary.update(run.numbers)


def _tensorboard(run: Run) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(Path("runs") / run.name)) as writer:
        writer.add_text("settings", "\n\n".join(f"{key}: {value}" for key, value in run.settings.items()))
        for step, values in enumerate(run.by_block):
            for name, value in values.items():
                writer.add_scalar(name, value, step)
        for name, value in run.numbers.items():
            writer.add_scalar(name, value, 0)


TRACKERS: dict[str, Callable[[Run], None]] = {"trackio": _trackio, "wandb": _wandb, "tensorboard": _tensorboard}
