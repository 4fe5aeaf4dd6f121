"""A model with fewer tokens: rows of its embedding and head, and every number of a token in its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.calibrate.gather import vocabulary
from slimformer.models import family_of
from slimformer.rewrite.surgery import keep_entries, set_attribute

LISTS = ("suppress_tokens", "begin_suppress_tokens")
LISTS_OF_LISTS = ("bad_words_ids", "force_words_ids")


def with_tokens(model: PreTrainedModel, order: Sequence[int]) -> PreTrainedModel:
    """A copy that knows the tokens `order` only, numbered by their place in it; blocks stay as they are."""
    small, size = deepcopy(model), vocabulary(model)
    new = {old: i for i, old in enumerate(order)}
    keep_entries(_ends(small), torch.tensor(list(order)), size)
    table: Any = small.get_input_embeddings()
    if table.padding_idx is not None:
        table.padding_idx = new.get(table.padding_idx)
    for name, module in small.named_modules():
        if getattr(module, "vocab_size", None) == size and name != "":
            set_attribute(small, f"{name}.vocab_size", len(order))
    if getattr(small, "vocab_size", None) == size:
        set_attribute(small, "vocab_size", len(order))
    for settings in _settings(small):
        _renumber(settings, new)
    small.config.get_text_config().vocab_size = len(order)
    return small


def named_tokens(model: PreTrainedModel) -> frozenset[int]:
    """Tokens a model needs whatever the text: those its config names, and where positions are counted from the number
    of the padding token (RoBERTa) all before it, so that it keeps its number."""
    size, config = vocabulary(model), model.config
    numbers = {number for settings in _settings(model) for number in _named(settings)}
    if config.model_type in family_of(config).positions_after_padding and config.pad_token_id is not None:
        numbers |= set(range(config.pad_token_id + 1))
    return frozenset(number for number in numbers if 0 <= number < size)


def _ends(model: PreTrainedModel) -> Iterator[nn.Module]:
    """The embedding, the head, and what the head stands in, which may hold its bias."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = [name for name, module in model.named_modules() if module is table or (head is not None and module is head)]
    for name in names:
        parts = name.split(".")
        yield from (model.get_submodule(".".join(parts[:i])) for i in range(1, len(parts) + 1))


def _settings(model: PreTrainedModel) -> list[Any]:
    generation = getattr(model, "generation_config", None)
    return [model.config, *([generation] if generation is not None else [])]


def _named(settings: Any) -> Iterator[int]:
    for name, value in vars(settings).items():
        if name.endswith("_token_id"):
            yield from (number for number in _as_list(value) if isinstance(number, int))


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _renumber(settings: Any, new: Mapping[int, int]) -> None:
    for name, value in list(vars(settings).items()):
        if name.endswith("_token_id") and value is not None:
            several = isinstance(value, list | tuple)
            setattr(settings, name, [new.get(n, n) for n in value] if several else new.get(value, value))
        elif name in LISTS and value:
            setattr(settings, name, [new[n] for n in value if n in new] or None)
        elif name in LISTS_OF_LISTS and value:
            setattr(settings, name, [[new[n] for n in each] for each in value if all(n in new for n in each)] or None)


def table_bytes(model: PreTrainedModel, dtype: torch.dtype) -> int:
    """Bytes of the embedding and of the head, where it is another one, in the precision they are stored in."""
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    modules = [module for module in (table, head) if module is not None]
    tables = {id(parameter): parameter.numel() for module in modules for parameter in module.parameters()}
    return sum(tables.values()) * dtype.itemsize
