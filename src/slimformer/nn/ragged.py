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
import shutil
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

CODE = "modeling_slimformer.py"
FORMAT = 1


def resize(model: PreTrainedModel) -> None:
    """Give every block of `model` the sizes its config states. Doing it twice changes nothing."""
    table = getattr(model.config, "slimformer", None)
    if not table:
        return
    if table["format"] > FORMAT:
        raise ValueError(
            f"this checkpoint has format {table['format']}, known is {FORMAT}: a newer slimformer wrote it"
        )
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
            setattr(owner, name, value // (max(1, getattr(sizes, over)) if over else 1))


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
    """The stock model class, with `resize` as a step of its construction.

    It keeps the stock name, which is what config.json, pipelines and loss functions go by, and does not count as custom
    code, so that weights are renamed between file and memory as for the stock class (ViT has other names in each).
    """

    def post_init(self: PreTrainedModel) -> None:
        resize(self)
        stock.post_init(self)

    parts = {"post_init": post_init, "is_custom_code": classmethod(lambda _class: False), "__module__": __name__}
    return type(stock.__name__, (stock,), parts)


def enable() -> None:
    """Let every stock model class read and write ragged checkpoints. Models without `config.slimformer` stay as
    ever."""
    stock_post_init, stock_save = PreTrainedModel.post_init, PreTrainedConfig.save_pretrained
    if getattr(stock_post_init, "reads_ragged", False):
        return

    def post_init(self: PreTrainedModel) -> None:
        resize(self)
        stock_post_init(self)

    def save_pretrained(self: PreTrainedConfig, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        stock_save(self, save_directory, *args, **kwargs)
        if getattr(self, "slimformer", None):
            write_code(save_directory)

    post_init.reads_ragged = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]
    PreTrainedConfig.save_pretrained = save_pretrained  # type: ignore[method-assign]


def write_code(folder: str | Path) -> None:
    """Put this file beside the weights, under the name `auto_map` in config.json gives it."""
    shutil.copyfile(__file__, Path(folder) / CODE)


def _not_about_global_sizes(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Reading global config value for per-layer attribute")


# Stock constructors read the global sizes on purpose (see above): the warning would only alarm.
logging.getLogger("transformers.integrations.heterogeneity.configuration_utils").addFilter(_not_about_global_sizes)

_made: dict[str, type] = {}


def __getattr__(name: str) -> type:
    """`LlamaForCausalLM` and the like, able to be ragged, made when asked for: `auto_map` in config.json names them."""
    stock = None if name.startswith("_") else getattr(transformers, name, None)
    if not (isinstance(stock, type) and issubclass(stock, PreTrainedModel)):
        raise AttributeError(f"there is no model class {name!r} in transformers {transformers.__version__}")
    if name not in _made:
        _made[name] = ragged(stock)
    return _made[name]
