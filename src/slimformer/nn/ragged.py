"""Models whose blocks have sizes of their own.

This file is used in two places, and it is the same file: inside the package, and as `modeling_slimformer.py` beside
the weights of a ragged checkpoint, where `trust_remote_code=True` finds it when slimformer is not installed. It
therefore imports torch and transformers only.

The sizes of block i are in `config.per_layer_config[i]`. Stock model code builds every block from the global sizes;
`config.slimformer` says which matrices and attributes of a block hang on which size:

    blocks      path from the base model to its list of blocks
    axes        [module, "out" | "in", size key, factor]        that side of the matrix is factor · size
    attributes  [path, factor, size key, size key or null]      path = factor · size (/ size)

`resize` brings the blocks to these shapes before the weights are read. No forward pass is touched.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

PREFIX = "Ragged"


def resize(model: PreTrainedModel) -> None:
    """Give every block of `model` the sizes its config states. Doing it twice changes nothing."""
    table = getattr(model.config, "slimformer", None)
    if not table:
        return
    try:
        blocks = model.base_model.get_submodule(table["blocks"])
    except AttributeError:  # a part of a model that is still being built: its owner will come by
        return
    for i, block in enumerate(blocks.children()):
        sizes = model.config.per_layer_config[i]
        for path, axis, key, factor in table["axes"]:
            size = getattr(sizes, key)
            if size is not None:  # None is how GPT-2 says "four times the hidden size": nothing was cut
                _resize_axis(block, path, axis, factor * size)
        for path, factor, times, over in table["attributes"]:
            value = factor * getattr(sizes, times)
            *parents, name = path.split(".")
            owner = block.get_submodule(".".join(parents))
            setattr(owner, name, value // (getattr(sizes, over) if over else 1))


def _resize_axis(block: nn.Module, path: str, axis: str, size: int) -> None:
    old: Any = block.get_submodule(path)
    transposed = isinstance(old, Conv1D)
    rows, columns = old.weight.shape
    outputs, inputs = (columns, rows) if transposed else (rows, columns)
    if size == (outputs if axis == "out" else inputs):
        return
    outputs, inputs = (size, inputs) if axis == "out" else (outputs, size)
    with torch.device(old.weight.device):
        new: Any = Conv1D(outputs, inputs) if transposed else nn.Linear(inputs, outputs, bias=old.bias is not None)
    *parents, name = path.split(".")
    setattr(block.get_submodule(".".join(parents)), name, new.to(old.weight.dtype))


def ragged(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The stock model class, with `resize` as the last step of its construction."""

    def post_init(self: PreTrainedModel) -> None:
        resize(self)
        stock.post_init(self)

    return type(PREFIX + stock.__name__, (stock,), {"post_init": post_init, "__module__": __name__})


def enable() -> None:
    """Let every stock model class read ragged checkpoints. Models without `config.slimformer` are built as ever."""
    stock_post_init = PreTrainedModel.post_init
    if getattr(stock_post_init, "reads_ragged", False):
        return

    def post_init(self: PreTrainedModel) -> None:
        resize(self)
        stock_post_init(self)

    post_init.reads_ragged = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]


def _not_about_global_sizes(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Reading global config value for per-layer attribute")


# Stock constructors read the global sizes on purpose (see above): the warning would only alarm.
logging.getLogger("transformers.integrations.heterogeneity.configuration_utils").addFilter(_not_about_global_sizes)

_made: dict[str, type] = {}


def __getattr__(name: str) -> type:
    """`RaggedLlamaForCausalLM` and the like, made when asked for: `auto_map` in config.json names them."""
    if not name.startswith(PREFIX):
        raise AttributeError(name)
    if name not in _made:
        _made[name] = ragged(getattr(transformers, name.removeprefix(PREFIX)))
    return _made[name]
