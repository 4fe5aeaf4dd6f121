"""What is cut so that it can be stored: with tables in few bits all layers have groups of one width."""

from __future__ import annotations

import pytest

from families import tiny, tiny_tokenizer
from slimformer import compress, load
from slimformer.models import describe

TEXTS = [" ".join(f"w{(7 * i + 3 * j) % 60}" for j in range(30)) for i in range(60)]


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_heads_and_neurons_are_kept_in_multiples_of_the_group(family, tmp_path):
    model = tiny(family, vocab_size=300, hidden_size=64, intermediate_size=256, num_attention_heads=4)
    result = compress(
        model, TEXTS, processor=tiny_tokenizer(), params=0.6, bits=4, group=32, tables=True, tokens=512, timing=False,
        only_data=True, refine=False,
    )  # fmt: skip
    sites = describe(result.model).sites
    assert any(site.units < 256 for site in sites if site.kind == "ffn.hidden") and result.plan.params < 0.7
    assert all(site.units * site.unit % 32 == 0 for site in sites)
    assert {each.grid.group for each in result.quantized.layers.values()} == {32}
    folder = result.save(tmp_path / "m")  # a fresh process opens it
    assert describe(load(folder)).sites == sites
