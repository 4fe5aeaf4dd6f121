"""Where one kind of Hugging Face model keeps its widths, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Derived:
    """An attribute of a block that depends on its sizes: `path` = factor · sizes[times] / sizes[over].

    `factor` "head_dim" means the width of one head; sizes are named by role: "heads", "kv_heads".
    """

    path: str
    times: Literal["heads", "kv_heads"]
    over: Literal["kv_heads"] | None = None
    factor: Literal["head_dim"] | int = 1


@dataclass(frozen=True)
class Family:
    """Where one kind of model keeps its widths. Paths are relative to a block; config keys are the stock ones."""

    name: str
    model_types: tuple[str, ...]
    blocks: str  # from the base model to the list of blocks
    query: str
    key: str
    value: str
    attn_out: str
    ffn_in: tuple[str, ...]
    ffn_out: str
    head_dim: str  # attribute of a block that holds the width of one head
    heads_key: str
    ffn_key: str
    kv_key: str | None = None
    ffn_norm: str | None = None  # the norm before the feed-forward part; none where norms come after (post-norm)
    norms_after: tuple[str, str] | None = None  # post-norm: the norms of the sums with attention and with the MLP
    mlp: str = ""  # the module that can stand for the whole feed-forward part
    mlp_inert: tuple[str, ...] = ()  # modules before it that then have nothing to do
    final_norm: str | None = None  # from the base model to the norm after the last block
    derived: tuple[Derived, ...] = ()
    rotary: bool = False  # are queries and keys turned by their position, plane by plane?
    causal: bool = False
    image: bool = False
    plain_heads: bool = False  # can the stock config say "fewer heads of the same width"?
    divides_hidden: tuple[str, ...] = ()  # model types whose config insists that heads divide the hidden size
    of_config: Callable[[Any], Family] | None = None  # the family as one config has it, where configs of a type differ

    @property
    def fused(self) -> bool:
        """Are q, k and v three parts of one matrix?"""
        return self.query == self.key == self.value

    @property
    def attention(self) -> str:
        """The module that holds the projections of queries, keys and values."""
        return self.query.rpartition(".")[0]

    @property
    def ffn(self) -> str:
        """The module that holds the reader of the neurons; the block itself where there is none."""
        return self.ffn_out.rpartition(".")[0]


def size_keys(family: Family) -> dict[str, str]:
    keys = {"heads": family.heads_key, "neurons": family.ffn_key}
    return {**keys, "kv_heads": family.kv_key} if family.kv_key else keys


def attention_parts(family: Family, head_dim: int) -> dict[str, Any]:
    """Where a block has its attention and its projections, and what the config calls its head counts."""
    keys = size_keys(family)
    return {
        "path": family.attention, "query": family.query, "key": family.key, "value": family.value,
        "out": family.attn_out, "rotary": family.rotary, "head_dim": head_dim,
        "heads": keys["heads"], "kv_heads": keys.get("kv_heads", keys["heads"]),
    }  # fmt: skip
