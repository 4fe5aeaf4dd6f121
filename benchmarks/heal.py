"""What healing wins back, by what learns, at equal minutes or, where a machine is shared, at equal tokens.

    nice -n 19 python benchmarks/heal.py stories15M --macs 0.5 --minutes 15 --threads 1
    nice -n 19 python benchmarks/heal.py stories15M --macs 0.5 --tokens 40000 --threads 1 --ways local global

A model is cut once. Every way of healing starts from that model, has the same budget on the same text, and is measured
on the report split of that text and on built-in sources that nobody fitted: excess nats per token over the dense
model, and the change of KL(dense ‖ small) with a 95 % interval over the same documents. "none" is the cut model as it
is. Results: benchmarks/results/heal-MODEL.json; every way is written when it is done.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import slimformer
from cells import HERE, write_json
from recipes import shared_file
from slimformer.evaluate.elsewhere import home_and_elsewhere
from slimformer.files.versions import versions
from slimformer.models.load import Loaded, load_model
from slimformer.steps.result import Result

SUBJECTS = {  # model, text
    "stories15M": (("models", "stories15M", "config.json"), ("data", "tinystories_sample", "tinystories_sample.txt")),
    "smollm2": ("demo:smollm2", ("data", "wikitext2", "valid.txt")),
}
WAYS: dict[str, dict[str, str]] = {
    "local": {"phases": "local"}, "global": {"phases": "global"}, "both": {},
    "lora": {"phases": "global", "train": "lora"}, "norms": {"train": "norms"},
}  # fmt: skip


def main() -> None:
    """Cut once, heal in every way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("model", choices=SUBJECTS)
    parser.add_argument("--macs", type=float, default=0.5)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float)
    budget.add_argument("--tokens", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    budget_asked = {"tokens": asked.tokens} if asked.tokens else {"minutes": asked.minutes or 15.0}
    place, text = SUBJECTS[asked.model]
    name, data = place if isinstance(place, str) else str(shared_file(*place).parent), str(shared_file(*text))
    loaded = load_model(name)
    cut = slimformer.compress(loaded, data, macs=asked.macs, timing=False)
    rows: list[dict[str, Any]] = [{"way": "none", **_measured(cut)}]
    for way in asked.ways:
        started = time.perf_counter()
        result = _healed(cut, loaded, data, {**budget_asked, **WAYS[way]})
        section = result.report.healing
        seconds = {"heal": result.report.seconds["heal"], "all": time.perf_counter() - started}
        rows.append({"way": way, **_measured(result), "healing": section, "seconds": seconds})
        print(way, {key: rows[-1][key] for key in ("nats_home", "nats_elsewhere")}, flush=True)
        content = {
            "benchmark": "heal", "model": asked.model, "macs": asked.macs, "budget": budget_asked,
            "threads": asked.threads, "data": Path(data).name, "rows": rows, "versions": versions(),
        }  # fmt: skip
        write_json(asked.out / f"heal-{asked.model}.json", content)


def _healed(cut: Result, dense: Loaded, data: str, how: dict[str, Any]) -> Result:
    small = replace(dense, model=copy.deepcopy(cut.model), folder=None)
    return slimformer.heal(small, data, teacher=dense, **how)


def _measured(result: Result) -> dict[str, Any]:
    """Excess nats at home and elsewhere, and KL."""
    short = home_and_elsewhere(result.report.metrics, result.report.other_data)
    assert short is not None
    return {key: short.get(key) for key in ("nats_home", "nats_elsewhere", "home", "elsewhere")}


if __name__ == "__main__":
    main()
