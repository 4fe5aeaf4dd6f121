"""Tables of README and docs, rendered from benchmarks/results/*.json, and those of steps from the code.

    python benchmarks/render.py             write them
    python benchmarks/render.py --check     only say which files are out of date (exit code 1)

A table stands between two comments, the first of which names a result file, and one of its reports if it has several:

    <!-- results:quality-smollm2/wikitext2 -->
    <!-- /results -->

`results:steps` are the steps of recipes, `results:steps/cut` one of them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coverage_tables import coverage
from elsewhere_tables import elsewhere
from ends_tables import ends
from export_tables import export_speed
from hardening_tables import hardening
from heal_tables import heal
from lab_tables import lab
from linformer_tables import linformer_batch, linformer_speed
from llama_cpp_tables import llama_cpp
from minimal_tables import minimal_speed
from mlp_tables import mlp
from model_type_tables import discovery, experts, model_types
from quantization_tables import quantization
from rank_tables import attention_speed, truncation
from render_heads import HEADS
from retrofit_tables import retrofit
from spectra_tables import spectra_table
from stages_tables import stages
from step_tables import steps
from streaming_tables import distributed, streaming
from tables import NothingToRender, cascade, certificate, front, markdown, nested_time, stsb
from task_tables import tasks
from three_models_tables import three_models
from towers_tables import towers
from verdicts import grid, level_text, metric_name

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"(<!-- results:(?P<name>[^\s]+) -->\n).*?(<!-- /results -->)", re.DOTALL)
NAMES = {
    "magnitude": "magnitude columns",
    "wanda-sp": "Wanda-sp",
    "flap": "FLAP",
    "leverage": "leverage scores + least squares",
    "stat-uniform": "STAT, uniform",
    "stat": "STAT, its own allocation",
    "modegpt": "MoDeGPT, three modules",
    "slicegpt": "SliceGPT",
    "shortgpt": "ShortGPT, blocks dropped",
    "replaceme": "ReplaceMe, blocks made linear",
    "nested": "slimformer `balanced --no-refine`",
    "plain": "slimformer `balanced --format plain`",
    "uniform": "slimformer `uniform`",
    "heads": "slimformer `balanced`, attention by whole heads",
    "neurons": "slimformer `balanced`, no linear paths",
    "depth": "slimformer `depth`",
    "balanced": "**slimformer `balanced`**",
    "bypass": "slimformer `bypass`",
    "linear-mlp": "slimformer `linear-mlp`",
}


def quality(results: dict[str, Any], report: str | None) -> str:
    """Methods × budgets, for one report or for all of them."""
    if report in PARTS:
        return PARTS[report](results)
    if report is not None and report not in results["dense"]:
        raise NothingToRender(f"there is no report {report!r}; choose from {', '.join(results['dense'])}")
    parts = []
    for name, dense in results["dense"].items():
        if report in (None, name):
            header, rows = grid(results, name)
            named = [[NAMES.get(row[0], row[0]), *row[1:]] for row in rows]
            parts.append(f"{caption(results, name, dense)}\n\n{markdown(header, named)}")
    return "\n\n".join(parts)


def caption(results: dict[str, Any], report: str, dense: dict[str, Any]) -> str:
    """What the numbers are, in one line."""
    settings = results["settings"]
    held_out = report.split(" ")[0]
    unit = "images" if settings["tokens"]["fit"] == settings["examples"]["fit"] else "tokens"
    return (
        f"{settings['model']}, {held_out}: {metric_name(dense)} at kept block MACs "
        f"(dense {level_text(dense)}; {settings['examples'][held_out]:,} held-out examples, "
        f"{settings['tokens']['fit']:,} calibration {unit}; = no significant difference to `{results['ours']}`, "
        f"! significantly better than it)"
    )


VARIANTS = {
    "balanced": "`balanced`",
    "interpolative": "interpolative decomposition",
    "squares": "squared errors",
    "token-weights": "squared errors in the metric, tokens weighted by 1/σ² of the stream",
    "no-probes": "by the metric alone",
    "probes-believed": "probes believed as measured",
    "uniform": "equal shares, whole heads (beside: whole heads only)",
    "heads": "whole heads only",
    "ranks": "ranks only",
    "nested": "least squares on the dense model's features (`--no-refine`)",
    "heads-nested": "the same, whole heads only",
    "heads-no-correction": "whole heads, no least squares, only the mean absorbed",
}


# Excess nats to reach on held-out text of the calibrated kind, by share of the block MACs; most of STAT's excess
TARGETS = {
    "stories15M": {0.8: 0.22, 0.7: 0.43, 0.6: 0.68, 0.5: 0.95},
    "smollm2": {0.8: 0.27, 0.7: 0.45, 0.6: 0.62, 0.5: 0.90},
}
SHARE_OF_STAT = {"balanced": 0.65, "plain": 0.8}


def targets(results: dict[str, Any]) -> str:
    """What was to be reached, and what was."""
    name, report = results["settings"]["model"], next(iter(results["dense"]))
    found = {(row["method"], row["budget"]): row["reports"][report]["excess"] for row in results["cells"]}
    budgets = list(TARGETS[name])
    rows = [["excess nats of `balanced`", *(_against(found["balanced", b], TARGETS[name][b]) for b in budgets)]]
    for method, most in SHARE_OF_STAT.items():
        if (method, budgets[0]) in found:
            shares = (found[method, b] / found["stat-uniform", b] for b in budgets)
            title = f"`{method}` over STAT, uniform" if method == "balanced" else "`--format plain` over STAT, uniform"
            rows.append([title, *(_against(share, most) for share in shares)])
    header = ["measured (target)", *(f"{100 * b:g} %" for b in budgets)]
    return f"{name}, {report}; targets that are missed are marked ✗:\n\n{markdown(header, rows)}"


def ranks(results: dict[str, Any]) -> str:
    """What ranks are worth: whole heads beside heads or ranks, whichever the plan takes, and both caches."""
    name, report = results["settings"]["model"], next(iter(results["dense"]))
    found = {(row["method"], row["budget"]): row for row in results["cells"]}
    budgets = sorted({budget for method, budget in found if method == "heads"}, reverse=True)
    if not budgets:
        raise NothingToRender(f"{name} has no row of whole heads")
    rows = [
        [NAMES[method], *(f"{found[method, b]['reports'][report]['excess']:.3f}" for b in budgets)]
        for method in ("heads", "balanced")
    ]
    gaps = [found["heads", b]["reports"][report] for b in budgets]
    rows.append(["heads − balanced", *(f"{g['gap']:+.3f} [{g['gap_low']:+.3f}, {g['gap_high']:+.3f}]" for g in gaps)])
    for method, title in (("heads", "KV cache, whole heads"), ("balanced", "KV cache, heads or ranks")):
        kept = [found[method, b].get("kv_cache") for b in budgets]
        if None not in kept:
            rows.append([title, *(f"{100 * share:.0f} %" for share in kept)])
    header = ["excess over the dense model", *(f"{100 * b:g} %" for b in budgets)]
    return f"{name}, {report} (95 % intervals, paired):\n\n{markdown(header, rows)}"


PARTS = {"targets": targets, "ranks": ranks}


def _against(value: float, most: float) -> str:
    return f"{value:.2f} (≤ {most:g}){'' if value <= most else ' ✗'}"


def ablation(results: dict[str, Any], _report: str | None) -> str:
    """What was changed × budgets, in excess nats, with marks for what is no different and what is better."""
    (report,) = results["dense"]
    budgets = sorted({row["budget"] for row in results["cells"]}, reverse=True)
    found: dict[str, list[Any]] = {}
    for row in sorted(results["cells"], key=lambda row: -row["budget"]):
        found.setdefault(row["method"], []).append(row["reports"][report])
    marks = {"better": "", "tie": " =", "worse": " !", "ours": ""}
    rows = [
        [part, VARIANTS.get(name, name), *(f"{at['excess']:.3f}{marks[at['verdict']]}" for at in found[name])]
        for name, part in results["parts"].items()
    ]
    settings = results["settings"]
    what = (
        f"{settings['model']}, {report}: ln(perplexity / dense perplexity) at kept block MACs "
        f"({settings['examples'][report]:,} held-out windows; = no significant difference to `balanced`, "
        "! significantly better than it)"
    )
    return f"{what}\n\n{markdown(['part', 'in place of the default', *(f'{100 * b:g} %' for b in budgets)], rows)}"


def speed(results: dict[str, Any], _report: str | None) -> str:
    """Three ratios, each with its target."""
    rows = []
    if found := results.get("calibration"):
        what = f"calibrate + profile over the FLOP bound ({found['model']}, {found['tokens']:,} tokens)"
        rows.append([what, f"{found['ratio']:.2f}", f"≤ {found['target']:g}"])
    if found := results.get("pivots"):
        what = f"pivoted QR over Gram + pivoted Cholesky ({found['tokens']:,} tokens × {found['width']:,})"
        rows.append([what, f"{found['ratio']:.1f}", f"≥ {found['target']:g}"])
    for cell in results.get("latency", {}).get("cells", []):
        where = f"{cell['macs']:.2f} of the MACs, {cell['format']}, batch {cell['batch']}"
        what = f"MAC ratio over body latency ratio ({where})"
        rows.append([what, f"{cell['of_ideal']:.2f}", f"≥ {results['latency']['target']:g}"])
    threads = results["machine"]["threads"]
    return f"Ratios within one run, {threads} threads:\n\n{markdown(['ratio', 'measured', 'target'], rows)}"


def spectra(results: dict[str, Any], report: str | None) -> str:
    """One of several tables about the same models."""
    found = spectra_table(results, report)
    if found is None:
        raise NothingToRender(f"there is no table {report!r} of spectra")
    caption, header, rows = found
    return f"{caption}:\n\n{markdown(header, rows)}"


RENDERERS: dict[str, Callable[[dict[str, Any], str | None], str]] = {
    "quality": quality, "ablation": ablation, "speed": speed, "cascade": cascade, "certificate": certificate,
    "front": front, "nested_time": nested_time, "stsb": stsb, "truncation": truncation,
    "attention_speed": attention_speed, "spectra": spectra, "tasks": tasks, "mlp": mlp, "retrofit": retrofit,
    "minimal_speed": minimal_speed, "linformer_speed": linformer_speed, "linformer_batch": linformer_batch, "lab": lab,
    "export_speed": export_speed, "quantization": quantization, "streaming": streaming, "distributed": distributed,
    "coverage": coverage, "elsewhere": elsewhere, "model_types": model_types, "discovery": discovery, "ends": ends,
    "llama_cpp": llama_cpp, "experts": experts,
    "hardening": hardening, "heal": heal, "three_models": three_models, "stages": stages,
    "towers": towers,
    **HEADS,
}  # fmt: skip


def table(name: str) -> str:
    """The table called `file` or `file/report`."""
    stem, _, report = name.partition("/")
    if stem == "steps":
        return steps(report or None)
    file = RESULTS / f"{stem}.json"
    if not file.is_file():
        raise NothingToRender(f"there is no {file.relative_to(ROOT)}")
    results = json.loads(file.read_text(encoding="utf-8"))
    if results.get("benchmark") not in RENDERERS:
        raise NothingToRender(f"{file.name}: no table is known for {results.get('benchmark')!r}")
    return RENDERERS[results["benchmark"]](results, report.replace("+", " ") or None)


def rendered(text: str) -> str:
    """The document with every table between markers made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{table(found['name'])}\n\n{found[3]}", text)


def documents() -> list[Path]:
    """Where tables may stand."""
    return [file for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if file.is_file()]


def main() -> int:
    """Write the tables, or with --check only compare."""
    parser = argparse.ArgumentParser(description="Render the result tables of README and docs.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is stale")
    check = parser.parse_args().check
    stale = 0
    for file in documents():
        old = file.read_text(encoding="utf-8")
        try:
            new = rendered(old)
        except NothingToRender as error:
            print(f"render.py: {file.relative_to(ROOT)}: {error}", file=sys.stderr)
            return 2
        if new != old:
            stale += 1
            print(f"{'stale' if check else 'written'}: {file.relative_to(ROOT)}")
            if not check:
                file.write_text(new, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
