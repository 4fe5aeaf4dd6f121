"""A linear path beside neurons, in every family: exact where it can be, counted as it costs, saved and opened again."""

import copy
import dataclasses
import functools
import json
import re

import pytest
import torch
from transformers.activations import ACT2FN

import slimformer
from calibrated import calibrated, doubled, outputs, recipe
from families import LENGTH, MODEL_TYPES, VOCABULARY, feed_forward_part, tiny, tiny_batches
from slimformer.calibrate.collect import collect
from slimformer.calibrate.gather import gather
from slimformer.calibrate.store import open_statistics
from slimformer.checkpoint.load import load
from slimformer.decompose.bypass import bypass
from slimformer.errors import BudgetOutOfReach, PlanDoesNotFit, RankTooHigh, UnknownMethod
from slimformer.inspect.linearity import how_linear, linearity
from slimformer.linalg.pairs import Pairs
from slimformer.models import describe
from slimformer.models.architecture import weight_of
from slimformer.models.hooks import listening
from slimformer.models.load import in_memory
from slimformer.models.walk import real_rows
from slimformer.plan import NEAR_ENOUGH, Budget, Terms, allocate
from slimformer.plan.cost import block_cost
from slimformer.plan.ffn import joint_of, path_curves, path_sizes
from slimformer.plan.plan import check_fits
from slimformer.plan.profile import Legal, Prices, ladders, site_curves
from slimformer.rewrite.apply import Cut, apply
from slimformer.rewrite.bypass import is_linear_apart, put_path
from slimformer.rewrite.correct import correct
from slimformer.rewrite.sizes import state_sizes
from slimformer.steps.alternatives import alternatives
from slimformer.steps.calibration import calibrate, profile
from slimformer.steps.make import carry_out, from_statistics, make_plan, replay

GATED = ("llama", "mistral", "qwen2", "qwen3")
UNGATED = tuple(name for name in MODEL_TYPES if name not in GATED)
every_family = pytest.mark.parametrize("model_type", MODEL_TYPES)
HOW = recipe("balanced", metric="squares", attention="heads", ridge=1e-6)


def joined(model):
    """A model in double precision with the moments of neurons and input, and all curves."""
    found = calibrated(model)
    blocks = list(collect(found.model, found.architecture, found.data, joint=True))
    curves = {}
    for site in found.architecture:
        W, block = weight_of(found.model.get_submodule(site.reader)), blocks[site.block]
        curves |= site_curves(site, W, block.sites[site.name], selector=HOW.selector, ridge=HOW.ridge, absorb_mean=True)
        if site.kind == "ffn.hidden":
            joint = joint_of(site, W, block, HOW)
            curves |= path_curves(joint, curves[site.name].order, ridge=HOW.ridge)
    return found, blocks, curves


@functools.cache
def stock(model_type):
    return joined(tiny(model_type))


def planned(found, curves, *, ffn="best", macs=0.6, format="ragged"):
    how = HOW.model_copy(update={"ffn": ffn})
    return allocate(found.architecture, curves, Terms(Budget(macs), how, LENGTH, format=format))


def with_sizes(plan, *sizes):
    """The plan with other numbers of neurons and ranks, block by block."""
    wanted = {f"blocks.{i}.ffn.hidden": size for i, size in enumerate(sizes)}
    edits = tuple(
        dataclasses.replace(e, keep=wanted[e.site][0], groups=wanted[e.site][0], rank=wanted[e.site][1])
        if e.site in wanted
        else dataclasses.replace(e, keep=e.of)
        for e in plan.edits
    )
    return dataclasses.replace(plan, edits=edits)


def with_paths(model_type, *sizes):
    found, blocks, curves = stock(model_type)
    plan = with_sizes(planned(found, curves, macs=1.0), *sizes)
    return found, plan, apply(plan, found.model, curves, lambda i: blocks[i])


def put(found, blocks, curves, *, k, r, ridge=1e-12):
    """A copy in which every feed-forward part has k neurons and a path of rank r."""
    small = copy.deepcopy(found.model)
    for site in found.architecture:
        if site.kind == "ffn.hidden":
            W = weight_of(found.model.get_submodule(site.reader))
            joint = joint_of(site, W, blocks[site.block], HOW)
            put_path(small, site, bypass(joint, curves[site.name].order, k, r, ridge=ridge))
    return small


def furthest(found, small):
    return max(float((outputs(small, b) - outputs(found.model, b)).abs().max()) for b in found.data["fit"][:1])


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_new", "gelu_pytorch_tanh", "silu", "quick_gelu"])
def test_two_neurons_carry_a_linear_map(name):
    t = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    assert float((ACT2FN[name](t) - ACT2FN[name](-t) - t).abs().max()) <= 1e-12
    assert is_linear_apart(name) and not is_linear_apart("tanh") and not is_linear_apart("relu2")


@every_family
def test_with_all_neurons_a_path_changes_nothing(model_type):
    found, blocks, curves = stock(model_type)
    assert furthest(found, put(found, blocks, curves, k=48, r=4)) <= 1e-6


@pytest.mark.parametrize("model_type", UNGATED)
def test_a_linear_mlp_is_replaced_exactly(model_type):
    """With large biases every activation here is linear where data are; no neuron of the old ones is then needed."""
    model = tiny(model_type)
    for site in describe(model):
        if site.kind == "ffn.hidden":
            with torch.no_grad():
                model.get_submodule(site.writers[0].module).bias += 12
    found, blocks, curves = joined(model)
    small = put(found, blocks, curves, k=0, r=32)
    assert furthest(found, small) <= 1e-5
    assert all(site.units == 64 for site in describe(small) if site.kind == "ffn.hidden")


@every_family
@pytest.mark.parametrize("ffn", ["best", "bypass", "linear"])
def test_what_is_planned_is_what_the_model_costs(model_type, ffn):
    found, blocks, curves = stock(model_type)
    plan = planned(found, curves, ffn=ffn)
    check_fits(plan, found.architecture, "")
    small = apply(plan, found.model, curves, lambda i: blocks[i])
    kept = block_cost(describe(small), LENGTH)
    dense = block_cost(found.architecture, LENGTH)
    assert (kept.macs / dense.macs, kept.params / dense.params) == (plan.macs, plan.params)
    assert plan.macs <= 0.6
    if ffn != "best":
        assert any(edit.rank for edit in plan.edits)


@every_family
@pytest.mark.parametrize("format", ["ragged", "plain"])
def test_at_every_price_the_choice_is_no_worse_than_neurons(model_type, format):
    found, _, curves = stock(model_type)
    best, alone = (
        ladders(found.architecture, curves, Prices(LENGTH), Legal(plain=format == "plain", ffn=ffn))
        for ffn in ("best", "neurons")
    )
    for one, other in zip(best, alone, strict=True):
        assert list(one.cost) == sorted(set(one.cost)) and one.sizes[-1] == other.sizes[-1]
        for cost, harm in zip(other.cost, other.harm, strict=True):
            assert min(h for c, h in zip(one.cost, one.harm, strict=True) if c <= cost) <= harm


@pytest.mark.parametrize("model_type", ["llama", "opt", "gpt2", "bert"])
def test_sequential_correction_refits_neurons_and_path_together(model_type):
    found, plan, small = with_paths(model_type, (16, 8), (0, 16 if model_type != "llama" else 32), (24, 4))
    _, blocks, curves = stock(model_type)
    done = correct(small, found.model, Cut(plan, curves, lambda i: blocks[i]), found.data).corrections
    assert all(each.after <= each.before for each in done)
    assert any(each.after < each.before for each in done if each.site.endswith("hidden"))
    if model_type != "llama":  # pairs stay pairs
        W = weight_of(small.get_submodule(describe(small)["blocks.0.ffn.hidden"].reader))
        torch.testing.assert_close(W[:, 16:24], -W[:, 24:])


@pytest.mark.parametrize("model_type", GATED)
def test_a_path_of_its_own_is_saved_and_opened_again(model_type, tmp_path):
    found, _, small = with_paths(model_type, (16, 8), (48, 0), (0, 32))
    small.save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())["slimformer"]
    assert (table["format"], table["bypass"]["ranks"], table["bypass"]["bias"]) == (5, {"0": 8, "2": 32}, [0, 2])
    again = load(tmp_path, dtype=torch.float64)
    assert describe(again).sites == describe(small).sites
    batch = found.data["select"][0]
    torch.testing.assert_close(outputs(again, batch), outputs(small, batch), rtol=1e-9, atol=1e-9)
    shorter = copy.deepcopy(small)
    with pytest.raises(PlanDoesNotFit, match="beside gated neurons"):
        state_sizes(shorter, "plain")


def test_paths_without_a_bias_are_read_and_written_as_before(tmp_path):
    """Beside a reader with a bias of its own a path has none; older checkpoints have none anywhere."""
    found, blocks, curves = joined(tiny("llama", mlp_bias=True))
    plan = with_sizes(planned(found, curves, macs=1.0), (16, 8), (48, 0), (0, 32))
    small = apply(plan, found.model, curves, lambda i: blocks[i])
    small.save_pretrained(tmp_path)
    table = json.loads((tmp_path / "config.json").read_text())["slimformer"]
    assert (table["format"], table["bypass"].keys()) == (4, {"path", "width", "ranks"})
    batch = found.data["select"][0]
    again = load(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(outputs(again, batch), outputs(small, batch), rtol=1e-9, atol=1e-9)
    assert block_cost(describe(again), LENGTH) == block_cost(found.architecture, LENGTH, plan.sizes)


@pytest.mark.parametrize(("k", "r"), [(0, 32), (0, 12), (16, 8)])
@pytest.mark.parametrize("model_type", GATED)
def test_what_replaces_neurons_is_least_squares_with_an_intercept(model_type, k, r, tmp_path):
    """Held-out error of the part as it is saved and opened again, against the regression done from scratch."""
    found, blocks, curves = stock(model_type)
    small = put(found, blocks, curves, k=k, r=r)
    state_sizes(small, "ragged")
    small.save_pretrained(tmp_path)
    part, dense = (m.get_submodule("model.layers.0.mlp") for m in (load(tmp_path, dtype=torch.float64), found.model))
    heard = {split: [] for split in ("fit", "select")}
    for split, rows in heard.items():
        with listening(found.model, inputs={"model.layers.0.mlp": rows.append}):
            for batch in found.data[split]:
                found.model(**batch.inputs)
    x, held = (torch.cat([each.detach().flatten(0, 1) for each in rows]) for rows in heard.values())
    kept = sorted(curves["blocks.0.ffn.hidden"].order[:k])
    with torch.no_grad():
        hidden = [(dense.act_fn(dense.gate_proj(rows)) * dense.up_proj(rows))[:, kept] for rows in (x, held)]
        y, target, given = dense(x), dense(held), part(held)

        def best(constant):
            """The best map of rank r from x beside any map from the kept neurons, on the held-out rows."""
            ones = [torch.full((len(rows), int(constant)), 1.0, dtype=torch.float64) for rows in (x, held)]
            known, seen = (torch.cat([h, one], 1) for h, one in zip(hidden, ones, strict=True))
            without = torch.eye(len(x), dtype=torch.float64) - known @ torch.linalg.pinv(known)
            M = torch.linalg.lstsq(without @ x, without @ y).solution
            _, _, V = torch.linalg.svd(without @ x @ M, full_matrices=False)
            M = M @ V[:r].mT @ V[:r]
            N = torch.linalg.lstsq(known, y - x @ M).solution if known.shape[1] else known.new_zeros(0, y.shape[1])
            return float((held @ M + seen @ N - target).square().sum())

        error = float((given - target).square().sum())
    assert error == pytest.approx(best(True), rel=1e-3)
    if k == 0:
        assert best(False) > 1.005 * best(True)


@pytest.mark.parametrize("model_type", UNGATED)
def test_without_a_gate_the_checkpoint_stays_stock(model_type, tmp_path):
    """The same width in every block, shared between neurons and path as each likes."""
    found, blocks, curves = stock(model_type)
    plan = dataclasses.replace(with_sizes(planned(found, curves, macs=1.0), (24, 4), (32, 0), (16, 8)), format="plain")
    small = apply(plan, found.model, curves, lambda i: blocks[i])
    small.save_pretrained(tmp_path)
    assert "slimformer" not in json.loads((tmp_path / "config.json").read_text())
    again = type(found.model).from_pretrained(tmp_path, dtype=torch.float64)
    batch = found.data["select"][0]
    torch.testing.assert_close(outputs(again, batch), outputs(small, batch), rtol=1e-9, atol=1e-9)
    chosen = planned(found, curves, ffn="bypass", macs=0.7, format="plain")
    assert len({edit.keep + 2 * edit.rank for edit in chosen.edits if edit.site.endswith("hidden")}) == 1


@pytest.mark.parametrize("ffn", ["best", "bypass", "linear", "neurons"])
def test_plans_stay_within_what_the_tokens_can_fit(ffn):
    """384 tokens, 600 neurons: what lies between is never planned; a budget that would need it is refused at once."""
    found, blocks, curves = scarce()
    for macs in (0.95, 0.9, 0.85, 0.8, 0.7, 0.6):
        try:
            plan = planned(found, curves, ffn=ffn, macs=macs)
        except RankTooHigh as refused:
            assert re.fullmatch(r"macs=.* \(the nearest keeps 0\.\d+\); give more with tokens=…", str(refused))
            continue
        assert macs - NEAR_ENOUGH <= plan.macs <= macs
        apply(plan, found.model, curves, lambda i: blocks[i])


def test_a_budget_is_refused_when_nothing_below_it_can_be_fitted():
    """As if a head were wider than there are tokens, so that all heads have to stay."""
    found, _, curves = stock("llama")
    lists = ("sizes", "groups", "fit", "held", "floor")
    curves = {
        name: dataclasses.replace(curve, **{each: getattr(curve, each)[-1:] for each in lists})
        if name.endswith("heads")
        else curve
        for name, curve in curves.items()
        if "*" not in name
    }
    with pytest.raises(RankTooHigh, match="too few to fit sizes near it"):
        planned(found, curves, ffn="neurons", macs=0.4)


@functools.cache
def scarce():
    return joined(tiny("llama", intermediate_size=600))


def test_a_model_with_a_path_can_be_cut_again():
    _, _, small = with_paths("llama", (24, 8), (24, 8), (24, 8))
    again = calibrated(small)
    how = recipe("balanced", metric="squares", attention="heads", ridge=1e-6)
    assert furthest(again, again.compress(1.0, how)) <= 1e-9
    plan = again.plan(0.8, how)
    cut = again.apply(plan, how)
    kept = block_cost(describe(cut), LENGTH).macs / block_cost(again.architecture, LENGTH).macs
    assert kept == plan.macs <= 0.8
    assert all(site.beside == 2 * 8 * 32 for site in describe(cut) if site.kind == "ffn.hidden")
    data = {split: doubled(tiny_batches(cut, 1, seed=n)) for n, split in enumerate(("fit", "select"))}
    known = Cut(plan, again.curves(how), lambda i: again.blocks[i])
    done = correct(cut, again.model, known, data).corrections
    assert all(each.after <= each.before for each in done)


def ids(rows=80):
    return torch.randint(5, VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A tiny LLaMA calibrated once, with joint moments."""
    loaded = in_memory(tiny("llama"))
    data = gather(ids(), loaded.model, None, describe(loaded.model))
    return loaded, calibrate(loaded, data, tmp_path_factory.mktemp("stats") / "joint", joint=True), data


def test_every_budget_comes_from_one_calibration(bench):
    loaded, statistics, _ = bench
    how = recipe("balanced", metric="squares")
    curves = profile(loaded.model, statistics, how)
    assert profile(loaded.model, open_statistics(statistics.folder), how) == curves
    run = from_statistics(loaded, statistics, how)
    assert run.curves == curves
    for macs in (0.7, 0.5):
        plan = make_plan(run, Budget(macs), how)
        small = carry_out(plan, loaded.model, statistics, curves)
        again, _ = replay(type(plan).from_json(plan.to_json()), loaded.model, statistics)
        state = again.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in small.state_dict().items())
        found = alternatives(run, Budget(macs), how)
        point = next(point for point in found["points"] if point["budget"] == macs)
        kept = {site["site"]: keep for site, keep in zip(found["sites"], point["keep"], strict=True)}
        for edit in plan.edits:
            if edit.site.endswith("hidden"):
                assert kept[edit.site] == (f"{edit.keep}+{edit.rank}" if edit.rank else edit.keep)


def test_joint_moments_come_back_from_disk(bench):
    loaded, statistics, data = bench
    splits = {split: data.splits[split] for split in ("fit", "select")}
    first = next(iter(collect(loaded.model, describe(loaded.model), splits, joint=True)))
    read = statistics.block(0)
    assert statistics.provenance.joint
    for split, m in first.joint.items():
        assert torch.equal(read.joint[split].gram, m.gram) and torch.equal(read.joint[split].sum, m.sum)
        assert torch.equal(read.sites["blocks.0.ffn.hidden"][split].gram, m.gram[:48, :48])


def test_what_cannot_be_had_is_refused(bench, tmp_path):
    loaded, _, data = bench
    without = calibrate(loaded, data, tmp_path / "without")
    with pytest.raises(PlanDoesNotFit, match="calibrate --paths"):
        profile(loaded.model, without, recipe("bypass"))
    odd = in_memory(tiny("opt", activation_function="tanh"))
    statistics = calibrate(odd, data, tmp_path / "odd", joint=True)
    with pytest.raises(UnknownMethod, match="activation is 'tanh'"):
        profile(odd.model, statistics, recipe("linear-mlp"))
    assert not any("+" in name for name in profile(odd.model, statistics, recipe("balanced")))
    found, plan, _ = with_paths("llama", (16, 8), (48, 0), (48, 0))
    for wrong in ({"rank": 33}, {"rank": 4, "keep": 48, "groups": 48}):
        edits = tuple(
            dataclasses.replace(edit, **wrong) if edit.site == "blocks.0.ffn.hidden" else edit for edit in plan.edits
        )
        with pytest.raises(PlanDoesNotFit, match="a path of rank"):
            check_fits(dataclasses.replace(plan, edits=edits), found.architecture, "")


def test_compress_with_paths_opens_in_a_fresh_process(tmp_path):
    result = slimformer.compress(tiny("llama"), ids(), macs=0.5, recipe="balanced", timing=False)
    assert result.report.macs_kept == result.plan.macs <= 0.5
    paths = {edit.site: edit.rank for edit in result.plan.edits if edit.rank}
    assert paths == {site["site"]: site["path"] for site in result.report.sites if "path" in site} != {}
    result.save(tmp_path / "small")  # verified there
    assert feed_forward_part("llama").module == "mlp" and (tmp_path / "small" / "plan.json").is_file()


def test_clipping_and_learned_activations_carry_no_path():
    assert all(is_linear_apart(name) for name in ("relu", "gelu", "gelu_new", "silu", "gelu_pytorch_tanh"))
    assert not any(is_linear_apart(name) for name in ("relu6", "gelu_10", "prelu", "tanh", "no such"))


@pytest.mark.parametrize("name", ["bypass", "linear-mlp"])
@pytest.mark.parametrize("asked", [{"macs": 0.7, "format": "plain"}, {"latency": 0.7}])
def test_who_wants_paths_is_not_given_neurons_without_a_word(name, asked):
    with pytest.raises(BudgetOutOfReach, match="wants linear paths, but"):
        slimformer.compress(tiny("llama"), ids(), recipe=name, timing=False, **asked)


def test_a_part_that_is_all_path_is_inspected_and_rewritten(tmp_path, trusting):
    model = tiny("llama")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.up_proj.weight.zero_()
    result = slimformer.compress(model, ids(), macs=0.5, recipe="linear-mlp", timing=False)
    assert any(site.units == 0 for site in describe(result.model) if site.kind == "ffn.hidden")
    result.save(tmp_path / "small")
    slimformer.compress(result.model, recipe="lossless")
    fit, held = tiny_batches(model, 2), tiny_batches(model, 1, seed=1)
    assert len(list(linearity(result.model, describe(result.model), fit, held))) == 3


def test_blocks_without_neurons_offer_no_paths():
    site = dataclasses.replace(describe(tiny("llama"))["blocks.0.ffn.hidden"], units=0)
    assert path_sizes(site, ffn="best", multiple_of=8, plain=False) == ()


def test_linearity_is_that_of_the_whole_part():
    found, _, small = with_paths("llama", (16, 8), (48, 0), (48, 0))
    batches = found.data["fit"][:1]
    (first, *_) = linearity(small, describe(small), batches, batches)
    heard = []
    with listening(small, inputs={"model.layers.0.mlp": heard.append}, outputs={"model.layers.0.mlp": heard.append}):
        small(**batches[0].inputs)
    x, y = (real_rows(rows, batches[0].mask) for rows in heard)
    assert first.r2 == pytest.approx(how_linear(0, Pairs.of(x, y), Pairs.of(x, y)).r2, abs=1e-4)
