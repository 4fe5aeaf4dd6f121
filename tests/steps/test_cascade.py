"""A cascade answers as its two models do, each where it should, whatever the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from families import CLASSES, LENGTH, tiny, tiny_batches, tiny_ragged
from slimformer.calibrate.gather import Data
from slimformer.calibrate.text import Batch
from slimformer.errors import BudgetOutOfReach, PlanDoesNotFit, UnknownArchitecture
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.perplexity import perplexity
from slimformer.evaluate.routing import at_threshold, paired
from slimformer.models.load import Loaded
from slimformer.plan import Budget
from slimformer.recipe import cut_settings
from slimformer.run import Run
from slimformer.steps.calibration import calibrate
from slimformer.steps.cascade import Cascade, CascadeResult, make_cascade, observe
from slimformer.steps.make import carry_out, from_statistics, make, make_plan

CLASSIFIERS = ("bert", "llama", "vit")
LANGUAGE = ("llama", "gpt2")
UNIFORM = cut_settings("uniform")


def classifiers(kind: str, threshold: float) -> Cascade:
    model = tiny(kind, "classify")
    return Cascade(tiny_ragged(model), model, threshold, (0.5, 1.0))


def language_models(kind: str, threshold: float) -> Cascade:
    model = tiny(kind, "causal")
    return Cascade(tiny_ragged(model), model, threshold, (0.5, 1.0))


def middle(cascade: Cascade, batch: Batch) -> Cascade:
    """The same with a threshold between the entropies of the rows, so that about half go on."""
    h = cascade.score(**batch.inputs).entropy if cascade.scores_text else cascade(**batch.inputs).entropy
    h = h.sort().values
    return replace(cascade, threshold=float(h[len(h) // 2 - 1] + h[len(h) // 2]) / 2)


@torch.no_grad()
def logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    return model(**batch.inputs).logits


@contextmanager
def rows_read(model: PreTrainedModel) -> Iterator[list[int]]:
    """How many rows every call of the model had."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, __, given: seen.append(len(next(iter(given.values())))), with_kwargs=True
    )
    yield seen
    hook.remove()


# --- classifiers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_ends_of_the_scale_are_the_two_classifiers(kind: str) -> None:
    cascade = classifiers(kind, 0.0)
    batch = tiny_batches(cascade.large, 1)[0]
    everything, nothing = cascade(**batch.inputs), replace(cascade, threshold=math.inf)(**batch.inputs)
    assert everything.routed.all() and not nothing.routed.any()
    assert torch.allclose(everything.logits, logits(cascade.large, batch), atol=1e-6)
    assert torch.equal(nothing.logits, logits(cascade.small, batch))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_row_comes_from_the_model_it_was_routed_to(kind: str) -> None:
    batch = tiny_batches(tiny(kind, "classify"), 1)[0]
    cascade = middle(classifiers(kind, 0.0), batch)
    found = cascade(**batch.inputs)
    assert found.routed.tolist() == (found.entropy >= cascade.threshold).tolist()
    assert found.routed.sum() == 4
    expected = logits(cascade.small, batch).where(~found.routed[:, None], logits(cascade.large, batch))
    assert torch.allclose(found.logits, expected, atol=1e-5)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_batch_is_routed_as_its_rows_are_one_by_one(kind: str) -> None:
    """Each row alone and, where it is text, without its padding."""
    batch = tiny_batches(tiny(kind, "classify"), 1)[0]
    cascade = middle(classifiers(kind, 0.0), batch)
    together = cascade(**batch.inputs)
    for i in range(len(together.logits)):
        long = slice(None) if batch.mask is None else batch.mask[i]
        alone = cascade(**{name: value[i][long][None] for name, value in batch.inputs.items()})
        assert alone.routed.tolist() == [together.routed[i].item()]
        assert torch.allclose(alone.logits[0], together.logits[i], atol=1e-5)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_the_large_model_reads_only_what_it_gets(kind: str) -> None:
    batch = tiny_batches(tiny(kind, "classify"), 1)[0]
    cascade = middle(classifiers(kind, 0.0), batch)
    with rows_read(cascade.small) as small, rows_read(cascade.large) as large:
        found = cascade(**batch.inputs)
        replace(cascade, threshold=math.inf)(**batch.inputs)
    assert (small, large) == ([8, 8], [4])
    assert cascade.mean_macs(found.routed) == pytest.approx(0.5 + 0.5 * 1.0)


def test_what_comes_back_may_be_changed_and_the_models_stay_in_their_mode() -> None:
    cascade = classifiers("bert", 0.0)
    cascade.small.train()
    found = cascade(**tiny_batches(cascade.large, 1)[0].inputs)
    found.logits[0] += 1
    assert cascade.small.training and not cascade.large.training


def test_inputs_shared_by_all_rows_are_passed_on() -> None:
    cascade = classifiers("bert", 0.0)
    batch = tiny_batches(cascade.large, 1)[0]
    shared = {**batch.inputs, "position_ids": torch.arange(LENGTH)[None], "output_attentions": False}
    assert torch.allclose(cascade(**shared).logits, cascade(**batch.inputs).logits, atol=1e-6)


def test_observed_errors_are_those_of_the_accuracy() -> None:
    model = tiny("bert", "classify")
    batches = labelled(model, tiny_batches(model), noise=0.3)
    found, measured = observe(model, batches), accuracy(model, batches)
    assert found.measure == "error"
    assert [loss == 0 for loss in found.losses] == list(measured.correct)
    assert list(found.lengths) == [float(n) for batch in batches for n in batch.mask.sum(1)]


# --- language models ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LANGUAGE)
def test_the_ends_of_the_scale_have_the_perplexity_of_the_two_models(kind: str) -> None:
    cascade = language_models(kind, 0.0)
    batch = tiny_batches(cascade.large, 1)[0]
    for threshold, model in ((0.0, cascade.large), (math.inf, cascade.small)):
        found = replace(cascade, threshold=threshold).score(**batch.inputs)
        expected = perplexity(model, [batch])
        assert (found.nats / found.tokens).tolist() == pytest.approx(expected.nll_per_window, rel=1e-5)
        assert found.tokens.tolist() == list(expected.tokens_per_window)


@pytest.mark.parametrize("kind", LANGUAGE)
def test_windows_are_scored_alike_in_any_company(kind: str) -> None:
    batch = tiny_batches(tiny(kind), 1)[0]
    lengths = torch.tensor([16, 9, 4, 12, 16, 3, 5, 7])
    ids, mask = batch.inputs["input_ids"], (torch.arange(LENGTH) < lengths[:, None]).long()
    cascade = middle(language_models(kind, 0.0), Batch({"input_ids": ids, "attention_mask": mask}, mask.bool()))
    together = cascade.score(ids, mask)
    assert together.routed.sum() == 4
    for i, n in enumerate(lengths.tolist()):
        alone = cascade.score(ids[i : i + 1, :n])
        assert alone.routed.item() == together.routed[i].item()
        assert alone.nats.item() == pytest.approx(together.nats[i].item(), abs=1e-4, rel=1e-5)
        assert alone.entropy.item() == pytest.approx(together.entropy[i].item(), rel=1e-5)


def test_what_stands_in_the_padding_changes_nothing() -> None:
    cascade = language_models("llama", 0.0)
    ids = tiny_batches(cascade.large, 1)[0].inputs["input_ids"]
    mask = (torch.arange(LENGTH) < 10).long().expand_as(ids)
    cascade = middle(cascade, Batch({"input_ids": ids, "attention_mask": mask}, mask.bool()))
    other = ids.clone()
    other[:, 10:] = 5
    first, second = cascade.score(ids, mask), cascade.score(other, mask)
    assert torch.allclose(first.entropy, second.entropy) and torch.allclose(first.nats, second.nats)


def test_the_large_language_model_reads_only_what_it_gets() -> None:
    batch = tiny_batches(tiny("llama"), 1)[0]
    cascade = middle(language_models("llama", 0.0), batch)
    with rows_read(cascade.small) as small, rows_read(cascade.large) as large:
        found = cascade.score(**batch.inputs)
    assert (sum(small), sum(large)) == (8, 4) == (8, int(found.routed.sum()))


def test_observed_nats_are_those_of_the_perplexity() -> None:
    model = tiny("gpt2")
    batches = tiny_batches(model)
    found, measured = observe(model, batches), perplexity(model, batches)
    assert found.measure == "nats per token"
    assert found.losses == pytest.approx(measured.nll_per_window, rel=1e-5)
    assert found.weights == tuple(map(float, measured.tokens_per_window))


# --- from one calibration -----------------------------------------------------------------------------------


def labelled(model: PreTrainedModel, batches: list[Batch], *, noise: float) -> list[Batch]:
    """What the model says, except for a share of the rows."""
    draw = torch.Generator().manual_seed(0)
    out = []
    for batch in batches:
        said = logits(model, batch).argmax(-1)
        other = torch.randint(CLASSES, said.shape, generator=draw)
        out.append(replace(batch, labels=said.where(torch.rand(said.shape, generator=draw) > noise, other)))
    return out


def calibrated_on_disk(model: PreTrainedModel, folder: Path) -> Run:
    splits = {"fit": tiny_batches(model), "select": tiny_batches(model, 1, seed=1)}
    loaded = Loaded("tiny", model, None)
    return from_statistics(loaded, calibrate(loaded, Data(splits, "random", "0", 0, LENGTH), folder), UNIFORM)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Batch]]:
    model = tiny("bert", "classify")
    with torch.no_grad():  # all classes occur: a cut has something to get wrong
        scores = torch.cat([logits(model, batch) for batch in tiny_batches(model, 12, seed=2)])
        model.classifier.bias -= scores.mean(0)
    select = labelled(model, tiny_batches(model, 12, seed=2), noise=0.1)
    assert len(set(torch.cat([batch.labels for batch in select]).tolist())) == CLASSES
    return calibrated_on_disk(model, tmp_path_factory.mktemp("stats")), select


def test_the_dense_model_itself_is_the_large_one(made) -> None:
    run, select = made
    found = make_cascade(run, UNIFORM, select, budgets=(0.5, 1.0))
    assert found.cascade.large is run.dense
    assert found.plans["large"] is None and found.record.large.macs == 1.0
    assert found.record.small.macs == found.plans["small"].macs <= 0.5


def test_the_cuts_are_those_of_one_calibration(made) -> None:
    run, select = made
    found = make_cascade(run, UNIFORM, select, budgets=(0.5, 0.8))
    for role, model, macs in (("small", found.cascade.small, 0.5), ("large", found.cascade.large, 0.8)):
        plan = make_plan(run, Budget(macs), UNIFORM)
        again = carry_out(plan, run.dense, run.known, run.curves).state_dict()
        assert plan == found.plans[role]
        assert all(torch.equal(value, again[name]) for name, value in model.state_dict().items())
    assert found.cascade.macs == (found.record.small.macs, found.record.large.macs)


def test_the_threshold_keeps_within_the_tolerance_on_select(made) -> None:
    run, select = made
    points = []
    for tolerance in (0.0, 0.02, 1.0):
        found = make_cascade(run, UNIFORM, select, budgets=(0.5, 1.0), tolerance=tolerance)
        dense = 1 - accuracy(run.dense, select).value
        wrong = torch.cat([found.cascade(**batch.inputs).logits.argmax(-1) != batch.labels for batch in select])
        assert found.point.loss == pytest.approx(float(wrong.double().mean()))
        assert found.point.loss <= dense + tolerance + 1e-9
        points.append(found.point.macs)
    assert points == sorted(points, reverse=True)
    assert points[0] > points[-1] == pytest.approx(found.record.small.macs)


def test_a_mean_budget_is_met_on_select(made) -> None:
    run, select = made
    found = make_cascade(run, UNIFORM, select, budgets=(0.5, 1.0), mean_macs=0.9)
    routed = torch.cat([found.cascade(**batch.inputs).routed for batch in select])
    assert 0.9 - 1 / len(routed) < found.cascade.mean_macs(routed) <= 0.9
    assert found.cascade.mean_macs(routed) == pytest.approx(found.record.select["macs"])


def test_without_labels_the_large_model_is_what_counts(made) -> None:
    run, select = made
    blind = [replace(batch, labels=None) for batch in select]
    found = make_cascade(run, UNIFORM, blind, budgets=(0.5, 1.0), tolerance=0.0)
    assert found.record.select["measure"] == "disagreement" and found.record.select["large_loss"] == 0.0
    for batch in blind:
        assert torch.equal(found.cascade(**batch.inputs).logits.argmax(-1), logits(run.dense, batch).argmax(-1))


def test_language_models_are_routed_by_nats(tmp_path: Path) -> None:
    model = tiny("llama")
    run = calibrated_on_disk(model, tmp_path / "stats")
    select = tiny_batches(model, 4, seed=2)
    found: CascadeResult = make_cascade(run, UNIFORM, select, budgets=(0.5, 1.0), mean_macs=1.0)
    scored = [found.cascade.score(**batch.inputs) for batch in select]
    nats, tokens = (sum(float(getattr(each, name).sum()) for each in scored) for name in ("nats", "tokens"))
    assert found.record.select["measure"] == "nats per token"
    assert nats / tokens == pytest.approx(found.point.loss, rel=1e-6)
    assert found.point.macs == pytest.approx(found.cascade.mean_macs(torch.cat([each.routed for each in scored])))


def test_a_cut_is_rounded_to_the_precision_it_is_stored_in(made) -> None:
    run, _ = made
    stored = replace(run, loaded=replace(run.loaded, dtype=torch.bfloat16))
    small = make(stored, Budget(0.5), UNIFORM).model
    assert small.dtype == torch.float32
    assert all(torch.equal(value, value.bfloat16().float()) for value in small.parameters())


def test_the_same_answers_on_other_data_give_the_point_there(made) -> None:
    run, select = made
    found = make_cascade(run, UNIFORM, select[:6], budgets=(0.5, 1.0), mean_macs=0.9)
    cascade = found.cascade
    other = paired(observe(cascade.small, select[6:]), observe(cascade.large, select[6:]))
    point = at_threshold(other, cascade.macs, cascade.threshold)
    routed = torch.cat([cascade(**batch.inputs).routed for batch in select[6:]])
    assert point.routed == pytest.approx(float(routed.double().mean()))


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budgets", [(0.8, 0.5), (0.5, 0.5), (0.0, 1.0), (0.5, 1.2)])
def test_budgets_must_be_two_that_grow(made, budgets) -> None:
    run, select = made
    with pytest.raises(BudgetOutOfReach, match="the small one first"):
        make_cascade(run, UNIFORM, select, budgets=budgets)


@pytest.mark.parametrize(
    "model",
    [
        tiny("bert", "masked"),
        tiny("bert", "bare"),
        tiny("bert", "answer"),
        tiny("bert", "classify", num_labels=1),
        tiny("bert", "classify", problem_type="multi_label_classification"),
    ],
    ids=["masked", "bare", "answer", "regression", "multi-label"],
)
def test_models_that_choose_nothing_are_refused(model: PreTrainedModel) -> None:
    with pytest.raises(UnknownArchitecture, match="no entropy to route by"):
        Cascade(model, model, 0.5, (1.0, 1.0))


def test_models_of_different_tasks_are_refused() -> None:
    small = tiny("bert", "classify")
    for large in (tiny("bert", "classify", num_labels=3), tiny("roberta", "classify"), tiny("llama")):
        with pytest.raises(PlanDoesNotFit, match="two cuts of one model"):
            Cascade(small, large, 0.5, (0.5, 1.0))


def test_a_threshold_is_a_number_of_nats() -> None:
    for wrong in (-0.1, math.nan):
        with pytest.raises(ValueError, match="a number of nats from 0"):
            classifiers("bert", wrong)


def test_classifiers_are_called_and_language_models_score() -> None:
    with pytest.raises(UnknownArchitecture, match="use its `score`"):
        language_models("llama", 0.5)(input_ids=torch.zeros(1, 4, dtype=torch.long))
    with pytest.raises(UnknownArchitecture, match="call it with a batch"):
        classifiers("bert", 0.5).score(torch.zeros(1, 4, dtype=torch.long))


def test_statistics_of_another_model_are_refused(made) -> None:
    run, select = made
    other = Loaded("other", tiny("bert", "classify", seed=7), None)
    strange = replace(run, loaded=other, model=other.model)
    for budgets in ((0.5, 0.8), (0.5, 1.0)):
        with pytest.raises(PlanDoesNotFit, match="calibrate it anew"):
            make_cascade(strange, UNIFORM, select, budgets=budgets)
