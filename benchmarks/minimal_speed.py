"""Throughput of a training step of minimal transformers against the same model of torch's own encoder layers.

    python benchmarks/minimal_speed.py [--repeats 15] [--batch 64] [--out FILE]

Forward, loss, backward and a step of Adam on images of 28 × 28 in patches of 7 (17 positions), width 64, six blocks,
pre-norm, random pixels. The reference is `torch.nn.TransformerEncoderLayer` (norm first, GELU) six times, with the
patches, positions, class token and classifier of ours. All models take turns, so that what disturbs one disturbs all;
a ratio is that of one round, its interval that of rounds.

Results go to benchmarks/results/minimal_speed.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForImageClassification
from transformers.utils import logging

from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.lab.architectures.minimal_config import QK, VO, MinimalConfig, block_macs, parameter_count

RESULTS = Path(__file__).parent / "results" / "minimal_speed.json"
WIDTH, BLOCKS, CLASSES = 64, 6, 10


def configured(**fields: Any) -> MinimalConfig:
    found: MinimalConfig = AutoConfig.for_model(
        "minimal", hidden_size=WIDTH, num_hidden_layers=BLOCKS, num_labels=CLASSES, **fields
    )
    return found


class Torch(nn.Module):
    """The same model of torch's encoder layers; these always have an MLP."""

    def __init__(self, config: MinimalConfig) -> None:
        super().__init__()
        ours = AutoModelForImageClassification.from_config(config)
        self.embeddings, self.norm, self.classifier = ours.minimal.embeddings, ours.minimal.norm, ours.classifier
        layer = nn.TransformerEncoderLayer(
            WIDTH, config.num_attention_heads, config.intermediate_size, dropout=0.0, activation="gelu",
            batch_first=True, norm_first=True,
        )  # fmt: skip
        self.encoder = nn.TransformerEncoder(layer, BLOCKS, enable_nested_tensor=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        found: Tensor = self.classifier(self.norm(self.encoder(self.embeddings(pixel_values)))[:, 0])
        return found


def step(model: nn.Module, pixels: Tensor, labels: Tensor) -> Callable[[], None]:
    """One step of training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def run() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            out = model(pixel_values=pixels)
            loss = F.cross_entropy(out if isinstance(out, Tensor) else out.logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def variants() -> dict[str, MinimalConfig]:
    """Every qk and every vo, with one and four heads; with an MLP, and the extremes without."""
    forms = [*((qk, "full") for qk in QK), *(("collapsed", vo) for vo in VO[1:]), ("symmetric", "none")]
    found = {}
    for heads in (1, 4):
        for qk, vo in forms:
            found[f"{qk}/{vo}, {heads} heads"] = configured(qk=qk, vo=vo, num_attention_heads=heads)
        for qk, vo in (("full", "full"), ("collapsed", "none"), ("symmetric", "none")):
            name = f"{qk}/{vo}, {heads} heads, no MLP"
            found[name] = configured(qk=qk, vo=vo, num_attention_heads=heads, mlp_ratio=0)
    found["full/none, 4 heads, shaped"] = configured(vo="none", shaped=True, attention_skip=False)
    return found


def measured(repeats: int, batch: int) -> list[dict[str, Any]]:
    """One row for each variant, relative to torch's layers with as many heads."""
    pixels, labels = torch.randn(batch, 1, 28, 28), torch.randint(CLASSES, (batch,))
    rows = []
    for heads in (1, 4):
        chosen = {name: config for name, config in variants().items() if config.num_attention_heads == heads}
        models: dict[str, nn.Module] = {"torch": Torch(configured(num_attention_heads=heads))}
        models |= {name: AutoModelForImageClassification.from_config(config) for name, config in chosen.items()}
        runs = {name: step(model.train(), pixels, labels) for name, model in models.items()}
        found = compare_latency(runs, Rounds(repeats, 2))
        for name, timing in found.timings.items():
            config = chosen.get(name)
            rows.append(
                {
                    "variant": name, "heads": heads, "qk": config and config.qk, "vo": config and config.vo,
                    "mlp_ratio": config.mlp_ratio if config else 4, "shaped": bool(config and config.shaped),
                    "params": sum(p.numel() for p in models[name].parameters()),
                    "block_macs": block_macs(config or configured(num_attention_heads=heads), 17),
                    "images_per_second": batch / timing.median, "time": timing.ratio, "low": timing.ratio_low,
                    "high": timing.ratio_high,
                }
            )  # fmt: skip
            assert config is None or rows[-1]["params"] == parameter_count(config)
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    logging.set_verbosity_error()
    results = {
        "benchmark": "minimal_speed",
        "machine": {
            "threads": 1, "processor": platform.processor() or platform.machine(),
            "versions": {name: version(name) for name in ("torch", "transformers")},
        },
        "width": WIDTH, "blocks": BLOCKS, "positions": 17, "batch": args.batch, "repeats": args.repeats,
        "rows": measured(args.repeats, args.batch),
    }  # fmt: skip
    args.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
