"""Whole experts taken away: two orders, dropped or merged, corrected or not, on a small mixture trained here.

    python benchmarks/experts.py                writes benchmarks/results/experts.json, in a minute
    python benchmarks/render.py                 then writes the table in docs/methods/experts.md

A Mixtral of 4 blocks with 8 experts each, 2 active, reads bytes of WikiText-2: trained on nine tenths of *valid*,
fitted and chosen on the last tenth, measured on *test*. KL is that of the small model to the trained one, in nats a
byte. Neurons, heads and ranks cut to as many parameters (`balanced`) stand beside it.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM

import slimformer
from cells import HERE, write_json
from recipes import shared_file
from slimformer.calibrate.text import Batch
from slimformer.decompose.experts import ORDERS
from slimformer.models import describe
from slimformer.plan.cost import block_cost
from slimformer.rewrite.experts import How, fewer_experts

LENGTH, ROWS, STEPS, WARMUP, RATE = 64, 32, 240, 40, 3e-3
KEPT = (6, 4)
SIZES = {
    "vocab_size": 256, "hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_local_experts": 8, "num_experts_per_tok": 2, "max_position_embeddings": LENGTH,
    "router_aux_loss_coef": 0.02, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def windows(split: str) -> Tensor:
    """Rows of bytes of a split."""
    text = shared_file("data", "wikitext2", f"{split}.txt").read_bytes()
    return torch.tensor(list(text[: len(text) // LENGTH * LENGTH])).view(-1, LENGTH)


def evenly(rows: Tensor, count: int) -> Tensor:
    """So many of them, spread over all."""
    return rows[:: len(rows) // count][:count]


def trained(rows: Tensor, seed: int = 0) -> MixtralForCausalLM:
    """The mixture, after `STEPS` steps of AdamW with a balancing loss."""
    torch.manual_seed(seed)
    model: Any = MixtralForCausalLM(MixtralConfig(**SIZES, experts_implementation="eager"))
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS, pct_start=WARMUP / STEPS)
    for step in range(STEPS):
        ids = rows[torch.randint(len(rows), (ROWS,), generator=generator)]
        loss = model(input_ids=ids, labels=ids, output_router_logits=True).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss:.3f}", flush=True)
    trained_model: MixtralForCausalLM = model.eval()
    return trained_model


def batches(ids: Tensor) -> list[Batch]:
    return [Batch({"input_ids": part, "attention_mask": torch.ones_like(part)}, None) for part in ids.split(ROWS)]


@torch.no_grad()
def scores(model: Any, dense: Any, data: list[Batch]) -> dict[str, float]:
    """Nats a byte, and KL to the dense model."""
    nats = kl = 0.0
    for batch in data:
        log_p, log_q = (each(**batch.inputs).logits[:, :-1].log_softmax(-1) for each in (dense, model))
        nats -= float(log_q.gather(-1, batch.inputs["input_ids"][:, 1:, None]).mean())
        kl += float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
    return {"nats": nats / len(data), "kl": kl / len(data)}


def main() -> None:
    started = time.perf_counter()
    read = windows("valid")
    dense, held_out = trained(read[: len(read) * 9 // 10]), evenly(read[len(read) * 9 // 10 :], 256)
    splits = {"fit": batches(held_out[::2]), "select": batches(held_out[1::4])}
    report = batches(evenly(windows("test"), 128))
    whole = block_cost(describe(dense), LENGTH).params
    rows: list[dict[str, Any]] = []
    for keep in KEPT:
        for by, instead, correct in itertools.product(ORDERS, ("drop", "merge"), (False, True)):
            small = fewer_experts(dense, splits, How(keep, by, instead, correct)).model  # type: ignore[arg-type]
            share = block_cost(describe(small), LENGTH).params / whole
            rows.append({"keep": keep, "by": by, "instead": instead, "correct": correct, "params": share})
            rows[-1] |= scores(small, dense, report)
            print(rows[-1], flush=True)
        cut = slimformer.compress(dense, held_out, params=share, timing=False, only_data=True)
        neurons = {"keep": keep, "by": "balanced", "params": block_cost(describe(cut.model), LENGTH).params / whole}
        rows.append(neurons | scores(cut.model, dense, report))
        print(rows[-1], flush=True)
    content = {
        "benchmark": "experts", "sizes": SIZES, "steps": STEPS, "dense": scores(dense, dense, report), "rows": rows,
        "tokens": {name: len(part) * ROWS * LENGTH for name, part in {**splits, "report": report}.items()},
        "seconds": round(time.perf_counter() - started),
    }  # fmt: skip
    write_json(HERE / "results" / "experts.json", content)


if __name__ == "__main__":
    main()
