"""Budgets are met from below, spent well, and refused with the truth."""

import functools
import itertools
import math
import random
import re
from dataclasses import replace

import pytest
import torch
from rungs import harm_of, ladder, spent

from calibrated import calibrated, outputs, recipe, stock
from dealing import dealt
from families import LENGTH, MODEL_TYPES, attention_part, feed_forward_part, tiny, tiny_ragged
from slimformer.errors import BudgetOutOfReach
from slimformer.models import describe
from slimformer.plan import Budget, Terms, check_budget, choices
from slimformer.plan.allocate import even, exchange, greedy, plain, uniform
from slimformer.plan.cost import block_cost
from slimformer.plan.plan import check_fits
from slimformer.plan.profile import Legal, Prices, ladders, site_sizes
from slimformer.rewrite.apply import Cut
from slimformer.rewrite.correct import correct

RECIPES = ("balanced", "uniform", "stat")
KINDS = ("attn.heads", "ffn.hidden")
FORMATS = ("ragged", "plain")
BUDGETS = (0.95, 0.8, 0.65, 0.5, 0.35)


def convex(block, units, macs=1, kind="ffn.hidden", rng=random):
    """A ladder whose harm falls ever more slowly."""
    falls = sorted((rng.random() for _ in range(units)), reverse=True)
    left = [sum(falls[k:]) for k in range(units)]
    return ladder(block, left, macs=macs, kind=kind)


def best_by_trying(rungs, budget) -> float:
    choices = itertools.product(*(range(len(rung.sizes)) for rung in rungs))
    fitting = [at for at in choices if sum(rung.cost[i] for rung, i in zip(rungs, at, strict=True)) <= budget]
    return min(sum(rung.harm[i] for rung, i in zip(rungs, at, strict=True)) for at in fitting)


class Counted(tuple):
    """A tuple that counts how often something in it is looked at."""

    looks = 0

    def __getitem__(self, at):
        Counted.looks += 1
        return super().__getitem__(at)

    def __iter__(self):
        for each in super().__iter__():
            Counted.looks += 1
            yield each


@pytest.mark.parametrize("way", [uniform, plain, greedy])
def test_twice_as_many_sizes_are_twice_the_work(way):
    """A model of a billion parameters has thousands of sizes in every block: scanning all for each would take hours."""
    looks = []
    for n in (256, 512):
        left = [1 / (k + 1) for k in range(n)]
        rungs = [ladder(b, left) for b in range(4)]
        rungs += [ladder(b, left[:16], kind="attn.heads", macs=n // 16) for b in range(4)]
        rungs = [replace(r, sizes=Counted(r.sizes), cost=Counted(r.cost), harm=Counted(r.harm)) for r in rungs]
        budget, Counted.looks = sum(rung.cost[-1] for rung in rungs) // 2, 0
        way(rungs, budget=budget)
        looks.append(Counted.looks)
    assert 0 < looks[1] < 2.5 * looks[0]


def test_greedy_is_optimal_on_convex_ladders_of_equal_price():
    for seed in range(5):
        rng = random.Random(seed)
        rungs = [convex(block, 5, rng=rng) for block in range(4)]
        for budget in range(4, 21):
            sizes = greedy(rungs, budget=budget)
            assert spent(rungs, sizes) == budget
            assert harm_of(rungs, sizes) == pytest.approx(best_by_trying(rungs, budget))


def test_greedy_is_optimal_up_to_one_step_on_falling_ladders():
    for seed in range(10):
        rng = random.Random(seed)
        rungs = [
            ladder(b, sorted((rng.random() for _ in range(5)), reverse=True), macs=rng.randint(1, 5)) for b in range(4)
        ]
        least, most = sum(rung.cost[0] for rung in rungs), sum(rung.cost[-1] for rung in rungs)
        step = max(rung.cost[-1] - rung.cost[0] for rung in rungs)
        for budget in range(least, most + 1):
            sizes = greedy(rungs, budget=budget)
            assert spent(rungs, sizes) <= budget
            if budget - step >= least:
                assert harm_of(rungs, sizes) <= best_by_trying(rungs, budget - step) + 1e-12


@pytest.mark.parametrize("way", [greedy, uniform])
def test_what_is_left_of_the_budget_buys_nothing(way):
    for seed in range(10):
        rng = random.Random(seed)
        rungs = [convex(b, 6, macs=rng.randint(1, 5), kind=kind, rng=rng) for b in range(3) for kind in KINDS]
        for budget in range(sum(rung.cost[0] for rung in rungs), sum(rung.cost[-1] for rung in rungs) + 1):
            sizes = way(rungs, budget=budget)
            left = budget - spent(rungs, sizes)
            assert left >= 0
            for rung in rungs:
                i = rung.sizes.index(sizes[rung.site.name])
                assert i + 1 == len(rung.sizes) or rung.cost[i + 1] - rung.cost[i] > left


def test_a_dear_rung_is_bought_with_cheap_ones_where_that_does_less_harm():
    """Heads cost seven neurons: greedy leaves up to a head of the budget; exchanging never does more harm, and often
    less."""
    rng = random.Random(0)
    rungs = [convex(b, 4, macs=7, kind="attn.heads", rng=rng) for b in range(3)]
    rungs += [convex(b, 16, rng=rng) for b in range(3)]
    least, most = (sum(rung.cost[i] for rung in rungs) for i in (0, -1))
    better = 0
    for budget in range(least, most + 1):
        sizes = greedy(rungs, budget=budget)
        after = exchange(rungs, sizes, budget)
        assert spent(rungs, after) <= budget
        assert harm_of(rungs, after) <= harm_of(rungs, sizes) + 1e-12
        left = budget - spent(rungs, after)
        for rung in rungs:  # budgets are met within one unit of the smallest site that can still grow
            i = rung.sizes.index(after[rung.site.name])
            assert i + 1 == len(rung.sizes) or rung.cost[i + 1] - rung.cost[i] > left
        better += harm_of(rungs, after) < harm_of(rungs, sizes) - 1e-9
    assert better >= 5


def test_a_larger_budget_never_keeps_less():
    for seed in range(10):
        rng = random.Random(seed)
        rungs = [ladder(b, [rng.random() for _ in range(6)], macs=rng.randint(1, 7)) for b in range(4)]
        least, most = sum(rung.cost[0] for rung in rungs), sum(rung.cost[-1] for rung in rungs)
        kept = [spent(rungs, greedy(rungs, budget=budget)) for budget in range(least, most + 1)]
        assert kept == sorted(kept)


def test_plain_is_the_best_of_equal_sizes():
    for seed in range(5):
        rng = random.Random(seed)
        prices = dict(zip(KINDS, (7, 3), strict=True))
        rungs = [convex(b, 4, macs=prices[kind], kind=kind, rng=rng) for b in range(3) for kind in KINDS]
        for budget in range(30, 121, 9):
            sizes = plain(rungs, budget=budget)
            pairs = [(i, j) for i in range(4) for j in range(4) if 3 * (7 * (i + 1) + 3 * (j + 1)) <= budget]
            best = min(sum(rung.harm[i if rung.site.kind == KINDS[0] else j] for rung in rungs) for i, j in pairs)
            assert harm_of(rungs, sizes) == pytest.approx(best)


def test_even_keeps_the_same_share_of_heads_and_neurons():
    rungs = [convex(b, units, kind=kind) for b in range(3) for kind, units in zip(KINDS, (4, 8), strict=True)]
    sizes = even(rungs, budget=3 * (2 + 4))
    assert {name.split(".")[-1]: size.units for name, size in sizes.items()} == {"heads": 2, "hidden": 4}


@pytest.mark.parametrize(("model_type", "name"), dealt(MODEL_TYPES, RECIPES))
def test_ragged_plans_meet_the_budget_from_below_and_closely(model_type, name):
    found, how = stock(model_type), recipe(name)
    dense = block_cost(found.architecture, LENGTH).macs
    for budget in BUDGETS:
        plan = found.plan(budget, how)
        rungs = rungs_of(found, how, plain=False)
        left = budget * dense - block_cost(found.architecture, LENGTH, plan.sizes).macs
        assert left >= 0
        next_rungs = [
            rung.cost[i + 1] - rung.cost[i]
            for rung in rungs
            if (i := rung.sizes.index(plan.sizes[rung.site.name])) + 1 < len(rung.sizes)
        ]
        assert left < max(0.01 * dense, min(next_rungs) + 1)


@functools.cache
def grouped(model_type):
    """Eight heads on four key/value heads where the family groups them, else as it comes."""
    if not attention_part(model_type).kv_key:
        return stock(model_type)
    return calibrated(tiny(model_type, num_attention_heads=8, num_key_value_heads=4, head_dim=4, hidden_size=48))


def chosen_from(found, how, budget, format):
    weights = {name: block.error_weight for block in found.blocks for name in block.sites}
    return choices(found.architecture, found.curves(how), Terms(Budget(budget), how, LENGTH, weights, format)).fixed


@pytest.mark.parametrize(("model_type", "name"), dealt(MODEL_TYPES, RECIPES))
def test_what_is_left_of_a_budget_is_less_than_the_next_step_of_any_site(model_type, name):
    found, how = grouped(model_type), recipe(name, attention="heads", ffn="neurons")
    for budget in (*BUDGETS, 0.9, 0.71):
        rungs, plan = chosen_from(found, how, budget, "ragged"), found.plan(budget, how)
        left = int(budget * sum(rung.cost[-1] for rung in rungs)) - spent(rungs, plan.sizes)
        at = [rung.sizes.index(plan.sizes[rung.site.name]) for rung in rungs]
        steps = [rung.cost[i + 1] - rung.cost[i] for rung, i in zip(rungs, at, strict=True) if i + 1 < len(rung.cost)]
        assert 0 <= left < min(steps)


@pytest.mark.parametrize(("model_type", "name"), dealt(MODEL_TYPES, RECIPES))
def test_what_is_left_of_a_plain_budget_buys_nothing_better(model_type, name):
    found, how = grouped(model_type), recipe(name, ffn="neurons")
    for budget in (0.95, 0.8, 0.7):
        rungs, plan = chosen_from(found, how, budget, "plain"), found.plan(budget, how, format="plain")
        left = int(budget * sum(rung.cost[-1] for rung in rungs)) - spent(rungs, plan.sizes)
        assert left >= 0
        for kind in KINDS if name != "uniform" else KINDS[1:]:  # heads of `even` go by their share
            some = [rung for rung in rungs if rung.site.kind == kind]
            at = some[0].sizes.index(plan.sizes[some[0].site.name])
            for i in range(at + 1, len(some[0].sizes)):
                cost, harm = (
                    sum(values(rung)[i] - values(rung)[at] for rung in some)
                    for values in (lambda rung: rung.cost, lambda rung: rung.harm)
                )
                assert cost > left or harm >= 0


GROUPED = [name for name in MODEL_TYPES if attention_part(name).kv_key]


@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 4), (8, 2), (6, 3)])
@pytest.mark.parametrize("model_type", GROUPED)
def test_nothing_nearer_to_a_budget_does_less_harm(model_type, heads, kv_heads):
    """All choices are tried. Plain sizes are the best of them; ragged ones, which are exact up to a step, are within a
    tenth of the least harm. So what is left of a budget where heads go in whole groups is not lost by oversight."""
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 4, "hidden_size": 6 * heads}
    found, how = calibrated(tiny(model_type, **sizes)), recipe("balanced", attention="heads", ffn="neurons")
    for budget in (0.45, 0.55, 0.7, 0.8, 0.9):
        rungs, plan = chosen_from(found, how, budget, "ragged"), found.plan(budget, how)
        limit = int(budget * sum(rung.cost[-1] for rung in rungs))
        least, harm = front(rungs, limit)[-1], harm_of(rungs, plan.sizes)
        assert least[1] - 1e-12 <= harm <= 1.1 * least[1]
        rungs, plan = chosen_from(found, how, budget, "plain"), found.plan(budget, how, format="plain")
        limit = int(budget * sum(rung.cost[-1] for rung in rungs))
        alike = [merged([rung for rung in rungs if rung.site.kind == kind]) for kind in KINDS]
        assert harm_of(rungs, plan.sizes) == pytest.approx(front(alike, limit)[-1][1])


def front(rungs, budget):
    """(price, least harm for it) by trying every choice within a budget; only prices that buy less harm."""
    points = [(0, 0.0)]
    for rung in rungs:
        tried = sorted((a + cost, b + harm) for a, b in points for cost, harm in zip(rung.cost, rung.harm, strict=True))
        points, best = [], math.inf
        for cost, harm in tried:
            if cost <= budget and harm < best:
                best = harm
                points.append((cost, harm))
    return points


def merged(rungs):
    """Ladders that take the same size, as one."""
    cost, harm = (
        tuple(map(sum, zip(*values, strict=True))) for values in ([r.cost for r in rungs], [r.harm for r in rungs])
    )
    return replace(rungs[0], cost=cost, harm=harm)


@pytest.mark.parametrize("format", ["ragged", "plain"])
@pytest.mark.parametrize("model_type", GROUPED)
def test_key_value_heads_may_go_whole_at_any_number(model_type, format):
    found, how = grouped(model_type), recipe("uniform")
    legal = site_sizes(found.architecture, found.architecture.sites[0], Legal(plain=format == "plain"))
    wanted = {(6, 3), (4, 2), (2, 1), (3, 3), (4, 4), (8, 4)}
    assert wanted <= {(size.units, size.groups) for size in legal}
    plan = found.plan(1.0, how, format=format)
    edits = tuple(replace(e, keep=6, groups=3) if e.site.endswith("heads") else e for e in plan.edits)
    plan = replace(plan, edits=edits)
    check_fits(plan, found.architecture, "")
    small = found.apply(plan, how)
    assert {(site.units, site.group) for site in describe(small) if site.kind == "attn.heads"} == {(6, 2)}
    assert block_cost(describe(small), LENGTH) == block_cost(found.architecture, LENGTH, plan.sizes)
    correct(small, found.model, Cut(plan, found.curves(how), lambda i: found.blocks[i]), found.data)
    if format == "plain":
        assert (small.config.num_attention_heads, small.config.num_key_value_heads) == (6, 3)
        again = type(small)(small.config).double()
        again.load_state_dict(small.state_dict())
        batch = found.data["select"][0]
        torch.testing.assert_close(outputs(again, batch), outputs(small, batch))


def rungs_of(found, how, *, plain):
    return ladders(found.architecture, found.curves(how), Prices(LENGTH), Legal(how.multiple_of, plain))


@pytest.mark.parametrize(("model_type", "name", "format"), dealt(MODEL_TYPES, RECIPES, FORMATS))
def test_sizes_are_legal(model_type, name, format):
    found, how = stock(model_type), recipe(name)
    for budget in (0.9, 0.7):
        plan = found.plan(budget, how, format=format)
        assert plan.macs <= budget
        for edit in plan.edits:
            site = found.architecture[edit.site]
            assert 0 < edit.keep <= edit.of == site.units
            assert edit.keep % edit.groups == 0
            assert edit.groups <= site.units // site.group
            if site.kind == "ffn.hidden":
                assert edit.keep % 8 == 0
        if format == "plain":
            assert len({(edit.site.split(".", 2)[2], edit.keep, edit.groups) for edit in plan.edits}) == 2


@pytest.mark.parametrize(("model_type", "name"), dealt(["bert", "llama", "opt"], RECIPES))
def test_a_larger_budget_never_keeps_fewer_macs(model_type, name):
    found, how = stock(model_type), recipe(name)
    kept = [found.plan(budget / 40, how).macs for budget in range(14, 41, 2)]
    assert kept == sorted(kept)
    assert kept[-1] == 1


@pytest.mark.parametrize(("model_type", "name", "format"), dealt(MODEL_TYPES, RECIPES, FORMATS))
def test_the_whole_budget_keeps_everything(model_type, name, format):
    plan = stock(model_type).plan(1.0, recipe(name), format=format)
    assert all(edit.keep == edit.of for edit in plan.edits)
    assert plan.macs == plan.params == 1


@pytest.mark.parametrize(("model_type", "name", "format"), dealt(MODEL_TYPES, RECIPES, FORMATS))
def test_the_minimum_that_is_named_can_be_reached(model_type, name, format):
    found, how = stock(model_type), recipe(name)
    with pytest.raises(BudgetOutOfReach, match="cannot be reached") as refused:
        found.plan(0.001, how, format=format)
    minimum = float(re.search(r"minimum for this model is (0\.\d+)", str(refused.value))[1])
    plan = found.plan(minimum, how, format=format)
    assert minimum - 0.001 < plan.macs <= minimum
    assert ("format='ragged'" in str(refused.value)) == (format == "plain")


@pytest.mark.parametrize("budget", [0.0, -0.5, 1.0001, 50, float("nan"), float("inf")])
def test_a_budget_is_a_fraction(budget):
    architecture = describe(tiny("bert"))
    with pytest.raises(BudgetOutOfReach, match="is not a fraction of the MACs to keep"):
        check_budget(architecture, Budget(budget), seq_len=LENGTH, settings=recipe(), format="ragged")


def test_an_unknown_format_lists_the_known_ones():
    with pytest.raises(BudgetOutOfReach, match="no format 'gguf'; choose from ragged, plain"):
        stock("bert").plan(0.5, recipe(), format="gguf")


@pytest.mark.parametrize("name", RECIPES)
def test_blocks_that_differ_cannot_be_made_plain(name):
    found = calibrated(tiny_ragged(tiny("bert")))
    with pytest.raises(BudgetOutOfReach, match="differ in size already"):
        found.plan(0.8, recipe(name), format="plain")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_block_is_emptied_only_when_that_is_allowed_and_can_run(model_type):
    architecture = describe(tiny(model_type))
    for allowed in (False, True):
        how = recipe(allow_empty=allowed)
        rungs = ladders(architecture, stock(model_type).curves(how), Prices(LENGTH), Legal(allow_empty=allowed))
        empty = {rung.site.kind for rung in rungs if rung.sizes[0].units == 0}
        assert empty == ({"ffn.hidden"} if allowed and feed_forward_part(model_type).may_be_empty else set())
