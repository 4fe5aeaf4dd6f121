"""A trained model whose attention runs over groups of keys in some layers. The weights are those of the dense model.

`config.slimformer_attention` says which:

    format    1
    kind      how keys are grouped (`decompose.sequence_stream.Grouping`), or projected: `nn.projected_keys`
    k, window, sweeps, sinks
    layers    layer → {"second_order": true | false}      layers that are not named keep exact attention

transformers calls attention through a table of functions; `enable` puts one of ours into it, by which a model with this
field in its config runs from then on. No forward pass is copied and no module replaced. Without slimformer the same
folder opens as the dense model it was made from, and `model.set_attn_implementation("sdpa")` makes it that again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from slimformer.decompose.sequence_stream import Grouping, Memory, stream_attention, whole_attention
from slimformer.errors import CannotGroup
from slimformer.models import family_of
from slimformer.models.family import AttentionPart, Family
from slimformer.nn.grouped_cache import GroupedLayer, grouped_cache, memory_of
from slimformer.nn.projected_keys import FIXED, ProjectedKeys

NAME = "slimformer_groups"
FIELD = "slimformer_attention"
FORMAT = 1
OBSERVED = "slimformer_observed"
Given = tuple[Tensor, Tensor, Tensor]  # queries, keys and values


@dataclass(frozen=True)
class Seen:
    """One call of attention: what it was given (keys of grouped heads not repeated) and what it gave, b × h × n × p."""

    query: Tensor
    key: Tensor
    value: Tensor
    real: Tensor
    scale: float
    causal: bool
    exact: Tensor


def enable() -> None:
    """Let every stock model class run by `config.slimformer_attention`. Models without it stay as they are."""
    stock_post_init = PreTrainedModel.post_init
    if getattr(stock_post_init, "reads_groups", False):
        return

    def post_init(self: PreTrainedModel) -> None:
        install(self)
        stock_post_init(self)

    post_init.reads_groups = True  # type: ignore[attr-defined]
    post_init.reads_ragged = getattr(stock_post_init, "reads_ragged", False)  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]
    AttentionInterface.register(NAME, grouped_attention_forward)
    AttentionMaskInterface.register(NAME, padding_mask)
    AttentionInterface.register(OBSERVED, _observed_attention_forward)
    AttentionMaskInterface.register(OBSERVED, padding_mask)


def install(model: PreTrainedModel) -> None:
    """Tell every attention of `model` how its keys are grouped, as its config says. Doing it twice changes nothing."""
    table = getattr(model.config, FIELD, None)
    if not table:
        return
    if table["format"] > FORMAT:
        raise ValueError(f"{FIELD} has format {table['format']}, known is {FORMAT}: a newer slimformer wrote it")
    family = family_of(model.config)
    modules = attention_modules(model, family)
    for i, module in enumerate(modules):
        module.grouping = grouping_of(table, i)  # type: ignore[assignment]
        if table["kind"] in FIXED and module.grouping is not None and not hasattr(module, "projected"):
            heads = int(model.config.num_attention_heads)
            projected = ProjectedKeys(table["kind"], heads, table["k"], table["length"])
            module.projected = projected.to(next(module.parameters()))
    if not modules:
        return
    model.config._attn_implementation = NAME
    owner: Any = model.base_model.get_submodule(family.stacks[0].blocks.rpartition(".")[0])
    if family.causal and not hasattr(owner, "cache_of_groups"):
        owner.register_forward_pre_hook(_with_own_cache, with_kwargs=True)
        owner.cache_of_groups = True


def remove(model: PreTrainedModel) -> None:
    """Make it the dense model again."""
    if hasattr(model.config, FIELD):
        delattr(model.config, FIELD)
    for module in attention_modules(model, family_of(model.config)):
        for name in ("grouping", "projected"):
            if hasattr(module, name):
                delattr(module, name)
    model.set_attn_implementation("sdpa")


@contextmanager
def observing(model: PreTrainedModel, observers: Sequence[Callable[[Seen], None]]) -> Iterator[None]:
    """Let attention be exact, and show every layer's observer what it was given and gave. Call without a cache."""
    modules = attention_modules(model, family_of(model.config))
    before = model.config._attn_implementation
    for module, observer in zip(modules, observers, strict=True):
        module.observer = observer  # type: ignore[assignment]
    model.config._attn_implementation = OBSERVED
    try:
        yield
    finally:
        model.config._attn_implementation = before
        for module in modules:
            del module.observer


def keys_are_grouped(model: PreTrainedModel) -> bool:
    """Does attention run over groups of keys? Then the folder needs slimformer to run as it was measured."""
    return bool(getattr(model.config, FIELD, None))


def require_every_key(model: PreTrainedModel) -> None:
    """Refuse to cut what runs over groups of keys: layers, ranks and costs are counted as of attention to every key."""
    if keys_are_grouped(model):
        raise CannotGroup(
            "attention of this model runs over groups of keys (the recipe long-context), and cuts do not follow that; "
            "start from the dense model, or quantize this one"
        )


def grouping_of(table: dict[str, Any], layer: int) -> Grouping | None:
    """How layer `layer` groups its keys; None where it looks at all of them."""
    layer_settings = table["layers"].get(str(layer))
    if layer_settings is None:
        return None
    fields = {name: table[name] for name in ("k", "window", "sweeps", "sinks", "kind") if name in table}
    return Grouping(**fields, second_order=bool(layer_settings.get("second_order", False)))


def attention_modules(model: PreTrainedModel, family: Family) -> list[nn.Module]:
    """The attention of every block; none of a model that is still being built."""
    try:
        stacks = [(stack, model.base_model.get_submodule(stack.blocks)) for stack in family.stacks]
    except AttributeError:
        return []
    return [
        block.get_submodule(part.module)
        for stack, blocks in stacks
        for block in blocks.children()
        for part in stack.parts
        if isinstance(part, AttentionPart)
    ]


def grouped_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What transformers calls as attention. Masks other than padding, and foreign caches, get exact attention."""
    how: Grouping | None = getattr(module, "grouping", None)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer, causal = memory_of(key), bool(getattr(module, "is_causal", False))
    unusual = attention_mask is not None and attention_mask.ndim != 2
    if layer is not None and unusual:
        raise ValueError("a cache of groups knows padding only; for another mask call with use_cache=False")
    if how is None or unusual or (layer is None and key.shape[2] != query.shape[2]):
        return _exact(module, (query, key, value), attention_mask, scale, dropout), None
    real = _real(attention_mask, key)
    if causal:
        return _streamed((query, key, value), real, layer, how, scale).transpose(1, 2), None
    if key.shape[2] <= how.k and how.kind not in FIXED:
        return _exact(module, (query, key, value), attention_mask, scale, dropout), None
    projected: ProjectedKeys | None = getattr(module, "projected", None)
    if projected is not None:
        return projected.attend(query, key, value, real, scale=scale).transpose(1, 2), None
    return _whole(query, key, value, real, how, scale).transpose(1, 2), None


def approximated(module: Any, seen: Seen, how: Grouping) -> Tensor:
    """What this attention would give over groups, or over its projected keys, in place of `seen.exact`."""
    if seen.causal:
        return _streamed((seen.query, seen.key, seen.value), seen.real, None, how, seen.scale)
    projected: ProjectedKeys | None = getattr(module, "projected", None)
    if projected is not None:
        return projected.attend(seen.query, seen.key, seen.value, seen.real, scale=seen.scale)
    return _whole(seen.query, seen.key, seen.value, seen.real, how, seen.scale)


def _whole(query: Tensor, key: Tensor, value: Tensor, real: Tensor, how: Grouping, scale: float) -> Tensor:
    q, k, v = _wide(query, key, value)
    return whole_attention(q, k, v, real, how, scale=scale).to(value.dtype)


def _wide(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In single precision at least: masses are counts, and half precision counts to 2,048."""
    return tuple(tensor.float() if tensor.element_size() < 4 else tensor for tensor in tensors)


def _observed_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, *,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = bool(getattr(module, "is_causal", False))
    exact = _exact(module, (query, key, value), attention_mask, scale, dropout)
    module.observer(Seen(query, key, value, _real(attention_mask, key), scale, causal, exact.transpose(1, 2)))
    return exact, None


def padding_mask(
    *, q_length: int, kv_length: int, mask_function: Any = causal_mask_function, attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:  # fmt: skip
    """Which tokens are real, batch × keys, or nothing if all are; a full mask where more than padding is asked for,
    or where keys are more than the tokens so far (caches of a fixed size)."""
    offset = kwargs.get("q_offset", 0)
    growing = isinstance(offset, int) and offset + q_length == kv_length
    if mask_function not in (causal_mask_function, bidirectional_mask_function) or not growing:
        kwargs["allow_is_causal_skip"] = False
        mask: Tensor | None = sdpa_mask(
            q_length=q_length, kv_length=kv_length, mask_function=mask_function, attention_mask=attention_mask, **kwargs
        )
        return mask
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, -kv_length:]


def _real(mask: Tensor | None, key: Tensor) -> Tensor:
    n = key.shape[2]
    return torch.ones(len(key), n, dtype=torch.bool, device=key.device) if mask is None else mask[:, -n:].bool()


def _streamed(given: Given, real: Tensor, layer: GroupedLayer | None, how: Grouping, scale: float) -> Tensor:
    before = layer.memory if layer is not None else None
    dtype = given[2].dtype
    query, key, value = _wide(*given)
    memory = Memory.empty(key, value, scale) if before is None else before
    out, memory = stream_attention(query, key, value, real, memory, how)
    if layer is not None:
        layer.remember(memory)
    return out.to(dtype)


def _exact(module: nn.Module, given: Given, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    query, key, value = given
    m, n, causal = query.shape[2], key.shape[2], bool(getattr(module, "is_causal", False))
    if mask is not None and mask.ndim == 2:
        mask = mask[:, None, None, -n:].bool()
    if causal and m > 1 and (m != n or mask is not None) and (mask is None or mask.shape[2] == 1):
        seen = torch.ones(m, n, dtype=torch.bool, device=query.device).tril(n - m)
        mask = seen[None, None] if mask is None else mask & seen | torch.eye(n, device=seen.device).bool()[n - m :]
    out: Tensor = sdpa_attention_forward(module, query, key, value, mask, dropout=dropout, scaling=scale)[0]
    return out


def _with_own_cache(model: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Before the blocks run: a new cache becomes one of groups, in the layers that have them."""
    if model.config._attn_implementation != NAME or not getattr(model.config, FIELD, None):
        return args, kwargs
    cache, use_cache = kwargs.get("past_key_values"), kwargs.get("use_cache")
    use_cache = getattr(model.config, "use_cache", True) if use_cache is None else use_cache
    new = cache is None and use_cache and not model.training
    if new or (type(cache) is DynamicCache and cache.get_seq_length() == 0):
        groupings = [module.grouping for module in model.modules() if hasattr(module, "grouping")]
        kwargs["past_key_values"] = grouped_cache(groupings, cache)
    return args, kwargs
