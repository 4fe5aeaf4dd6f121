"""Nonsense in our own files is not believed: what contradicts the model, or no data can give, is one line."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from slimformer.errors import PlanDoesNotFit
from slimformer.files.seals import sealed_json
from slimformer.plan import Edit, Plan
from terminal import done, refused, save_tiny, slimformer, write_texts

Damage = Callable[[Path], None]
SITE = "blocks.0.ffn.hidden/fit"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and data, statistics, a plan, and a result."""
    root = tmp_path_factory.mktemp("made")
    save_tiny(root / "llama", "llama")
    write_texts(root / "text.txt")
    done("calibrate", root / "llama", "--data", root / "text.txt", "--tokens", 600, "--out", root / "stats", "-q")
    done("plan", root / "stats", "--macs", 0.6, "--out", root / "plan.json", "-q")
    done("cut", root / "stats", "--macs", 0.6, "--no-verify", "--out", root / "small", "-q")
    return root


def says(name: str, **changes: Any) -> Damage:
    """Fields of a JSON file replaced."""

    def damage(folder: Path) -> None:
        found = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**found, **changes}))

    return damage


def text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content) and None


def tensor(key: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Damage:
    """A tensor of the first block's moments replaced."""

    def damage(folder: Path) -> None:
        path = folder / "moments" / "block-000.safetensors"
        found = load_file(path)
        save_file({**found, key: change(found[key]).contiguous()}, path)

    return damage


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """The first number another."""
    return lambda old: torch.cat([torch.tensor([value], dtype=old.dtype), old[1:]])


def first_weight(value: float) -> Damage:
    def damage(folder: Path) -> None:
        found = json.loads((folder / "error_weights.json").read_text())
        (folder / "error_weights.json").write_text(json.dumps({**found, next(iter(found)): value}))

    return damage


def first_probe(**changes: Any) -> Damage:
    def damage(folder: Path) -> None:
        found = json.loads((folder / "probes.json").read_text())
        name = next(iter(found))
        (folder / "probes.json").write_text(json.dumps({**found, name: {**found[name], **changes}}))

    return damage


def indefinite(gram: torch.Tensor) -> torch.Tensor:
    """Products as large as their squares allow, with signs that no rows have."""
    d = (math.isqrt(8 * len(gram) + 1) - 1) // 2
    rows, columns = torch.triu_indices(d, d)
    size = gram[rows == columns].min()
    signs = torch.where((rows + columns) % 3 == 0, 1.0, -1.0)
    return torch.where(rows == columns, size, 0.99 * size * signs)


STATISTICS: dict[str, tuple[Damage, str]] = {
    "length below nothing": (says("stats.json", seq_len=-1), "seq_len: Input should be greater"),
    "length of no model": (says("stats.json", seq_len=10**15), "seq_len: Input should be less"),
    "longer than this model": (says("stats.json", seq_len=10**6), "positions"),
    "a billion blocks": (says("stats.json", n_blocks=10**9), "n_blocks: Input should be less"),
    "another number of blocks": (says("stats.json", n_blocks=2), "n_blocks is said to be 2, and is 3"),
    "another type": (says("stats.json", model_type="bert"), "model_type is said to be bert, and is llama"),
    "less than no tokens": (says("stats.json", tokens={"fit": -5, "select": 3}), "tokens.fit: Input should be"),
    "other numbers of tokens": (says("stats.json", tokens={"fit": 7, "select": 3}), "stats.json speaks of 7 tokens"),
    "no precision": (says("stats.json", dtype="zzz"), "dtype: should be float64 or"),
    "read at no length": (says("stats.json", reading={"seq_len": -1}), "reading.seq_len: Input should be greater"),
    "read at any length": (says("stats.json", reading={"seq_len": 10**15}), "reading.seq_len: Input should be less"),
    "a field too many": (says("stats.json", x=1), "x: Unexpected keyword"),
    "a number as text": (says("stats.json", seed="0"), "seed: Input should be a valid integer"),
    "no weights": (text("error_weights.json", "{}"), "error_weights.json cannot be read"),
    "NaN for weights": (text("error_weights.json", '{"blocks.0.ffn.hidden": NaN}'), "it holds NaN"),
    "a negative weight": (first_weight(-1.0), "Input should be greater than 0"),
    "another weight": (first_weight(1.0), "it is not what block-000.safetensors says"),
    "weights of other blocks": (says("error_weights.json", **{"blocks.7.ffn.hidden": 1.0}), "blocks.7.ffn.hidden"),
    "a probe of nothing": (says("probes.json", zzz={"site": "z", "keep": 1, "error": 1, "harm": 1}), "zzz is no site"),
    "a probe of another size": (first_probe(keep=10**6), "cannot keep 1000000 units"),
    "a negative probe": (first_probe(harm=-7), "are no probe"),
    "NaN in moments": (tensor(f"{SITE}/gram", first(math.nan)), "NaN or infinite"),
    "a negative square": (tensor(f"{SITE}/gram", first(-1.0)), "a negative square"),
    "whole numbers": (tensor(f"{SITE}/gram", lambda gram: gram.long()), "not float64"),
    "whole products": (tensor("joint/fit/cross", lambda cross: cross.long()), "joint/fit/cross: numbers are"),
    "no rows": (tensor(f"{SITE}/count", lambda count: 0 * count), "are over 0 rows"),
    "more rows": (tensor(f"{SITE}/count", lambda count: count + 1), "stats.json speaks of"),
    "sums beyond squares": (tensor(f"{SITE}/sum", first(1e9)), "larger than their squares allow"),
    "no weight": (tensor("error_weight", lambda weight: 0 * weight), "the weight of the block is 0.0"),
    "squares of no rows": (tensor(f"{SITE}/gram", indefinite), "moments"),
}  # fmt: skip


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_that_no_model_and_no_data_give(name, made, tmp_path):
    damage, message = STATISTICS[name]
    folder = Path(shutil.copytree(made / "stats", tmp_path / "stats", ignore=shutil.ignore_patterns("curves-*")))
    (folder / "slimformer.json").unlink(missing_ok=True)  # or nothing of this would ever be looked at
    damage(folder)
    assert message in refused("plan", folder, "--macs", 0.5, "--out", tmp_path / "plan.json")


def test_curves_of_other_sizes_are_computed_again(made, tmp_path):
    """Even under a checksum of their own."""
    folder = Path(shutil.copytree(made / "stats", tmp_path / "stats"))
    (folder / "slimformer.json").unlink(missing_ok=True)
    (curves,) = folder.glob("curves-*.json")
    found = json.loads(curves.read_text())["content"]
    name = next(name for name in found if name.endswith("ffn.hidden"))
    for changes in (
        {"sizes": [10**6 for _ in found[name]["sizes"]]},
        {"order": [0, 0]},
        {"held": ["x"]},
        {"fit": [-1]},
    ):
        curves.write_text(sealed_json({**found, name: {**found[name], **changes}}))
        done("plan", folder, "--macs", 0.6, "--out", tmp_path / "plan.json", "--force", "-q")
        assert json.loads((tmp_path / "plan.json").read_text()) == json.loads((made / "plan.json").read_text())


def twice(plan: dict[str, Any]) -> dict[str, Any]:
    return {"edits": [*plan["edits"], plan["edits"][0]]}


PLANS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "a budget below nothing": (lambda _: {"budget": -7}, "budget: Input should be greater than 0"),
    "a budget of nothing known": (lambda _: {"by": "zzz"}, "by: should be macs or params"),
    "a length of no model": (lambda _: {"seq_len": 10**15}, "seq_len: Input should be less"),
    "longer than this model": (lambda _: {"seq_len": 10**6}, "positions"),
    "another metric": (lambda _: {"metric": "zzz"}, "metric: should be squares or fisher"),
    "fractions of nothing": (lambda _: {"macs": math.nan}, "it holds NaN"),
    "an edit twice": (twice, "names blocks.0.attn.heads twice"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_that_make_no_sense(name, made, tmp_path):
    change, message = PLANS[name]
    plan = json.loads((made / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps({**plan, **change(plan)}))
    assert message in refused("apply", made / "stats", tmp_path / "plan.json", "--out", tmp_path / "x")


def test_a_plan_nested_without_end_is_one_line(made, tmp_path):
    (tmp_path / "plan.json").write_text("[" * 100_000)
    assert "nested too deeply" in refused("apply", made / "stats", tmp_path / "plan.json", "--out", tmp_path / "x")


def test_an_edit_stands_once_in_python_too():
    edit = Edit("blocks.0.ffn.hidden", "elimination", 1, 2, 1)
    with pytest.raises(PlanDoesNotFit, match="twice"):
        Plan("x", 0.5, 0.5, 0.5, 8, "ragged", 0.0, True, "", (edit, edit))


def row(name: str, small: float, better: str = "lower", **more: Any) -> dict[str, Any]:
    return {"name": name, "dense": 2.0 if better == "lower" else 1.0, "small": small, "better": better, **more}


PACE = {"dense": 1.0, "small": 0.5, "ratio": 0.5}
LATENCY = {"body": PACE, "end_to_end": {**PACE, "ratio": -1}, "repeats": 5, "threads": 1}
PROMISE = {"epsilon": 0.1, "delta": 0.05, "clip": 0.4, "documents": -4, "statement": "all is well"}
REPORTS = {
    "a budget of nothing known": ({"budget_by": "zzz"}, "budget_by: should be macs or params or latency"),
    "less than no tokens": ({"data": {"tokens": {"fit": -5}}}, "data.tokens.fit: Input should be greater"),
    "data of no length": ({"data": {"reading": {"seq_len": -1}}}, "data.reading.seq_len: Input should be greater"),
    "no perplexity": ({"metrics": [row("perplexity", -3)]}, "metrics: perplexity cannot be -3"),
    "more than all": ({"metrics": [row("agreement", 1.5, "higher")]}, "metrics: agreement cannot be 1.5"),
    "less than no tokens measured on": ({"metrics": [row("kl", 0.1, on=-4)]}, "metrics.0.on: Input should be greater"),
    "an interval turned round": ({"metrics": [row("kl", 1, low=2, high=1)]}, "the interval of kl ends before"),
    "nonsense elsewhere": ({"other_data": [{"name": "x", "metrics": [row("kl", -1)]}]}, "other_data, x: kl cannot be"),
    "time that runs back": ({"latency": LATENCY}, "latency.end_to_end.ratio: Input should be greater"),
    "another quotient": (
        {"latency": {**LATENCY, "end_to_end": {**PACE, "ratio": 0.7}}},
        "latency.end_to_end.ratio is said to be 0.7",
    ),
    "a certificate of no documents": ({"certificate": PROMISE}, "certificate.documents: Input should be greater"),
    "negative seconds": ({"seconds": {"load": -1}}, "seconds.load: Input should be greater"),
    "a budget below nothing": ({"budget": -7}, "budget: Input should be greater"),
    "a length below nothing": ({"seq_len": -1}, "seq_len: Input should be greater"),
    "another ratio": ({"macs_kept": 0.123}, "macs_kept is said to be 0.123"),
    "NaN": ({"macs_kept": math.nan}, "it holds NaN"),
    "text for a number": ({"budget": "0.5"}, "budget: Input should be a valid number"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_reports_that_make_no_sense_are_not_shown(name, made, tmp_path):
    changes, message = REPORTS[name]
    folder = Path(shutil.copytree(made / "small", tmp_path / "small"))
    (folder / "slimformer.json").unlink(missing_ok=True)
    says("report.json", **changes)(folder)
    assert message in refused("report", folder, "--force")
    said = slimformer("eval", folder, "--against", made / "llama", "--data", made / "text.txt", "--tokens", 300)
    assert said.code == 2 and message in said.err


def test_what_follows_from_other_fields_is_computed_anew(made):
    """The losses at home and elsewhere are printed large, and nobody's word is taken for them."""
    from slimformer.evaluate.report_file import read_report

    report = json.loads((made / "small" / "report.json").read_text())
    other = {"name": "builtin: x", "unfitted": True, "metrics": [row("kl", 0.4) | {"dense": 0.0}]}
    said = {"metric": "KL", "home": -5, "elsewhere": 0.0, "sources": 99, "worst": {"name": "y", "loss": 0}}
    changes = {"metrics": [row("kl", 0.1) | {"dense": 0.0}], "other_data": [other], "elsewhere": said}
    place = made / "told.json"
    place.write_text(json.dumps({**report, **changes}))
    found = read_report(place)["elsewhere"]
    assert (found["home"], found["elsewhere"], found["sources"]) == (0.1, 0.4, 1)
