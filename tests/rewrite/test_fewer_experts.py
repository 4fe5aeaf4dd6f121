"""Whole experts go: what nobody is sent to without a trace, and of the others those that cost least."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch

from calibrated import exact, outputs
from families import LENGTH, tiny, tiny_batches
from slimformer.checkpoint.save import save
from slimformer.compress import compress
from slimformer.decompose.experts import ORDERS, Contributions, least_squares, merged, reap
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.models import describe
from slimformer.models.experts import KEPT
from slimformer.models.load import in_memory
from slimformer.plan.cost import block_cost
from slimformer.recipe import load_recipe, recipe_of
from slimformer.rewrite.experts import How, fewer_experts
from slimformer.run import Run
from slimformer.steps.experts import Experts
from terminal import done, save_tiny, write_texts

TYPES = ("mixtral", "qwen3_moe")
both = pytest.mark.parametrize("model_type", TYPES)


@pytest.fixture(scope="module", params=TYPES)
def dense(request):
    """A tiny model in double precision; nobody may change it."""
    model = exact(tiny(request.param))
    describe(model)
    return model


@pytest.fixture(scope="module")
def splits(dense):
    sizes = {"fit": 4, "select": 2, "report": 1}
    return {split: tiny_batches(dense, n, rows=32, seed=i) for i, (split, n) in enumerate(sizes.items())}


def off(small, dense, splits) -> float:
    (batch,) = splits["report"]
    return float((outputs(small, batch) - outputs(dense, batch)).square().mean())


def contributions(seed: int = 0, experts: int = 5) -> torch.Tensor:
    """What some experts add to 40 tokens, of which each is sent to two."""
    generator = torch.Generator().manual_seed(seed)
    C = torch.randn(experts, 40, 6, generator=generator, dtype=torch.float64)
    sent = torch.rand(40, experts, generator=generator).argsort(1)[:, :2]
    return C * torch.zeros(40, experts).scatter(1, sent, 1.0).mT[..., None]


def test_sums_add_up_over_tokens():
    C = contributions()
    whole, parts = Contributions.of(C), Contributions.of(C[:, :13]) + Contributions.of(C[:, 13:])
    for name in ("tokens", "norms", "gram"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name))


def test_reap_is_the_mean_size_over_tokens_that_are_sent():
    C = contributions()
    norms = C.norm(dim=-1)
    scores = [float(each[each > 0].mean()) for each in norms]
    assert reap(Contributions.of(C)) == sorted(range(5), key=lambda e: -scores[e])


def test_least_squares_leaves_out_what_the_others_make_up_for():
    """The first to go is the one without which the best weights of the others leave least."""
    C = contributions()
    C[4] = 0.7 * C[1] + 0.2 * C[2]  # large, and superfluous
    y = C.sum(0).flatten()

    def lost(kept):
        X = C[list(kept)].flatten(1).mT
        return float((y - X @ torch.linalg.lstsq(X, y[:, None]).solution[:, 0]).square().sum())

    last = least_squares(Contributions.of(C))[-1]
    best = min(itertools.combinations(range(5), 4), key=lost)
    assert lost(best) < 1e-9 and lost([e for e in range(5) if e != last]) < 1e-3 * float(y.square().sum())


@pytest.mark.parametrize("order", ORDERS.values())
def test_experts_nobody_is_sent_to_go_first(order):
    C = contributions()
    C[2] = 0
    assert order(Contributions.of(C))[-1] == 2
    assert sorted(order(Contributions.of(torch.zeros_like(C)))) == list(range(5))


def test_the_mean_of_an_expert_and_a_reordered_copy_is_that_expert():
    rows = torch.randn(7, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(merged([rows, rows[torch.randperm(7)]], [3, 5]), rows)
    torch.testing.assert_close(merged([rows, torch.zeros_like(rows)], [0, 0]), rows)


def test_all_experts_kept_is_the_model_itself(dense, splits):
    fewer = fewer_experts(dense, splits, How(4))
    assert fewer.kept == [[0, 1, 2, 3]] * 3
    assert all(each.beta == 0 and each.rho is None for each in fewer.corrections)
    (batch,) = splits["report"]
    assert torch.equal(outputs(fewer.model, batch), outputs(dense, batch))


@pytest.mark.parametrize("by", ORDERS)
def test_an_expert_that_is_never_sent_to_goes_without_a_trace(dense, splits, by):
    """Its score is far below all others: the router sees the largest coordinate of what it reads, and shuns it."""
    model = copy.deepcopy(dense)
    for block in model.base_model.layers:
        block.mlp.gate.register_forward_hook(shun(1), prepend=True)
    small = fewer_experts(model, splits, How(3, by=by, correct=False))
    assert small.kept == [[0, 2, 3]] * 3
    for block in small.model.base_model.layers:
        block.mlp.gate._forward_hooks.clear()
    assert off(small.model, model, splits) < 1e-24


def shun(n: int):
    """The router as if the score of expert n were −∞."""

    def after(router, args, _output):
        scores = args[0] @ router.weight.mT
        scores[:, n] = -torch.inf
        weights, chosen = scores.softmax(-1).topk(router.top_k)
        return scores, weights / weights.sum(-1, keepdim=True), chosen

    return after


@pytest.mark.parametrize("instead", ["drop", "merge"])
def test_correction_brings_outputs_nearer_and_the_original_stays(dense, splits, instead):
    (batch,) = splits["report"]
    before = outputs(dense, batch)
    plain, corrected = (fewer_experts(dense, splits, How(3, instead=instead, correct=c)) for c in (False, True))
    assert torch.equal(outputs(dense, batch), before) and len(describe(dense).neurons) == 12
    assert 0 < off(corrected.model, dense, splits) < off(plain.model, dense, splits)
    assert all(each.after <= each.before for each in corrected.corrections)


def test_fewer_experts_come_back_by_the_stock_class_and_remember_their_numbers(dense, splits, tmp_path):
    small = fewer_experts(dense, splits, How(3)).model.float()
    cost, whole = (block_cost(describe(model), LENGTH) for model in (small, dense))
    assert whole.macs - cost.macs == 3 * 32  # a row of each router
    assert whole.params - cost.params == 3 * (3 * 48 * 32 + 32)
    save(small, tmp_path / "small", verify=True)
    again = type(small).from_pretrained(tmp_path / "small")
    assert not hasattr(again.config, "slimformer") and again.config.num_local_experts == 3
    numbers = [[site.expert.before for site in block.neurons] for block in describe(again).blocks]
    assert numbers == getattr(again.config, KEPT)
    twice = fewer_experts(small, splits, How(2)).model
    assert all(set(b) < set(a) for a, b in zip(numbers, getattr(twice.config, KEPT), strict=True))


def test_a_recipe_takes_experts_then_neurons(tmp_path):
    steps = ({"experts": {"keep": 3}}, {"cut": {"params": 0.6, "multiple_of": 4}}, {"refine": {}})
    model = tiny("mixtral")
    ids = torch.randint(5, 64, (40, LENGTH), generator=torch.Generator().manual_seed(0))
    result = compress(model, ids, recipe=recipe_of("both", "experts, then neurons", *steps), timing=False)
    report = result.report.to_dict()
    kept = [site for site in report["sites"] if ".experts." in site["site"]]
    assert len(kept) == 12 and sum(site["keep"] == 0 for site in kept) == 3
    assert report["experts"]["kept"] == getattr(result.model.config, KEPT)
    assert result.report.small.block_params < 0.6 * result.report.dense.block_params
    result.save(tmp_path / "small")


@pytest.mark.parametrize(("settings", "kept"), [({}, 2), ({"share": 0.75}, 3), ({"keep": 3}, 3), ({"keep": 4}, 4)])
def test_a_number_of_experts_goes_before_a_share(settings, kept):
    ids = torch.randint(5, 64, (40, LENGTH), generator=torch.Generator().manual_seed(0))
    recipe = recipe_of("fewer", "experts", {"experts": settings})
    assert compress(tiny("mixtral"), ids, recipe=recipe, timing=False).report.experts["keep"] == kept


@pytest.mark.parametrize(
    ("model_type", "settings", "error", "message"),
    [
        ("llama", {"share": 0.5}, UnknownMethod, "llama has no experts"),
        ("mixtral", {"keep": 1}, BudgetOutOfReach, "a token goes to 2, so 1 cannot stay; keep 2 to 4"),
        ("mixtral", {"keep": 5}, BudgetOutOfReach, "keep 2 to 4"),
        ("qwen3_moe", {"share": 0.2}, BudgetOutOfReach, "so 1 cannot stay"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_data_are_read(model_type, settings, error, message):
    loaded = in_memory(tiny(model_type))
    with pytest.raises(error, match=message):
        Experts(**settings).require_possible(Run(loaded, loaded.model))


def test_the_recipe_keeps_half():
    (step,) = load_recipe("experts").steps
    assert step.share == 0.5


@pytest.mark.usefixtures("trusting")
def test_a_model_of_fewer_experts_is_known_as_its_own(tmp_path):
    save_tiny(tmp_path / "dense", "mixtral")
    write_texts(tmp_path / "text.txt")
    brief = ("--data", tmp_path / "text.txt", "--tokens", 600, "--seq-len", 16)
    done("compress", tmp_path / "dense", "--recipe", "experts", *brief, "--out", tmp_path / "small", "-q")
    shown = done("eval", tmp_path / "small", "--against", tmp_path / "dense", "--data", tmp_path / "text.txt")
    assert "another model" not in shown.out + shown.err
