"""Where one kind of Hugging Face model keeps its widths, as data.

A family is one or more stacks of blocks; a block is a row of parts, each added to the residual stream in its turn. Only
strings, numbers, booleans and tuples stand here: paths of modules (those of a part relative to its block), and the keys
of the stock config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Derived:
    """An attribute of a block that depends on the sizes of an attention: `path` = factor · sizes[times] / sizes[over].

    `factor` "head_dim" means the width of one head; sizes are named by role: "heads", "kv_heads".
    """

    path: str
    times: Literal["heads", "kv_heads"]
    over: Literal["kv_heads"] | None = None
    factor: Literal["head_dim"] | int = 1


@dataclass(frozen=True)
class AttentionPart:
    """An attention of a block: four projections and a number of heads."""

    query: str
    key: str
    value: str
    out: str
    head_dim: str  # attribute of a block that holds the width of one head
    heads_key: str
    kv_key: str | None = None
    name: str = "attn"
    norm: str | None = None  # the norm before it; none where norms come after (post-norm), or before the first part
    norm_after: str | None = None  # post-norm: the norm of the sum with what it writes
    derived: tuple[Derived, ...] = ()
    ranks: bool = True  # can `nn.ragged.RankAttention` stand in for it? Not where scores are more than products
    rotary: bool = False  # are queries and keys turned by their position, plane by plane?
    plain_heads: bool = False  # can the stock config say "fewer heads of the same width"?
    divides_hidden: tuple[str, ...] = ()  # model types whose config insists that heads divide the hidden size

    @property
    def fused(self) -> bool:
        """Are q, k and v three parts of one matrix?"""
        return self.query == self.key == self.value

    @property
    def module(self) -> str:
        """The module that holds the projections of queries, keys and values."""
        return self.query.rpartition(".")[0]

    @property
    def keys(self) -> dict[str, str]:
        """What the config calls its sizes, by role."""
        return {"heads": self.heads_key, **({"kv_heads": self.kv_key} if self.kv_key else {})}

    def table(self, head_dim: int) -> dict[str, Any]:
        """Where a block has this attention, and what the config calls its head counts, as `nn.ragged` reads it."""
        return {
            "path": self.module, "query": self.query, "key": self.key, "value": self.value, "out": self.out,
            "rotary": self.rotary, "head_dim": head_dim,
            "heads": self.heads_key, "kv_heads": self.kv_key or self.heads_key,
        }  # fmt: skip


@dataclass(frozen=True)
class FeedForwardPart:
    """A feed-forward part of a block: neurons written by one matrix, or by a gate and another, and read by one."""

    writers: tuple[str, ...]  # the gate first
    out: str
    neurons_key: str
    name: str = "ffn"
    norm: str | None = None  # as of an attention
    norm_after: str | None = None
    may_be_empty: bool = True  # can its modules run without any neuron? Conv1D cannot
    mlp: str = ""  # the module that can stand for the whole feed-forward part
    mlp_inert: tuple[str, ...] = ()  # modules before it that then have nothing to do

    @property
    def module(self) -> str:
        """The module that holds the reader of the neurons; the block itself where there is none."""
        return self.out.rpartition(".")[0]

    @property
    def keys(self) -> dict[str, str]:
        """What the config calls its sizes, by role."""
        return {"neurons": self.neurons_key}


Part = AttentionPart | FeedForwardPart


@dataclass(frozen=True)
class StackLayout:
    """A list of blocks of one layout, in the order a model runs them."""

    blocks: str  # from the base model to the list of blocks
    parts: tuple[Part, ...]  # of every block, in the order they are added to the stream
    name: str = ""  # needed where there are several stacks
    final_norm: str | None = None  # from the base model to the norm after the last block
    causal: bool = False
    image: bool | str = False  # does it read images? Or the attribute of the config that says so


@dataclass(frozen=True)
class Family:
    """Where one kind of model keeps its widths."""

    name: str
    model_types: tuple[str, ...]
    stacks: tuple[StackLayout, ...]  # in the order they run: encoder, then decoder

    def __post_init__(self) -> None:
        parts = [[part.name for part in stack.parts] for stack in self.stacks]
        for names in ([stack.name for stack in self.stacks], *parts):
            if len(set(names)) < len(names):  # sites would have the same name
                raise ValueError(f"family {self.name}: stacks and parts need names of their own, not {names}")

    @property
    def causal(self) -> bool:
        """Is it a decoder and nothing else?"""
        return all(stack.causal for stack in self.stacks)

    @property
    def image(self) -> bool:
        """Does it read images, and nothing else?"""
        return all(bool(stack.image) for stack in self.stacks)
