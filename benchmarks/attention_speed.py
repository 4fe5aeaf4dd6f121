"""Latency of attention by rank against dense attention, as ratios within one run.

    python benchmarks/attention_speed.py [--threads 2] [--repeats 15]

The attention of six blocks of the sizes of SmolLM2 (grouped queries, rotary) and of GPT-2 (neither), with random
weights, which latency does not depend on. All settings take turns. MACs are linear in both ranks,

    kept = (r_qk + r_vo) / 2 d,         of ideal = kept / latency ratio,         1: as fast as the MACs say.

    prefill     T tokens at once
    decode      one token after T of them, keys and values in a cache that grows by it

Results go to benchmarks/results/attention_speed.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.utils import logging

from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.models import describe
from slimformer.models.ranks import heads_of
from slimformer.plan.cost import kv_cache_bytes
from slimformer.rewrite.ranks import cut_ranks, rotary_rows

RESULTS = Path(__file__).parent / "results" / "attention_speed.json"
BLOCKS, LENGTH, WIDTH = 6, 512, 64
RANKS = {  # name: qk, vo, does every key head have planes of its own?
    "3/4 of both": (48, 48, False), "1/2 of both": (32, 32, False), "1/4 of both": (16, 16, False),
    "1/2 of both, own planes": (32, 32, True), "1/2 of queries and keys": (32, 64, False),
    "1/2 of values": (64, 32, False), "1/4 of queries and keys, 3/4 of values": (16, 48, True),
}  # fmt: skip


def smollm2() -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=576, intermediate_size=64, num_hidden_layers=BLOCKS, num_attention_heads=9,
            num_key_value_heads=3, head_dim=WIDTH, vocab_size=64,
        )
    )  # fmt: skip


def gpt2() -> PreTrainedModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=768, n_head=12, n_layer=BLOCKS, n_inner=64, vocab_size=64))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {"smollm2": smollm2, "gpt2": gpt2}


@torch.no_grad()
def cut(model: PreTrainedModel, qk: int, vo: int, own: bool) -> PreTrainedModel:
    """All blocks at these ranks, in place: which coordinates stay makes no difference to the time."""
    architecture = describe(model)
    heads = architecture.blocks[0].heads[0]
    rows = torch.arange(qk)
    if heads.attention.rotary:
        kv = heads.units // heads.group
        lists = [rotary_rows([(f + g) % (WIDTH // 2) for f in range(qk // 2)], WIDTH) for g in range(kv if own else 1)]
        rows = torch.stack(lists) if own else lists[0]
    for i in range(BLOCKS):
        cut_ranks(model, heads_of(architecture, i), rows_qk=rows, rows_v=torch.arange(vo))
    return model


def attentions(model: PreTrainedModel) -> list[nn.Module]:
    architecture = describe(model)
    paths = [architecture.blocks[i].heads[0].module for i in range(BLOCKS)]
    return [model.get_submodule(path) for path in paths]


def turns(model: PreTrainedModel, x: Tensor, start: int) -> dict[str, Any]:
    """Cosines and sines, where the family has them."""
    if not heads_of(describe(model), 0).attention.rotary:
        return {}
    positions = torch.arange(start, start + x.shape[1])[None]
    return {"position_embeddings": model.base_model.get_submodule("rotary_emb")(x, positions)}


def prefill(model: PreTrainedModel, length: int) -> Callable[[], None]:
    x = torch.randn(1, length, model.config.hidden_size)
    layers, given = attentions(model), turns(model, x, 0)

    def run() -> None:
        for layer in layers:
            layer(x, **given)

    return run


def decode(model: PreTrainedModel, length: int) -> Callable[[], None]:
    x = torch.randn(1, length, model.config.hidden_size)
    layers, cache = attentions(model), DynamicCache()
    with torch.inference_mode():
        for layer in layers:
            layer(x, past_key_values=cache, **turns(model, x, 0))
    token, given = x[:, :1].contiguous(), turns(model, x[:, :1], length)

    def run() -> None:
        for layer in layers:
            layer(token, past_key_values=cache, **given)
        cache.crop(-1)

    return run


PHASES: dict[str, Callable[[PreTrainedModel, int], Callable[[], None]]] = {"prefill": prefill, "decode": decode}


def measured(models: Mapping[str, PreTrainedModel], repeats: int) -> list[dict[str, Any]]:
    """One row for each setting and phase; the first model is the dense one."""
    rows = []
    for phase, make in PHASES.items():
        more = 1 if phase == "prefill" else 8  # a single token takes no time, so more rounds cost none
        found = compare_latency({name: make(model, LENGTH) for name, model in models.items()}, Rounds(repeats * more))
        for name, timing in list(found.timings.items())[1:]:
            qk, vo, _ = RANKS[name]
            kept = (qk + vo) / (2 * WIDTH)
            rows.append(
                {
                    "ranks": name, "qk": qk, "vo": vo, "phase": phase, "macs": kept, "latency": timing.ratio,
                    "low": timing.ratio_low, "high": timing.ratio_high, "of_ideal": kept / timing.ratio,
                    "kv_cache_bytes": kv_cache_bytes(describe(models[name]), LENGTH, 4),
                }
            )  # fmt: skip
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    results: dict[str, Any] = {
        "benchmark": "attention_speed",
        "machine": {
            "threads": args.threads, "processor": platform.processor() or platform.machine(),
            "versions": {name: version(name) for name in ("torch", "transformers")},
        },
        "length": LENGTH, "repeats": args.repeats, "models": {},
    }  # fmt: skip
    for name, make in MODELS.items():
        models = {"dense": make().eval()}
        models |= {ranks: cut(make(), *sizes).eval() for ranks, sizes in RANKS.items()}
        dense = kv_cache_bytes(describe(models["dense"]), LENGTH, 4)
        results["models"][name] = {"kv_cache_bytes": dense, "rows": measured(models, args.repeats)}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
