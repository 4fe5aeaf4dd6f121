"""The local phase: blocks learn the dense states, or stay as they were."""

import torch

from families import tiny, tiny_batches, tiny_plan
from slimformer.heal import local
from slimformer.heal.local import LocalPlan, Walk, heal_blocks, local_plan, spans_of
from slimformer.heal.trained import snapshot, trained_parameters
from slimformer.heal.work import Work


def walk(model_type, head=None, **more):
    dense = tiny(model_type, head)
    small = tiny_plan(dense, 0.5)[1]
    return Walk(small, dense, (1,) * 3, **more), {
        "fit": tiny_batches(dense, 4),
        "select": tiny_batches(dense, 2, seed=9),
    }


def test_no_block_is_farther_from_its_dense_stream_than_it_was(tmp_path):
    for model_type, head in (("llama", "causal"), ("bert", "bare"), ("vit", "classify"), ("gpt2", "causal")):
        both, data = walk(model_type, head)
        folder = tmp_path / model_type
        folder.mkdir()
        _, done = heal_blocks(both, data, LocalPlan(4, 4), Work(folder))
        assert [block.block for block in done] == [0, 1, 2]
        assert all(block.after <= block.before for block in done), model_type
        assert any(block.after < block.before for block in done), model_type


def test_a_block_that_learns_nothing_keeps_its_bits(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "RATES", (1e9, 1e8))  # that ruin everything
    both, data = walk("llama")
    before = snapshot(trained_parameters(both.small))
    heal_blocks(both, data, LocalPlan(4, 2), Work(tmp_path))
    assert all(torch.equal(p, before[name]) for name, p in trained_parameters(both.small).items())


def test_a_walk_that_was_stopped_goes_on_to_the_same_bits(tmp_path):
    class Stop(Exception):
        pass

    def stop(i, _block):
        if i == 1:
            raise Stop

    plan, found = LocalPlan(4, 3), []
    for stopped in (False, True):
        folder = tmp_path / str(stopped)
        folder.mkdir()
        both, data = walk("opt")
        if stopped:
            try:
                heal_blocks(both, data, plan, Work(folder), stop)
            except Stop:
                both, data = walk("opt")  # all is lost but what is on the disk
            assert len(list(folder.glob("block-*"))) == 2
        heal_blocks(both, data, plan, Work(folder))
        found.append(snapshot(trained_parameters(both.small)))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_of_norms_only_vectors_change(tmp_path):
    both, data = walk("bert", "bare", kind="norms")
    before = snapshot(trained_parameters(both.small))
    heal_blocks(both, data, LocalPlan(4, 3), Work(tmp_path))
    changed = {name for name, p in trained_parameters(both.small).items() if not torch.equal(p, before[name])}
    assert changed and all(before[name].ndim == 1 for name in changed)


def test_spans_cover_all_dense_blocks():
    assert spans_of((0, 1, 2), 3) == (1, 1, 1)
    assert spans_of((0, 1, 4), 6) == (1, 3, 2)
    assert spans_of((2, 3), 5) == (3, 2)


def test_more_budget_is_more_text_then_more_epochs():
    both, data = walk("llama")
    each = data["fit"][0].tokens
    plans = [local_plan(both, data["fit"], ("tokens", n * each)) for n in (1, 6, 12, 24, 10**6)]
    assert [plan.batches for plan in plans] == [1, 2, 4, 4, 4]
    assert [plan.epochs for plan in plans] == [1, 3, 3, 6, 16]
