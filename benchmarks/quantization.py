"""Claim: at four bits, and with zeros, compensating for errors loses less than doing without, on dense and cut models.

At eight bits there is next to nothing to compensate for; what that and cutting cost at equal bytes stands beside it.

    python benchmarks/quantization.py                       stories15M
    python benchmarks/quantization.py --fit 4096 --windows 8

One subject in float32. Every row is a model that is made from the same calibration documents and measured on windows of
held-out documents; differences are paired over windows. "bits" are those of a weight of the dense blocks, steps
included, so that equal bits are equal bytes of blocks; embeddings stay as they are and are counted apart. The 4-bit
models, dense and cut, are saved, and opened again by plain `from_pretrained` in a fresh process.
Rows are kept, so a run may be stopped; `--part 0/3` and so on share them among processes.
Results: benchmarks/results/quantization.json. About eight minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from safetensors.torch import save_file
from transformers import PreTrainedModel

from cells import HERE, PACKAGE, code_hash, deciding_code, settings_hash, write_json
from models import cache_folder
from quality import calibrated_run
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.pack import packed, stored_bytes
from slimformer.checkpoint.save import save
from slimformer.decompose.rounding import Grid
from slimformer.decompose.sparse import Pattern
from slimformer.evaluate.compare import first_tokens
from slimformer.evaluate.intervals import paired_difference
from slimformer.evaluate.speed import file_size
from slimformer.files.versions import versions
from slimformer.models import describe
from slimformer.plan import Budget
from slimformer.rewrite.quantize import Quantized, quantized, sparsified
from slimformer.steps.make import carry_out, make_plan
from subjects import Score, Subject, digest, subject
from verdicts import excess_statement, level_statement

RESULTS = HERE / "results" / "quantization.json"
GROUP = 32
SEVENTY = "70 % of MACs"
SOLVE = ("compensation", "rounding", "sparse")
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
class Job:
    """One model: what is done, and how it is made."""

    cut: str
    stored: str
    method: str
    make: Callable[[], tuple[PreTrainedModel, Quantized | None]]


@dataclass(frozen=True)
class Row:
    """What came of it: what it takes, and its scores."""

    cut: str
    stored: str
    method: str
    bits: float  # of a weight of the dense blocks
    bytes: int
    score: Score
    seconds: float
    reload: dict[str, Any] | None = None


class Table:
    """Rows as they are made, each measured at once and kept on disk, so that a kill costs one row."""

    def __init__(self, made: Subject, fit: int, windows: int, say: Callable[[str], None]) -> None:
        self.made, self.say = made, say
        self.fit = first_tokens(made.calibration["fit"], fit)
        self.report, batches = next(iter(made.reports.items()))
        self.held_out = first_tokens(batches, windows * made.seq_len)
        self.dense_weights = _linear_weights(made.model)
        self.code = code_hash(
            [
                *(PACKAGE / "rewrite" / name for name in ("quantize.py", "in_turn.py")),
                *(PACKAGE / "decompose" / f"{name}.py" for name in SOLVE),
            ]
        )

    def row(self, job: Job) -> Row:
        """The row of a job, read where it was made before."""
        key = settings_hash({"job": [job.cut, job.stored, job.method], "code": self.code, "cut": deciding_code(),
                             "fit": digest(self.fit), "report": digest(self.held_out)})  # fmt: skip
        file = cache_folder() / "quantization" / f"{key}.json"
        if not file.is_file():
            write_json(file, asdict(self._made(job)))
        found = json.loads(file.read_text(encoding="utf-8"))
        score = Score(tuple(found["score"]["values"]), tuple(found["score"]["weights"]))
        return Row(**{**found, "score": score})

    def _made(self, job: Job) -> Row:
        started = time.process_time()
        model, narrow = job.make()
        seconds = time.process_time() - started
        if narrow is None:
            total, bits = sum(p.numel() for p in model.parameters()) * 4, 32.0 * _linear_weights(model)
        else:
            total = stored_bytes(narrow, torch.float32)
            bits = sum(layer.stored_bits() for layer in narrow.layers.values())
        score = _scores(model, self.held_out)
        ids = self.held_out[0].inputs["input_ids"][:1, :64].clone()
        again = reloaded(narrow, ids) if narrow and job.stored == "4 bits" and job.method == "gptq" else None
        ppl = level_statement("", score)["ppl"]
        self.say(
            f"{job.cut} · {job.stored} · {job.method}: perplexity {ppl:.3f}, {total / 1e6:.1f} MB, {seconds:.0f} s"
        )
        return Row(job.cut, job.stored, job.method, bits / self.dense_weights, total, score, seconds, again)


def _scores(model: PreTrainedModel, batches: Sequence[Batch]) -> Score:
    from slimformer.evaluate.perplexity import perplexity

    found = perplexity(model, batches)
    return Score(found.nll_per_window, tuple(map(float, found.tokens_per_window)))


def _linear_weights(model: PreTrainedModel) -> int:
    from slimformer.rewrite.in_turn import linear_layers

    architecture = describe(model)
    names = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    return sum(model.get_submodule(name).weight.numel() for name in names)


def cut_to(made: Subject, budget: Budget, say: Callable[[str], None]) -> PreTrainedModel:
    """The model cut to a budget as `slimformer cut` does."""
    run, settings = calibrated_run(made, "balanced", say)
    return carry_out(make_plan(run, budget, settings), run.dense, run.known, run.curves)


def reloaded(narrow: Quantized, ids: torch.Tensor) -> dict[str, Any]:
    """Save, open in a fresh process by `from_pretrained`, and compare logits with those measured here."""
    ragged = bool(getattr(narrow.model.config, "slimformer", None))
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
        return {"bytes_on_disk": file_size(folder), "largest_difference": float(line.split()[-1]), "ragged": ragged}


def jobs(table: Table) -> list[Job]:
    """Every model of the table, in its order."""
    dense, fit = table.made.model, table.fit
    cut = cache(lambda fraction, by: cut_to(table.made, Budget(fraction, by), table.say))

    def rounded(model: Callable[[], PreTrainedModel], grid: Grid, method: Any = "gptq") -> Any:
        def make() -> tuple[PreTrainedModel, Quantized]:
            found = quantized(model(), grid, fit, method=method)
            return found.model, found

        return make

    def zeros(pattern: Pattern, method: Any) -> Any:
        return lambda: (sparsified(dense, pattern, fit, method=method).model, None)

    out = [Job("dense", "float32", "", lambda: (dense, None))]
    out.append(Job(SEVENTY, "float32", "", lambda: (cut(0.7, "macs"), None)))
    for name, model in (("dense", lambda: dense), (SEVENTY, lambda: cut(0.7, "macs"))):
        for bits in (8, 4):
            for method in ("nearest", "gptq"):
                out.append(Job(name, f"{bits} bits", method, rounded(model, Grid(bits, GROUP), method)))
    for pattern in (Pattern(0.5, 2, 4), Pattern(0.5)):
        for method in ("magnitude", "sparsegpt"):
            out.append(Job("dense", f"{pattern.name} zeros", method, zeros(pattern, method)))
    half, quarter = (4 + 16 / GROUP) / (8 + 16 / GROUP), (8 + 16 / GROUP) / 32  # as many bytes as 4, as 8 bits
    eight = rounded(lambda: cut(half, "params"), Grid(8, GROUP))
    out.append(Job(f"{100 * half:.0f} % of parameters", "8 bits", "gptq", eight))
    out.append(Job(f"{100 * quarter:.0f} % of parameters", "float32", "", lambda: (cut(quarter, "params"), None)))
    out.append(Job("dense", "3 bits, groups of 128 (not stored)", "gptq", rounded(lambda: dense, Grid(3, 128))))
    return out


def statement(table: Table, made: Sequence[Row]) -> dict[str, Any]:
    """Everything as plain data."""
    dense = made[0]
    rows = []
    for row in made:
        rows.append({
            "cut": row.cut, "stored": row.stored, "method": row.method, "bits": row.bits, "bytes": row.bytes,
            "seconds": row.seconds, **level_statement("", row.score), **excess_statement(dense.score, row.score),
        })  # fmt: skip
    pairs = {(row.cut, row.stored): row for row in made if row.method in ("nearest", "magnitude")}
    gains = []
    for row in made:
        plain = pairs.get((row.cut, row.stored))
        if row.method in ("gptq", "sparsegpt") and plain is not None:
            gap = paired_difference(row.score.values, plain.score.values, weights=row.score.weights)
            gains.append({
                "cut": row.cut, "stored": row.stored, "method": row.method, "against": plain.method,
                "gap": gap.value, "low": gap.low, "high": gap.high,
            })  # fmt: skip
    subject, fit, held_out = table.made, *(sum(b.tokens for b in part) for part in (table.fit, table.held_out))
    return {
        "benchmark": "quantization",
        "settings": {
            "model": subject.name, "data": subject.data, "report": table.report, "report_tokens": held_out,
            "fit_tokens": fit, "group": GROUP, "versions": versions(), "code": table.code,
        },
        "rows": rows, "gains": gains, "equal_bytes": equal_bytes(made),
        "reload": {row.cut: row.reload for row in made if row.reload},
    }  # fmt: skip


def equal_bytes(made: Sequence[Row]) -> list[dict[str, Any]]:
    """Cutting and rounding beside rounding alone, and cutting beside rounding, where both take the same bytes."""
    by = {(row.cut, row.stored, row.method): row for row in made}
    cuts = [row for row in made if row.cut.endswith("of parameters")]
    eight, alone = (next(row for row in cuts if row.stored == stored) for stored in ("8 bits", "float32"))
    pairs = [
        (by[SEVENTY, "4 bits", "gptq"], next(row for row in made if row.stored.startswith("3 bits"))),
        (eight, by["dense", "4 bits", "gptq"]),
        (alone, by["dense", "8 bits", "gptq"]),
    ]
    out = []
    for one, other in pairs:
        gap = paired_difference(other.score.values, one.score.values, weights=one.score.weights)
        out.append({
            "one": f"{one.cut}, {one.stored}", "other": f"{other.cut}, {other.stored}",
            "bytes": [one.bytes, other.bytes], "gap": gap.value, "low": gap.low, "high": gap.high,
        })  # fmt: skip
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=int, default=16_384, help="tokens to round on")
    parser.add_argument("--windows", type=int, default=64, help="windows of 256 held-out tokens to measure on")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--part", default="0/1", help="i/n: only every n-th row, from the i-th on, and no table yet")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    say = lambda text: console.print(f"{time.strftime('%H:%M:%S')} {text}")  # noqa: E731
    table = Table(subject("stories15M", quick=False), asked.fit, asked.windows, say)
    first, every = map(int, asked.part.split("/"))
    rows = [table.row(job) for job in jobs(table)[first::every]]
    if every > 1:
        return 0
    results = statement(table, rows)
    write_json(asked.out, results, indent=1)
    console.print(f"written: {asked.out}")
    return 0 if all(each["low"] > 0 for each in results["gains"] if each["stored"] != "8 bits") else 1


if __name__ == "__main__":
    sys.exit(main())
