"""The cache of a layer whose past is k groups of keys and a window: it stops growing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, DynamicCache, DynamicLayer

from slimformer.decompose.sequence_stream import Grouping, Memory


class GroupedLayer(CacheLayerMixin):
    """What one layer remembers (`decompose.sequence_stream.Memory`): k + window keys, however long the text.

    Attention has to look at the past *before* new tokens are part of it, block by block. So `update` only hands the new
    keys on with a note where the memory is, and the attention function looks, and writes.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.memory: Memory | None = None
        self.waiting = 0  # tokens handed out that no attention has written back

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        if self.waiting:
            raise RuntimeError(
                "a cache of groups was used with another attention than its own; make a new one, or keep to the model"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.waiting = key_states.shape[2]
        key_states.slimformer_layer = self  # type: ignore[attr-defined]
        return key_states, value_states

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True

    def remember(self, memory: Memory) -> None:
        """What attention leaves after it has looked."""
        self.memory, self.waiting = memory, 0

    def get_seq_length(self) -> int:
        return 0 if self.memory is None else self.memory.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.memory, self.waiting, self.is_initialized = None, 0, False

    def offload(self) -> None:
        self._each(lambda part: part.to("cpu"))

    def prefetch(self) -> None:
        self._each(lambda part: part.to(self.device))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError("tokens cannot be taken out of groups again; generate without an assistant model")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._each(lambda part: part.index_select(0, beam_idx.to(part.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda part: part.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda part: part[indices])

    def _each(self, change: Callable[[Tensor], Tensor]) -> None:
        if self.memory is not None:
            self.memory = self.memory.each(change)


def memory_of(key: Tensor) -> GroupedLayer | None:
    """The cache these keys came through, if it was one of groups."""
    return getattr(key, "slimformer_layer", None)


def grouped_cache(groupings: list[Grouping | None], cache: DynamicCache | None = None) -> DynamicCache:
    """An empty cache, its layers of groups where there is a grouping; `cache` itself if it is given."""
    grouped = DynamicCache() if cache is None else cache
    grouped.layers = [DynamicLayer() if how is None else GroupedLayer() for how in groupings]
    return grouped


def cache_bytes(cache: DynamicCache) -> int:
    """What a cache holds, in bytes; of a layer of groups everything it needs, masses and variances too."""
    parts: list[Tensor] = []
    for layer in cache.layers:
        memory: Memory | None = getattr(layer, "memory", None)
        dense = (getattr(layer, "keys", None), getattr(layer, "values", None))
        parts += [part for part in dense if isinstance(part, Tensor)] if memory is None else memory.parts()
    return sum(part.numel() * part.element_size() for part in parts)
