"""Cutting attention by rank: weights are selected, nothing else moves, the config says it, and every reader of a
checkpoint finds it."""

import copy
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from calibrated import calibrated, outputs, recipe
from dealing import dealt
from families import (
    LENGTH,
    MODEL_TYPES,
    STOCK_TYPES,
    attention_part,
    block_sizes,
    heads,
    tiny,
    tiny_ragged,
    tiny_tokenizer,
)
from fresh import run
from ranked import ALL, DEALT, NONE, SETTINGS, WIDTH, chosen, furthest, logits, padded, settings, tiny_ranked
from slimformer.checkpoint.load import load
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.save import Belongings, save
from slimformer.decompose import Selection
from slimformer.errors import BudgetOutOfReach, ModelBroken, PlanDoesNotFit
from slimformer.inspect.summary import inspection
from slimformer.models import describe
from slimformer.models.architecture import out_in, weight_of
from slimformer.models.load import load_model
from slimformer.models.ranks import heads_of, rank_sites
from slimformer.nn import ragged
from slimformer.plan import Budget, Edit, check_budget
from slimformer.plan.cost import block_cost, kv_cache_bytes
from slimformer.rewrite.ranks import cut_ranks, install, rotary_rows
from slimformer.rewrite.sizes import block_ranks, keep_attributes_true, state_sizes

VISITOR = Path(__file__).parents[1] / "checkpoint" / "visitor.py"
EVERY_CASE = [(t, setting) for t in MODEL_TYPES for setting in settings(t)]
SAVED = [(t, setting) for t, setting in DEALT if t in STOCK_TYPES]
FUSED = [t for t in MODEL_TYPES if attention_part(t).fused]


def attention_site(model, i):
    return describe(model)[f"blocks.{i}.attn.heads"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_installing_moves_no_weight_and_renames_none(model_type):
    model = tiny(model_type)
    same = copy.deepcopy(model)
    for i in (0, 2):
        install(same, heads_of(describe(model), i), qk=WIDTH, vo=WIDTH)
    assert describe(same) == describe(model)
    before, after = model.state_dict(), same.state_dict()
    assert list(before) == list(after) and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("model_type", "setting"), EVERY_CASE)
def test_a_site_has_the_widths_that_were_left(model_type, setting):
    small = tiny_ranked(model_type, setting)
    for i, (rows_qk, rows_v) in enumerate(chosen(model_type, setting)):
        site, (qk, vo) = attention_site(small, i), (rows_qk.shape[-1], rows_v.shape[-1])
        if vo == 0:  # no head is left
            assert (site.units, site.width) == (0, 0) and block_ranks(small, describe(small).blocks)[str(i)]["qk"] == 0
            continue
        assert (site.units, site.unit, [w.rows for w in site.writers]) == (4, vo, [qk, qk, vo])
        assert site.group == (2 if attention_part(model_type).kv_key else 1)
        assert out_in(small.get_submodule(site.reader))[1] == site.width == 4 * vo


@pytest.mark.parametrize(("model_type", "setting"), DEALT)
def test_a_model_built_from_the_config_takes_the_weights_and_does_the_same(model_type, setting):
    small = tiny_ranked(model_type, setting)
    config = type(small.config).from_dict(json.loads(small.config.to_json_string(use_diff=False)))
    built = type(small)(config).eval()
    built.load_state_dict(small.state_dict(), strict=True)
    assert torch.equal(logits(built, padded(small)), logits(small, padded(small)))
    assert describe(built) == describe(small)
    ragged.resize(built)
    assert torch.equal(logits(built, padded(small)), logits(small, padded(small)))


def test_a_config_says_ranks_only_where_there_are_some():
    model = tiny("llama")
    architecture = describe(model)
    state_sizes(model, "ragged")
    without = model.config.slimformer
    assert without["format"] == 1 and not {"ranks", "attention"} & without.keys()
    install(model, heads_of(architecture, 0), qk=WIDTH, vo=WIDTH)
    cut_ranks(model, heads_of(architecture, 1), rows_qk=rotary_rows([2, 0], WIDTH), rows_v=torch.arange(3))
    state_sizes(model, "ragged")
    said = model.config.slimformer
    assert said["format"] == 2
    assert said["ranks"] == {"1": {"qk": 4, "vo": 3, "planes": [2, 0]}}
    assert {key: said[key] for key in ("blocks", "axes", "attributes")} == {
        k: without[k] for k in without if k != "format"
    }


def test_checkpoints_of_a_newer_format_are_refused():
    small, newer = tiny_ranked("bert", "narrow keys"), ragged.FORMAT + 1
    small.config.slimformer["format"] = newer
    with pytest.raises(ValueError, match=f"format {newer}, known is {newer - 1}: a newer slimformer wrote it"):
        type(small)(small.config)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_full_ranks_may_be_called_plain_and_others_may_not(model_type, tmp_path):
    model = tiny(model_type)
    same = copy.deepcopy(model)
    install(same, heads_of(describe(model), 1), qk=WIDTH, vo=WIDTH)
    state_sizes(same, "plain")
    assert not hasattr(same.config, "slimformer")
    same.save_pretrained(tmp_path)
    assert torch.equal(logits(load(tmp_path), padded(model)), logits(model, padded(model)))
    with pytest.raises(
        PlanDoesNotFit, match=r"cut by rank cannot be said in a stock config \(.*\); use format='ragged'"
    ):
        state_sizes(tiny_ranked(model_type, "narrow keys"), "plain")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_cutting_twice_is_cutting_once(model_type):
    model = tiny(model_type)
    rotary, normed = attention_part(model_type).rotary, model_type == "qwen3"
    qk = ALL if normed else rotary_rows([3, 1, 0], WIDTH) if rotary else torch.tensor([6, 1, 0, 4, 5])
    again = ALL if normed else rotary_rows([2, 0], 6) if rotary else torch.tensor([4, 1, 2])
    v, v_again = torch.tensor([7, 0, 3, 5]), torch.tensor([1, 3])
    once, twice = copy.deepcopy(model), copy.deepcopy(model)
    cut_ranks(once, heads_of(describe(model), 1), rows_qk=qk[again], rows_v=v[v_again])
    cut_ranks(twice, heads_of(describe(model), 1), rows_qk=qk, rows_v=v)
    cut_ranks(twice, heads_of(describe(twice), 1), rows_qk=again, rows_v=v_again)
    assert block_ranks(once, describe(model).blocks) == block_ranks(twice, describe(model).blocks)
    assert torch.equal(logits(once, padded(model)), logits(twice, padded(model)))


def test_planes_cut_twice_are_numbered_as_in_the_dense_model():
    model = tiny("llama")
    cut_ranks(model, heads_of(describe(model), 0), rows_qk=torch.stack([rotary_rows(p, 8) for p in ([3, 1], [0, 2])]))
    cut_ranks(model, heads_of(describe(model), 0), rows_qk=rotary_rows([1], 4))
    assert block_ranks(model, describe(model).blocks)["0"]["planes"] == [[1], [2]]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_one_side_alone_can_be_cut(model_type):
    model = tiny(model_type)
    values, queries = copy.deepcopy(model), copy.deepcopy(model)
    cut_ranks(values, heads_of(describe(model), 0), rows_v=torch.tensor([1, 6]))
    cut_ranks(queries, heads_of(describe(model), 0), rows_qk=NONE)
    assert [w.rows for w in attention_site(values, 0).writers] == [8, 8, 2]
    assert [w.rows for w in attention_site(queries, 0).writers] == [0, 0, 8]
    for small in (values, queries):
        assert torch.isfinite(logits(small, padded(model))).all()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_output_may_be_refitted(model_type):
    """Values are copied into one coordinate; a reader that knows gets by on fewer of them."""
    model = tiny(model_type).double()
    site = attention_site(model, 1)
    value, kept = site.writers[2], torch.arange(WIDTH - 1)
    layer, last = model.get_submodule(value.module), torch.arange(site.units // value.shared) * WIDTH + WIDTH - 1
    last = last + value.part * site.width
    with torch.no_grad():
        weight = weight_of(layer)
        weight[last] = weight[last - WIDTH + 1]
        if layer.bias is not None:
            layer.bias[last] = layer.bias[last - WIDTH + 1]
    J = (torch.arange(4)[:, None] * WIDTH + kept).flatten()
    E = torch.eye(32, dtype=torch.float64)[:, J]
    E[torch.arange(4) * WIDTH + WIDTH - 1, torch.arange(4) * (WIDTH - 1)] = 1
    fitted, dropped = copy.deepcopy(model), copy.deepcopy(model)
    cut_ranks(
        fitted, heads_of(describe(model), 1), rows_v=kept, reader=Selection(J, E, torch.zeros(32, dtype=torch.float64))
    )
    cut_ranks(dropped, heads_of(describe(model), 1), rows_v=kept)
    inputs = padded(model)
    assert furthest(logits(model, inputs), logits(fitted, inputs)) < 1e-10
    assert furthest(logits(model, inputs), logits(dropped, inputs)) > 1e-3


@pytest.mark.parametrize(
    ("model_type", "rows", "words"),
    [
        ("llama", {"rows_qk": torch.tensor([0, 1])}, r"in pairs \(f, f \+ 4\); rows \[0, 1\] are not whole pairs"),
        ("llama", {"rows_qk": torch.tensor([0, 4, 1])}, "not whole pairs"),
        ("qwen3", {"rows_qk": rotary_rows([0, 1], 8)}, "blocks.1.attn.heads: queries and keys are normed over all 8"),
        ("bert", {"rows_v": torch.tensor([3, 8])}, r"rows \[3, 8\] are not all in a head of width 8"),
        ("llama", {"rows_v": torch.zeros(3, 2, dtype=torch.long)}, "rows for 3 key/value heads, and 2 of these"),
    ],
)
def test_rows_that_cannot_be_kept_are_refused_before_anything_is_cut(model_type, rows, words):
    model = tiny(model_type)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(PlanDoesNotFit, match=words):
        cut_ranks(model, heads_of(describe(model), 1), **rows)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.isfinite(logits(model, padded(model))).all()


@pytest.mark.parametrize(
    ("model_type", "setting"),
    dealt([t for t in MODEL_TYPES if t not in FUSED], ["narrow keys", "narrow values", "nothing left"]),
)
def test_heads_and_neurons_can_be_cut_as_well(model_type, setting):
    small = tiny_ragged(tiny_ranked(model_type, setting), 0.6)
    sizes = block_sizes(describe(small))
    assert any(size["heads"] in range(1, 4) for size in sizes)
    built = type(small)(copy.deepcopy(small.config)).eval()
    built.load_state_dict(small.state_dict(), strict=True)
    assert torch.equal(logits(built, padded(small)), logits(small, padded(small)))
    assert block_cost(describe(built), LENGTH) == block_cost(describe(small), LENGTH)


def test_key_value_heads_with_planes_of_their_own_are_not_cut_unnoticed():
    small = tiny_ranked("llama", "own for each")
    site = attention_site(small, 0)
    for writer in site.writers:
        layer = small.get_submodule(writer.module)
        layer.weight = torch.nn.Parameter(layer.weight[: len(layer.weight) // 2])
    reader = small.get_submodule(site.reader)
    reader.weight = torch.nn.Parameter(reader.weight[:, : reader.weight.shape[1] // 2])
    with pytest.raises(PlanDoesNotFit, match=r"blocks.0.attn.heads: there are planes for 2 key/value heads, and 1 of"):
        keep_attributes_true(small)


@pytest.fixture(scope="module")
def visits(tmp_path_factory):
    """Every case saved once, and what a stranger (no slimformer, trusted code) and a friend found in it."""
    root = tmp_path_factory.mktemp("ranks") / "folders"
    for model_type, setting in SAVED:
        head = heads(model_type)[0]
        small, folder = tiny_ranked(model_type, setting), root / f"ragged-{model_type}-{setting}-{head}"
        save(small, folder, Belongings(None if model_type == "vit" else tiny_tokenizer()), verify=False)
        save_file(padded(small), folder / "sample.safetensors")
        save_file(outputs_of(small, padded(small)), folder / "expected.safetensors")
    return root, {who: _visit(who, root) for who in ("stranger", "friend")}


def _visit(who, root):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(root.parent / f"modules-{who}")}
    if who == "stranger":
        environment.pop("PYTHONPATH", None)
    child = run([VISITOR, who, root], environment, after="transformers", cwd=root)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads((root.parent / f"{who}.json").read_text())


@pytest.mark.parametrize(("who", "route"), [("stranger", "remote"), ("friend", "package"), ("friend", "load")])
def test_every_way_to_open_a_result_gives_the_same(visits, who, route):
    root, found = visits
    folders = sorted(root.iterdir())
    assert len(folders) == len(SAVED)
    for folder in folders:
        report = found[who][f"{folder.name} {route}"]
        assert "error" not in report, report["error"]
        got, expected = load_file(folder / f"{who}-{route}.safetensors"), load_file(folder / "expected.safetensors")
        assert furthest(expected["logits"], got["logits"]) < 1e-6, folder.name
        if folder.name.endswith("causal"):
            by_cache = report["generated"]
            assert by_cache["dynamic"] == by_cache["static"] == by_cache["none"], folder.name


def test_a_result_is_never_opened_with_wrong_weights(visits):
    unaided = {name: report["unaided"] for name, report in visits[1]["stranger"].items() if "unaided" in report}
    assert len(unaided) == len(SAVED)
    assert {name: what for name, what in unaided.items() if what == "opened"} == {}


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_loaded_model_is_described_and_inspected_like_the_one_saved(model_type, tmp_path):
    folder, small = tmp_path / "out", tiny_ranked(model_type, "narrow keys")
    save(small, folder, verify=False)
    assert describe(load(folder)) == describe(small)
    loaded = load_model(str(folder))
    found = inspection(loaded, describe(loaded.model), LENGTH)
    assert found["macs_per_token"]["blocks"] == block_cost(describe(small), LENGTH).macs
    assert [site["unit"] for site in found["sites"] if site["site"].endswith("heads")] == [5, 6, 7]


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "bert"])
def test_saved_again_by_transformers_it_reloads_on_every_route(model_type, tmp_path):
    save(tiny_ranked(model_type, "nothing left"), tmp_path / "first", verify=False)
    model = load(tmp_path / "first")
    model.save_pretrained(tmp_path / "once")
    remote = getattr(ragged, type(model).__name__).from_pretrained(tmp_path / "once")
    remote.save_pretrained(tmp_path / "twice")
    for again in (remote, load(tmp_path / "twice")):
        assert torch.equal(logits(again, padded(model)), logits(model, padded(model)))


def test_a_save_is_verified_by_a_fresh_process(tmp_path):
    save(tiny_ranked("llama", "own for each"), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["slimformer"]["format"] == 2


def test_ranks_that_do_not_fit_the_weights_are_noticed(tmp_path):
    save(tiny_ranked("opt", "narrow keys"), tmp_path / "out", verify=False)
    (tmp_path / "out" / "slimformer.json").unlink()  # as if the change were meant
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    config["slimformer"]["ranks"]["1"]["vo"] += 1
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelBroken, match=r"they do not have the sizes config.json states"):
        load(tmp_path / "out")


def test_the_settings_differ_from_block_to_block_and_in_both_ranks():
    for setting in SETTINGS:
        small = tiny_ranked("llama", setting)
        ranks = [(r["qk"], r["vo"]) for r in block_ranks(small, describe(small).blocks).values()]
        assert len(set(ranks)) == 3 and any(qk != vo for qk, vo in ranks)


@pytest.mark.parametrize("model_type", ["gpt2", "llama", "opt", "bert"])
def test_a_model_cut_by_rank_can_be_made_smaller_still(model_type):
    import slimformer

    ids = torch.randint(0, 60, (40, 16), generator=torch.Generator().manual_seed(0))
    first = slimformer.compress(tiny(model_type), ids, macs=0.6, settings={"cut.attention": "ranks"}, timing=False)
    assert any(edit.site.endswith((".attn.qk", ".attn.vo")) and edit.keep < edit.of for edit in first.plan.edits)
    again = slimformer.compress(first.model, ids, macs=0.6, timing=False)
    assert again.plan.macs <= 0.6
    assert torch.isfinite(again.model(input_ids=ids[:2]).logits).all()


@pytest.mark.parametrize("model_type", [each for each in MODEL_TYPES if each != "qwen3"])
def test_without_values_a_block_has_no_heads_in_plan_model_and_folder(model_type, tmp_path):
    """VO rank 0: the plan empties queries and keys, too, and what is left writes the mean of what attention wrote."""
    model = tiny(model_type)
    found, by_rank = calibrated(model), recipe(attention="ranks", metric="squares")
    asked = found.plan(0.5, by_rank)
    edits = {edit.site: edit for edit in asked.edits}
    ranks = {site.name: site for site in rank_sites(model, describe(model)) if site.block == 1}
    gone = {name: Edit(name, "low_rank", 0, site.units, 0) for name, site in ranks.items()}
    plan = replace(asked, edits=tuple({**edits, **gone, "blocks.1.attn.heads": whole(model, 1)}.values()))
    small = found.apply(plan, by_rank)
    attention = small.get_submodule(heads_of(describe(model), 1).module)
    assert (attention.qk, attention.vo) == (0, 0)
    assert block_cost(describe(small), LENGTH) == block_cost(describe(model), LENGTH, plan.sizes)
    assert kv_cache_bytes(describe(small), LENGTH, 4) == kv_cache_bytes(describe(model), LENGTH, 4, plan.sizes)
    save(small, tmp_path / "out", verify=False)
    batch = found.data["select"][0]
    assert furthest(outputs(small, batch), outputs(load(tmp_path / "out").double(), batch)) < 1e-6


def whole(model, block):
    site = describe(model).by_name[f"blocks.{block}.attn.heads"]
    return Edit(site.name, "backward", site.units, site.units, site.units // site.group)


def test_a_plan_may_give_up_the_values_of_a_block_that_writes_nothing_of_worth():
    """The allocation finds it: attention that is read by next to nothing goes before anything else does."""
    model = tiny("opt")
    architecture = describe(model)
    with torch.no_grad():
        model.get_submodule(architecture.by_name["blocks.1.attn.heads"].reader).weight.mul_(1e-6)
    plan = calibrated(model).plan(0.6, recipe(attention="ranks", metric="squares"))
    assert plan.sizes["blocks.1.attn.vo"].units == plan.sizes["blocks.1.attn.qk"].units == 0
    assert plan.macs <= 0.6


def test_scores_that_are_normed_stay_whole_and_values_are_cut():
    model = tiny("qwen3")
    found, chosen = calibrated(model), recipe(attention="ranks", metric="squares")
    with pytest.raises(BudgetOutOfReach, match=r"the minimum for this model is 0\.\d+"):
        found.plan(0.2, chosen)
    plan = found.plan(0.5, chosen)
    cut = {edit.site for edit in plan.edits if edit.keep < edit.of}
    assert any(name.endswith("attn.vo") for name in cut)
    assert not any(name.endswith(("attn.qk", "attn.heads")) for name in cut)
    small = found.apply(plan, chosen)
    assert block_cost(describe(small), LENGTH).macs <= 0.5 * block_cost(describe(model), LENGTH).macs


@pytest.mark.parametrize(
    ("changes", "budget", "format", "why"),
    [
        ({}, Budget(0.6), "plain", "a stock config cannot say"),
        ({"allocation": "uniform"}, Budget(0.6), "ragged", "the allocation 'uniform' spreads heads"),
    ],
)
def test_ranks_that_cannot_be_had_are_refused_and_best_takes_heads(changes, budget, format, why):
    architecture = describe(tiny("llama"))
    asked = {"budget": budget, "seq_len": LENGTH, "format": format}
    with pytest.raises(BudgetOutOfReach, match=why):
        check_budget(architecture, settings=recipe(attention="ranks", **changes), **asked)
    check_budget(architecture, settings=recipe(attention="best", **changes), **asked)
