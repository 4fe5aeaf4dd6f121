"""What healing wins back, by what learns, at equal minutes or, where a machine is shared, at equal tokens.

    nice -n 19 python benchmarks/heal.py stories15M --macs 0.5 --minutes 15 --threads 1
    nice -n 19 python benchmarks/heal.py minilm --macs 0.3 --minutes 10 --threads 1 --ways global stat

A model is cut once. Every way of healing starts from that model, has the same budget on the same text, and is measured
on the report split of that text and on built-in sources that nobody fitted: excess nats per token over the dense
model, and the change of KL(dense ‖ small) (of 1 − cosine for MiniLM) with a 95 % interval over the same documents;
MiniLM on STS-B dev and on questions of QNLI dev, too. "none" is the cut model as it is. `stat` is the same budget of
distillation after a cut by STAT, which others begin from.
Results: benchmarks/results/heal-MODEL.json; every way is written when it is done, and found there by the next run.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import slimformer
from cells import HERE, write_json
from elsewhere import Amount, encoder_judge
from recipes import shared_file
from slimformer.evaluate.elsewhere import home_and_elsewhere
from slimformer.files.versions import versions
from slimformer.models.load import Loaded, load_model
from slimformer.steps.result import Result

SUBJECTS = {  # model, text
    "stories15M": (("models", "stories15M", "config.json"), ("data", "tinystories_sample", "tinystories_sample.txt")),
    "smollm2": ("demo:smollm2", ("data", "wikitext2", "valid.txt")),
    "minilm": ("demo:minilm", "builtin"),
}
WAYS: dict[str, dict[str, str]] = {
    "local": {"phases": "local"}, "global": {"phases": "global"}, "both": {},
    "lora": {"phases": "global", "train": "lora"}, "norms": {"train": "norms"}, "stat": {"phases": "global"},
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
    name, data = (each if isinstance(each, str) else str(shared_file(*each)) for each in (place, text))
    loaded = load_model(name if isinstance(place, str) else str(Path(name).parent))
    measure = _measure(asked.model, loaded)
    cuts = {}
    file = asked.out / f"heal-{asked.model}.json"
    content = {
        "benchmark": "heal", "model": asked.model, "macs": asked.macs, "budget": budget_asked,
        "threads": asked.threads, "data": Path(data).name, "versions": versions(), "rows": [],
    }  # fmt: skip
    if file.is_file() and all(
        (known := json.loads(file.read_text())).get(key) == content[key] for key in ("macs", "budget")
    ):
        content = known
    for way in ("none", *asked.ways):
        recipe = "stat" if way == "stat" else "balanced"
        if any(row["way"] == way for row in content["rows"]):
            continue
        if recipe not in cuts:
            cuts[recipe] = slimformer.compress(loaded, data, recipe=recipe, macs=asked.macs, timing=False)
        started, result, more = time.perf_counter(), cuts[recipe], dict[str, Any]()
        if way != "none":
            small = replace(loaded, model=copy.deepcopy(result.model), folder=None)
            result = slimformer.heal(small, data, teacher=loaded, **budget_asked, **WAYS[way])
            seconds = {"heal": result.report.seconds["heal"], "all": time.perf_counter() - started}
            more = {"healing": result.report.healing, "seconds": seconds}
        content["rows"].append({"way": way, **measure(result), **more})
        write_json(file, content)
        print(way, {key: value for key, value in content["rows"][-1].items() if key != "healing"}, flush=True)


def _measure(model: str, dense: Loaded) -> Callable[[Result], dict[str, Any]]:
    """Divergences at home and elsewhere and excess nats; of an encoder its scores."""
    judge = encoder_judge(dense, Amount()) if model == "minilm" else None

    def measured(result: Result) -> dict[str, Any]:
        short = home_and_elsewhere(result.report.metrics, result.report.other_data)
        assert short is not None
        found = {key: short.get(key) for key in ("nats_home", "nats_elsewhere", "home", "elsewhere")}
        return found if judge is None else {**found, "scores": judge(result.model)}

    return measured


if __name__ == "__main__":
    main()
