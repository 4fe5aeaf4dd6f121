"""What serving costs: figures that can be counted are counted right, and the small model is the smaller one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from families import tiny, tiny_compressed, tiny_ragged
from slimformer.errors import SequenceTooLong
from slimformer.evaluate.bench import Workload, bench
from slimformer.evaluate.memory import Ledger, peak_bytes
from slimformer.evaluate.speed import Rounds
from slimformer.models import describe
from slimformer.plan.cost import kv_cache_bytes

QUICK, LOAD = Rounds(2, 1), Workload(batch_sizes=(1, 3), new_tokens=4)


def test_the_peak_is_that_of_tensors_alive_at_once():
    x, w = torch.randn(8, 16), torch.randn(16, 32)

    def call() -> None:
        y = x @ w  # 8 × 32
        z = torch.relu(y)  # both alive
        del y
        z.view(-1)  # shares the storage
        (z @ w.T).sum()

    assert peak_bytes(call) == 2 * 8 * 32 * 4
    with Ledger() as ledger:
        kept = x + 1
    assert ledger.live == kept.nbytes
    del kept
    assert ledger.live == 0


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "opt"])
def test_decoders_prefill_and_decode(model_type):
    model = tiny(model_type)
    small = tiny_ragged(model)
    found = bench(model, small, replace(LOAD, seq_len=16), QUICK)
    assert [(m.phase, m.batch) for m in found.measurements] == [
        ("prefill", 1), ("decode", 1), ("prefill", 3), ("decode", 3)
    ]  # fmt: skip
    for name, each in (("dense", model), ("small", small)):
        assert found.kv_cache_bytes[name] == kv_cache_bytes(describe(each), 16, 4)
        assert found.weights_bytes[name] == sum(p.nbytes for p in each.parameters())
    for m in found.measurements:
        tokens = 16 if m.phase == "prefill" else 1
        assert m.dense_rate == pytest.approx(m.batch * tokens / m.dense_seconds)
        assert 0 < m.small_peak_bytes <= m.dense_peak_bytes
    prefill = [m.dense_peak_bytes for m in found.measurements if m.phase == "prefill"]
    assert prefill[1] > 2 * prefill[0]
    assert (found.threads, found.unit, found.new_tokens) == (torch.get_num_threads(), "tokens", 4)


@torch.no_grad()
def test_decoding_starts_from_the_same_place_every_time():
    from slimformer.evaluate import bench as module

    model = tiny("llama")
    inputs = module.random_inputs(model, 2, 8)
    seen = []
    hook = model.model.layers[0].self_attn.register_forward_hook(
        lambda _m, _a, kwargs, _o: seen.append(kwargs["past_key_values"].layers[0].keys.shape[-2]), with_kwargs=True
    )
    decode = module._decoding(model, inputs, 3)
    seen.clear()
    decode(), decode()
    hook.remove()
    assert seen == [9, 10, 11, 9, 10, 11]


@pytest.mark.parametrize(("model_type", "unit"), [("bert", "tokens"), ("vit", "images")])
def test_others_make_one_pass(model_type, unit):
    model = tiny(model_type, "classify")
    found = bench(model, tiny_compressed(model), LOAD, QUICK)
    assert [m.phase for m in found.measurements] == ["forward", "forward"]
    assert found.unit == unit
    assert found.kv_cache_bytes == {"dense": 0, "small": 0}


def test_new_tokens_need_positions_too():
    model = tiny("gpt2")
    with pytest.raises(SequenceTooLong, match="64 positions"):
        bench(model, model, replace(LOAD, seq_len=62), QUICK)
    assert bench(model, model, LOAD, QUICK).seq_len == 60
