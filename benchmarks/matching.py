"""Matching two models: the same sentences through two text encoders, and emoji with their names.

    python benchmarks/matching.py

sentences   MiniLM and SmolLM2 on 1,200 sentences of STS-B; SmolLM2 by the mean and by the last of its states
emoji       1,911 images with their names (MiniLM). Two image encoders: the small ViT that has only ever seen digits,
            and random convolutions over whitened patches (Coates, Ng 2011), which have seen nothing; and both together

A fifth of the pairs is held out; recall is among those. Results go to benchmarks/results/heads-match.json.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from heads import write
from heads_features import features, vit_states
from slimformer.heads.pairing import fit_and_retrieve

FILTERS, PATCH = 192, 6


def patch_features(images: Tensor, seed: int = 0) -> Tensor:
    """Random whitened patches of the images as filters, ReLU, means over the four quarters; and mean colours."""
    X = images.movedim(-1, 1).float() / 255
    patches = torch.nn.functional.unfold(X, PATCH, stride=2)  # n × 108 × places
    n, d, places = patches.shape
    rows = patches.movedim(1, 2).reshape(-1, d)
    rows = rows - rows.mean(1, keepdim=True)
    rows = rows / (rows.std(1, keepdim=True) + 0.05)
    values, Q = torch.linalg.eigh(torch.cov(rows[::7].mT))
    white = (rows - rows.mean(0)) @ (Q / (values + 0.1).sqrt()) @ Q.mT
    chosen = torch.randperm(len(white), generator=torch.Generator().manual_seed(seed))[:FILTERS]
    filters = torch.nn.functional.normalize(white[chosen])
    side = int(places**0.5)
    found = []
    for part in white.view(n, places, d).split(128):
        response = (part @ filters.mT - 0.5).clamp(min=0).movedim(1, 2).reshape(len(part), FILTERS, side, side)
        found.append(torch.nn.functional.adaptive_avg_pool2d(response, 2).flatten(1))
    colours = torch.nn.functional.adaptive_avg_pool2d(X, 4).flatten(1)
    return torch.cat([torch.cat(found), colours], 1)


def standard(X: Tensor) -> Tensor:
    return (X - X.mean(0)) / X.std(0).clamp(min=1e-6)


def sentences() -> dict[str, Any]:
    found = features("sentences")
    return {
        f"SmolLM2 ({pool}) → MiniLM": fit_and_retrieve(found[f"smollm2.{pool}"], found["minilm.mean"]).report
        for pool in ("mean", "last")
    }


def emoji() -> dict[str, Any]:
    found = features("emoji")
    images = found["images"]
    grey = images.float().mean(3).round().to(torch.uint8)[:, 2:30, 2:30]
    encoders = {"ViT of MNIST": vit_states(255 - grey), "random patches": patch_features(images)}
    encoders["both"] = torch.cat([standard(X) for X in encoders.values()], 1)
    return {f"{name} → MiniLM": fit_and_retrieve(X, found["text.mean"]).report for name, X in encoders.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    started = time.perf_counter()
    write("match", {"emoji": emoji(), "sentences": sentences()})
    print(f"match: {time.perf_counter() - started:.0f} s")
