"""Low-rank changes of the linear layers of all blocks, W + (α/r) B A, learned in place of W and merged when done.

Few numbers are trained, so the optimiser takes little memory. By peft; reference: Hu et al., LoRA (2021).
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.models import describe
from slimformer.rewrite.in_turn import linear_layers

RANK = 16
ALPHA = 32


def with_adapters(model: PreTrainedModel, *, seed: int) -> Any:
    """The model with adapters that change nothing yet, ready to be trained; its own layers are wrapped in place."""
    from peft import LoraConfig, get_peft_model

    architecture = describe(model)
    layers = [name for i in range(architecture.n_blocks) for name in linear_layers(model, architecture, i)]
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=layers)
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Conv1D, which stores inputs × outputs: peft finds out itself
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def adapters_of(adapted: Any) -> dict[str, nn.Parameter]:
    """What is trained."""
    return {name: parameter for name, parameter in adapted.named_parameters() if parameter.requires_grad}


def without_adapters(adapted: Any, *, merged: bool) -> None:
    """Put the own layers of a model back, with what was learned in them or as they were to the last bit."""
    model = adapted.merge_and_unload() if merged else adapted.unload()
    model.requires_grad_(True)  # peft has frozen it
