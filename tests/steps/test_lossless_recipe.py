"""The recipe that changes no output: no budget, no data, a folder that loads, and a report of what was saved."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import slimformer
from conftest import skip_or_fail
from families import tiny, tiny_batches, tiny_tokenizer
from planted import planted, rows_of
from ranked import furthest
from slimformer.calibrate.documents import read_documents
from slimformer.checkpoint.reload import outputs_of
from slimformer.errors import BudgetOutOfReach, NotLossless
from slimformer.models import describe
from slimformer.models.demo import DEMOS
from slimformer.models.load import in_memory, load_model
from slimformer.recipe import load_recipe
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.lossless import REWRITES, offers, rewritten
from slimformer.run import Run
from slimformer.steps.lossless import Lossless, Rewrite
from terminal import done, refused

WORDS = ("dead", "duplicates", "low value rank")
(REMOVED,) = load_recipe("lossless").steps


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An OPT with much to remove."""
    place = tmp_path_factory.mktemp("dense") / "opt"
    planted("opt", *WORDS, dtype=torch.float32).save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


def test_the_shell_needs_no_budget_and_no_data(folder, tmp_path):
    """Verified in a fresh process, as every result is."""
    found = json.loads(done("compress", folder, "--recipe", "lossless", "--out", tmp_path / "small", "--json").out)
    assert json.loads((tmp_path / "small" / "report.json").read_text()) == found
    rewrites = {each["rewrite"]: each for each in found["lossless"]["rewrites"]}
    assert list(rewrites) == list(REMOVED.rewrites)
    assert found["lossless"]["largest_change"] < 1e-5
    assert found["dense"]["params"] - found["small"]["params"] == sum(each["params"] for each in rewrites.values()) > 0
    assert found["dense"]["block_macs"] - found["small"]["block_macs"] == sum(e["macs"] for e in rewrites.values())
    kv = found["dense"]["kv_cache_bytes"] - found["small"]["kv_cache_bytes"]
    assert kv == sum(each["kv_cache_bytes"] for each in rewrites.values()) > 0
    dense, small = slimformer.load(folder), slimformer.load(tmp_path / "small")
    for batch in tiny_batches(dense, 2):
        assert furthest(dense(**batch.inputs).logits, small(**batch.inputs).logits) < 1e-5


@pytest.mark.usefixtures("trusting")
def test_the_tables_name_every_rewrite(folder, tmp_path):
    said = done("compress", folder, "--recipe", "lossless", "--out", tmp_path / "small")
    assert all(name in said.out for name in REMOVED.rewrites)
    assert "Only rewrites that change no output" in (tmp_path / "small" / "README.md").read_text()


def test_a_dry_run_writes_nothing_and_says_what_would_go(folder):
    found = json.loads(done("compress", folder, "--recipe", "lossless", "--dry-run", "--json").out)["lossless"]
    assert sum(each["params"] for each in found) > 0


@pytest.mark.parametrize("budget", [("--macs", 0.5), ("--params", 0.5), ("--max-kl", 0.1)])
def test_a_budget_is_refused(folder, budget, tmp_path):
    line = refused("compress", folder, "--recipe", "lossless", *budget, "--out", tmp_path / "x")
    assert f"takes no {budget[0]}; it changes no output, so leave it out" in line


def test_other_commands_and_recipes_still_want_a_budget(folder, tmp_path, stats):
    assert "one budget is needed" in refused("compress", folder, "--out", tmp_path / "x")
    assert "cuts no widths" in refused("cut", stats, "--recipe", "lossless", "--macs", 0.5, "--out", tmp_path / "x")
    assert "there is no format" in refused(
        "compress", folder, "--recipe", "lossless", "--format", "odd", "--out", tmp_path / "x"
    )


def test_inspect_says_for_every_rewrite_what_it_saves_or_why_not(folder, shelf):
    found = {each["rewrite"]: each for each in json.loads(done("inspect", folder, "--json").out)["lossless"]}
    assert set(found) == set(REWRITES)
    assert found["dead-neurons"]["params"] > 0
    said = json.loads(done("inspect", shelf / "llama", "--json").out)["lossless"]
    assert all(each["why"] for each in said if not each["possible"])
    assert "not offered" in done("inspect", shelf / "llama", "--verbose").out


def test_the_library_gives_the_same(folder):
    result = slimformer.compress(slimformer.load(folder), recipe="lossless")
    assert result.report.lossless is not None
    assert result.plan.format == result.report.format == "ragged"
    assert result.report.macs_kept == pytest.approx(result.plan.macs) != 1
    with pytest.raises(BudgetOutOfReach, match="takes no macs=…; it changes no output"):
        slimformer.compress(slimformer.load(folder), recipe="lossless", macs=0.5)


@pytest.mark.usefixtures("trusting")
def test_a_lossless_result_can_be_compressed_further(folder, shelf, tmp_path):
    done("compress", folder, "--recipe", "lossless", "--out", tmp_path / "first", "-q")
    how = ("--data", shelf / "text.txt", "--tokens", 400, "--no-timing", "-q")
    done("compress", tmp_path / "first", "--macs", 0.7, "--out", tmp_path / "second", *how)
    first, second = slimformer.load(tmp_path / "first"), slimformer.load(tmp_path / "second")
    assert second.num_parameters() < first.num_parameters()
    assert second.config.slimformer["bare"] == first.config.slimformer["bare"]


def test_a_stock_model_that_lost_only_biases_is_told_how_to_stay_stock():
    biases = slimformer.compress(tiny("bert"), recipe="lossless")
    assert biases.plan.format == "ragged" and "format='plain'" in biases.report.lossless["hint"]
    assert slimformer.compress(tiny("bert"), recipe="lossless", format="plain").report.lossless["hint"] is None
    assert slimformer.compress(planted("opt", *WORDS), recipe="lossless").report.lossless["hint"] is None


def test_what_is_not_lossless_is_an_error(folder, monkeypatch):
    monkeypatch.setattr("slimformer.steps.lossless.largest_change", lambda *_: (1e-2, torch.float32))
    with pytest.raises(NotLossless):
        loaded = in_memory(slimformer.load(folder))
        Lossless().run(Run(loaded, loaded.model))


def test_recipes_may_name_what_can_be_done():
    assert set(Rewrite.__args__) == set(REWRITES) - {"centred-keys"}
    assert set(REMOVED.rewrites) == {name for name, rewrite in REWRITES.items() if not rewrite.note}


@pytest.mark.slow
@pytest.mark.parametrize("demo", ["minilm", "smollm2"])
def test_real_models_on_real_text(demo):
    """As they are, and with heads, ranks and neurons made superfluous; in single precision, with padding."""
    if importlib.util.find_spec(DEMOS[demo].module) is None:
        skip_or_fail(f"the package {DEMOS[demo].package} is absent")
    loaded = load_model(f"demo:{demo}")
    model: Any = loaded.model
    architecture = describe(model)
    with torch.no_grad():
        for site in architecture:
            reader = rows_of(model.get_submodule(site.reader))
            if site.kind == "ffn.hidden":
                reader[:, 8:40] = 0
            elif site.block % 2:
                reader.unflatten(1, (site.units, site.unit))[:, :, 5:11] = 0
    inputs = _texts(loaded.processor)
    before = outputs_of(model, inputs)
    scope = Scope(dtype=torch.float32, multiple_of=8)
    small, savings = rewritten(model, REMOVED.rewrites, scope, seq_len=64)
    after = outputs_of(small, inputs)
    mask = inputs["attention_mask"].bool()
    assert all(furthest(before[key][mask], after[key][mask]) < 1e-5 for key in before)
    gone = {saving.rewrite for saving in savings if saving.params}
    assert gone >= {"dead-neurons", "value-ranks"} | ({"value-bias", "key-bias"} if demo == "minilm" else set())
    possible = {offer.rewrite: offer for offer in offers(model, architecture, scope, seq_len=64)}
    d, kv = architecture.sites[0].unit, architecture.sites[0].units // architecture.sites[0].group
    pairs = 2 if demo == "minilm" else 1  # rotary keys are left alone
    assert possible["interpolation"].implicit == architecture.n_blocks * pairs * kv * d * d


def _texts(tokenizer: Any) -> dict[str, Tensor]:
    texts = [document.text[: 60 * (i + 2)] for i, document in enumerate(read_documents("builtin")) if i < 4]
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    found = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=64)
    return {key: found[key] for key in ("input_ids", "attention_mask")}
