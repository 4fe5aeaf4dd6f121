"""Claim: error-compensated rounding loses less than rounding to the nearest, on dense and on cut models; and what
cutting, rounding and zeros cost at equal bytes.

    python benchmarks/quantization.py                       stories15M
    python benchmarks/quantization.py --fit 4096 --windows 8

One subject in float32. Every row is a model that is made from the same calibration documents and measured on windows of
held-out documents; differences are paired over windows. "bits" are those of a weight of the dense blocks, steps
included, so that equal bits are equal bytes of blocks; embeddings stay as they are and are counted apart. The 4-bit
models, dense and cut, are saved, and opened again by plain `from_pretrained` in a fresh process.
Results: benchmarks/results/quantization.json. About eight minutes on one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel

from cells import HERE, PACKAGE, code_hash, write_json
from quality import statistics_of
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.save import save
from slimformer.decompose.rounding import Grid
from slimformer.decompose.sparse import Pattern
from slimformer.evaluate import file_size, paired_difference
from slimformer.evaluate.compare import first_tokens
from slimformer.models import describe
from slimformer.plan import Budget
from slimformer.plan.recipe import load_recipe
from slimformer.probe import keep_probes
from slimformer.quantize.apply import Quantized, quantized, sparsified
from slimformer.quantize.pack import packed, stored_bytes
from slimformer.stages import carry_out, make_plan, profile, versions
from subjects import Score, Subject, subject
from verdicts import excess_statement, level_statement

RESULTS = HERE / "results" / "quantization.json"
GROUP = 32
CUT = 0.7
FRESH = """
import sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
folder, ids, wanted = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(folder).eval()
with torch.no_grad():
    found = model(load_file(ids)["ids"]).logits
print("largest difference", float((found - load_file(wanted)["logits"]).abs().max()))
"""


@dataclass(frozen=True)
class Row:
    """One model: what was done, what it takes, and its scores."""

    cut: str
    stored: str
    method: str
    bits: float  # of a weight of the dense blocks
    bytes: int
    score: Score
    seconds: float


class Table:
    """Rows as they are made, each measured at once."""

    def __init__(self, made: Subject, windows: int, say: Callable[[str], None]) -> None:
        self.made, self.say = made, say
        self.report, batches = next(iter(made.reports.items()))
        self.held_out = first_tokens(batches, windows * made.seq_len)
        self.dense_weights = _linear_weights(made.model)
        self.rows: list[Row] = []

    def add(
        self,
        model: PreTrainedModel,
        cut: str,
        stored: str,
        method: str,
        started: float,
        narrow: Quantized | None = None,
    ) -> None:
        seconds = time.process_time() - started
        weights = _linear_weights(model)
        if narrow is None:
            total, bits = sum(p.numel() for p in model.parameters()) * 4, 32.0 * weights
        else:
            total = stored_bytes(narrow, torch.float32)
            bits = sum(layer.bits * layer.Q.numel() for layer in narrow.layers.values())
        score = _scores(self.made, model, self.held_out)
        self.rows.append(Row(cut, stored, method, bits / self.dense_weights, total, score, seconds))
        ppl = level_statement("", score)["ppl"]
        self.say(f"{cut} · {stored} · {method}: perplexity {ppl:.3f}, {total / 1e6:.1f} MB, {seconds:.0f} s")


def _scores(made: Subject, model: PreTrainedModel, batches: Sequence[Batch]) -> Score:
    from slimformer.evaluate import perplexity

    found = perplexity(model, batches)
    return Score(found.nll_per_window, tuple(map(float, found.tokens_per_window)))


def _linear_weights(model: PreTrainedModel) -> int:
    from slimformer.quantize.collect import linear_layers

    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return sum(model.get_submodule(name).weight.numel() for name in names)


def cut_to(made: Subject, budget: Budget, say: Callable[[str], None]) -> PreTrainedModel:
    """The model cut to a budget as `slimformer cut` does."""
    statistics, recipe = statistics_of(made, say), load_recipe("balanced")
    curves = profile(made.model, statistics, recipe)
    if not statistics.probes():
        keep_probes(made.model, statistics, made.calibration["select"])
    plan = make_plan(made.model, statistics, curves, budget=budget, recipe=recipe)
    return carry_out(plan, made.model, statistics, curves)


def reloaded(narrow: Quantized, ids: torch.Tensor, *, ragged: bool) -> dict[str, Any]:
    """Save, open in a fresh process by plain `from_pretrained`, and compare logits with those measured here."""
    from safetensors.torch import save_file

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        save(narrow.model, folder, packed=packed(narrow, narrow.model), verify=False)
        with torch.no_grad():
            save_file({"logits": narrow.model(ids).logits}, Path(scratch) / "logits")
        save_file({"ids": ids}, Path(scratch) / "ids")
        code = FRESH.replace("(folder)", "(folder, trust_remote_code=True)") if ragged else FRESH
        command = [sys.executable, "-c", code, str(folder), f"{scratch}/ids", f"{scratch}/logits"]
        child = subprocess.run(command, capture_output=True, text=True, check=True)
        line = next(line for line in child.stdout.splitlines() if line.startswith("largest difference"))
        return {"bytes_on_disk": file_size(folder), "largest_difference": float(line.split()[-1])}


def run(fit: int, windows: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All rows, the comparisons between them, and the reloads."""
    made = subject("stories15M", quick=False)
    batches = first_tokens(made.calibration["fit"], fit)
    table, clock = Table(made, windows, say), time.process_time
    table.add(made.model, "dense", "float32", "", clock())
    started = clock()
    small = cut_to(made, Budget(CUT), say)
    table.add(small, "70 % of MACs", "float32", "", started)
    reloads = {}
    for cut, model in (("dense", made.model), ("70 % of MACs", small)):
        for bits in (8, 4):
            for method in ("nearest", "gptq"):
                started = clock()
                narrow = quantized(model, Grid(bits, GROUP), batches, method=method)  # type: ignore[arg-type]
                table.add(narrow.model, cut, f"{bits} bits", method, started, narrow)
        ids = table.held_out[0].inputs["input_ids"][:1, :64].clone()
        reloads[cut] = reloaded(narrow, ids, ragged=cut != "dense")
        say(f"{cut}, 4 bits, in a fresh process: {reloads[cut]}")
    for pattern in (Pattern(0.5, 2, 4), Pattern(0.5)):
        for method in ("magnitude", "sparsegpt"):
            started = clock()
            found = sparsified(made.model, pattern, batches, method=method)  # type: ignore[arg-type]
            table.add(found.model, "dense", f"{pattern.name} zeros", method, started)
    at_equal_bytes(table, made, small, batches, say)
    return statement(table, made, fit, reloads)


def at_equal_bytes(table: Table, made: Subject, small: PreTrainedModel, batches: Sequence[Batch], say: Any) -> None:
    """What either alone reaches with the bytes the other, or both, take."""
    clock = time.process_time
    eight = Grid(8, GROUP)
    share = (4 + 16 / GROUP) / (8 + 16 / GROUP)  # of the weights, in 8 bits, takes what all of them take in 4
    started = clock()
    narrow = quantized(cut_to(made, Budget(share, "params"), say), eight, batches)
    table.add(narrow.model, f"{100 * share:.0f} % of parameters", "8 bits", "gptq", started, narrow)
    started = clock()
    alone = cut_to(made, Budget((8 + 16 / GROUP) / 32, "params"), say)
    table.add(alone, f"{100 * (8 + 16 / GROUP) / 32:.0f} % of parameters", "float32", "", started)
    started = clock()
    narrow = quantized(made.model, Grid(3, 128), batches)
    table.add(narrow.model, "dense", "3 bits, groups of 128 (not stored)", "gptq", started, narrow)


def statement(table: Table, made: Subject, fit: int, reloads: dict[str, Any]) -> dict[str, Any]:
    """Everything as plain data."""
    dense = table.rows[0]
    rows = []
    for row in table.rows:
        rows.append({
            "cut": row.cut, "stored": row.stored, "method": row.method, "bits": row.bits, "bytes": row.bytes,
            "seconds": row.seconds, **level_statement("", row.score), **excess_statement(dense.score, row.score),
        })  # fmt: skip
    pairs = {(row.cut, row.stored): row for row in table.rows if row.method in ("nearest", "magnitude")}
    gains = []
    for row in table.rows:
        plain = pairs.get((row.cut, row.stored))
        if row.method in ("gptq", "sparsegpt") and plain is not None:
            gap = paired_difference(row.score.values, plain.score.values, weights=row.score.weights)
            gains.append({
                "cut": row.cut, "stored": row.stored, "method": row.method, "against": plain.method,
                "gap": gap.value, "low": gap.low, "high": gap.high,
            })  # fmt: skip
    tokens = sum(batch.tokens for batch in table.held_out)
    files = [PACKAGE / "decompose" / f"{name}.py" for name in ("compensation", "rounding", "sparse")]
    return {
        "benchmark": "quantization",
        "settings": {
            "model": made.name, "data": made.data, "report": table.report, "report_tokens": tokens, "fit_tokens": fit,
            "group": GROUP, "versions": versions(), "code": code_hash(files),
        },
        "rows": rows, "gains": gains, "reload": reloads,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=int, default=16_384, help="tokens to round on")
    parser.add_argument("--windows", type=int, default=64, help="windows of 256 held-out tokens to measure on")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    console = Console()
    torch.set_num_threads(1)
    results = run(asked.fit, asked.windows, lambda text: console.print(f"{time.strftime('%H:%M:%S')} {text}"))
    write_json(asked.out, results, indent=1)
    console.print(f"written: {asked.out}")
    return 0 if all(each["high"] >= 0 for each in results["gains"]) else 1


if __name__ == "__main__":
    sys.exit(main())
