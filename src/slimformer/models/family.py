"""Where one kind of Hugging Face model keeps its widths, as data that is checked when it is read.

A family is one or more stacks of blocks; a block is a row of parts, each added to the residual stream in its turn. Only
strings, numbers, booleans and tuples stand here: paths of modules (those of a part relative to its block), and the keys
of the stock config. `models.families` reads it from YAML.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from slimformer.files.reading import checked

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=STRICT)
class Derived:
    """An attribute of a block that depends on the sizes of an attention: `path` = factor · sizes[times] / sizes[over].

    `factor` "head_dim" means the width of one head; sizes are named by role: "heads", "kv_heads".
    """

    path: str
    times: Literal["heads", "kv_heads"]
    over: Literal["kv_heads"] | None = None
    factor: Literal["head_dim"] | int = 1


@dataclass(frozen=True, config=STRICT)
class AttentionPart:
    """An attention of a block: four projections and a number of heads."""

    query: str
    key: str
    value: str
    out: str
    head_dim: str | int  # attribute of a block that holds the width of one head, or the width itself
    heads_key: str | None = None  # of the stock config; none where it has no word for it
    kv_key: str | None = None
    name: str = "attn"
    norm: str | None = None  # the norm before it; none where norms come after (post-norm), or before the first part
    norm_after: str | None = None  # post-norm: the norm of the sum with what it writes
    derived: tuple[Derived, ...] = ()
    adds: bool = True  # does what `out` writes go into the stream as it is, after all parts before it?
    fixed: str = ""  # why it stays as it is, where it does
    no_ranks: str = ""  # why `nn.ragged.RankAttention` cannot stand in for it, where scores are more than products
    rotary: bool | str = False  # are queries and keys turned by their position, plane by plane? Or what says so of each
    stand_in: bool = False  # does its forward pass ask the config for its heads? Then, with other heads, ours stands in
    distances: str | None = None  # what holds how many distances either way queries and keys are multiplied with, too
    by_head: bool = False  # of a fused matrix: q, k and v of head 0, then those of head 1
    plain_heads: bool = False  # can the stock config say "fewer heads of the same width"?
    divides_hidden: tuple[str, ...] = ()  # model types whose config insists that heads divide the hidden size
    bare_keys: bool = False  # have its keys no bias, though queries and values have one (Whisper)?
    crosses: str = ""  # the stack before whose last states its keys and values read (cross-attention)

    @property
    def ranks(self) -> bool:
        """May it be cut by rank, too?"""
        return not (self.fixed or self.no_ranks)

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
        said = {"heads": self.heads_key, "kv_heads": self.kv_key}
        return {role: key for role, key in said.items() if key is not None}

    def table(self, head_dim: int) -> dict[str, Any]:
        """Where a block has this attention, and what the config calls its head counts, as `nn.ragged` reads it."""
        return {
            "path": self.module, "query": self.query, "key": self.key, "value": self.value, "out": self.out,
            "rotary": self.rotary if isinstance(self.rotary, bool) else self.rotary.rpartition(".")[2],
            "head_dim": head_dim,
            "heads": self.heads_key, "kv_heads": self.kv_key or self.heads_key,
        }  # fmt: skip


@dataclass(frozen=True, config=STRICT)
class FeedForwardPart:
    """A feed-forward part of a block: neurons written by one matrix, or by a gate and another, and read by one."""

    writers: tuple[str, ...]  # the gate first; halves of one matrix are named twice
    out: str
    neurons_key: str | None = None  # of the stock config; none where it has no word for it
    name: str = "ffn"
    norm: str | None = None  # as of an attention
    norm_after: str | None = None
    adds: bool = True
    fixed: str = ""
    may_be_empty: bool = True  # can its modules run without any neuron? Conv1D cannot
    mlp: str = ""  # the module that can stand for the whole feed-forward part
    mlp_inert: tuple[str, ...] = ()  # modules before it that then have nothing to do
    gated: tuple[str, ...] = ()  # the writers of those blocks that have these modules instead (T5 1.1, FLAN-T5)

    @property
    def halves(self) -> tuple[int, ...]:
        """Which part of its matrix each writer is."""
        return tuple(self.writers[:n].count(path) for n, path in enumerate(self.writers))

    @property
    def module(self) -> str:
        """The module that holds the reader of the neurons; the block itself where there is none."""
        return self.out.rpartition(".")[0]

    @property
    def keys(self) -> dict[str, str]:
        """What the config calls its sizes, by role."""
        return {} if self.neurons_key is None else {"neurons": self.neurons_key}


@dataclass(frozen=True, config=STRICT)
class ExpertsPart:
    """Gated feed-forward parts of which a router sends every token to some. All of a block have one width, and each of
    their two matrices, `gate_up_proj` and `down_proj`, is one tensor of all of them."""

    experts: str  # the module that holds both tensors
    router: str  # what writes a score for each of them; `top_k` says to how many a token goes
    neurons_key: str  # of the stock config: the width of one
    experts_key: str  # of the stock config: how many there are
    name: str = "experts"
    norm: str | None = None  # as of an attention
    norm_after: str | None = None
    adds: bool = True
    fixed: str = ""

    @property
    def keys(self) -> dict[str, str]:
        """What the config calls its sizes, by role."""
        return {"neurons": self.neurons_key}

    def expert(self, n: int) -> FeedForwardPart:
        """One of them, once it has modules of its own (`models.experts`)."""
        path = f"{self.experts}.{n}"
        return FeedForwardPart(
            (f"{path}.gate_up_proj",) * 2, f"{path}.down_proj", self.neurons_key, f"{self.name}.{n}", self.norm,
            self.norm_after, self.adds, self.fixed, may_be_empty=False,
        )  # fmt: skip


Part = AttentionPart | FeedForwardPart  # of a site
BlockPart = Part | ExpertsPart
KINDS: dict[str, type[BlockPart]] = {
    "attention": AttentionPart,
    "feed_forward": FeedForwardPart,
    "experts": ExpertsPart,
}


def _part(said: Any) -> Any:
    """A part as a file has it: `attention: {…}`, `feed_forward: {…}` or `experts: {…}`."""
    if isinstance(said, BlockPart):
        return said
    if not isinstance(said, dict) or len(said) != 1 or not said.keys() <= KINDS.keys():
        raise ValueError(f"a part is {' or '.join(f'`{kind}: …`' for kind in KINDS)}")
    ((kind, fields),) = said.items()
    return checked(KINDS[kind], fields)


@dataclass(frozen=True, config=STRICT)
class StackLayout:
    """A list of blocks of one layout, in the order a model runs them."""

    blocks: str  # from the base model to the list of blocks
    parts: tuple[Annotated[BlockPart, BeforeValidator(_part)], ...]  # in the order they are added to the stream
    name: str = ""  # needed where there are several stacks
    runs: str | None = None  # key of the config that says how often its one block is run
    final_norm: str | None = None  # from the base model to the norm after the last block
    causal: bool = False
    tuples: bool = False  # do its blocks give a tuple, the stream first?
    gains_from_one: bool = False  # do its norms multiply by 1 + weight?
    image: bool | str = False  # does it read images? Or the attribute of the config that says so
    sound: bool = False  # does it read sounds?
    pre_norm: str = "do_layer_norm_before"  # where parts give norms before and after: what says that those before count
    hands_on: tuple[str, ...] = ()  # arguments that blocks have from the tuple of the one before (T5: shared biases)
    positions: str = ""  # the attribute of the config that says how many it always has (Whisper); else as data have
    mask: str = ""  # the input that says which of its positions are real, where it is not the mask of the outputs
    config: str = ""  # the part of the config that is of this stack alone, where several models stand in one
    class_position: bool = True  # has an image a position that is no patch? A config with `pool` may say otherwise


@dataclass(frozen=True, config=STRICT)
class Refused:
    """Models that have this module are not walked, and the reason."""

    module: str  # from the base model; what is None there does not count
    reason: str


@dataclass(frozen=True, config=STRICT)
class Family:
    """Where one kind of model keeps its widths."""

    name: str
    model_types: tuple[str, ...]
    stacks: tuple[StackLayout, ...]  # in the order they run: encoder, then decoder
    summary: str = ""  # what is particular about it, in a line
    refuses: tuple[Refused, ...] = ()
    positions_after_padding: tuple[str, ...] = ()  # model types whose first position is the one after the padding index

    def __post_init__(self) -> None:
        if not (self.stacks and all(stack.parts for stack in self.stacks)):
            raise ValueError(f"family {self.name}: a family has stacks, and each of them parts")
        parts = [[part.name for part in stack.parts] for stack in self.stacks]
        for names in ([stack.name for stack in self.stacks], *parts):
            if len(set(names)) < len(names):  # sites would have the same name
                raise ValueError(f"family {self.name}: stacks and parts need names of their own, not {names}")

        for n, stack in enumerate(self.stacks):
            crossed = {part.crosses for part in stack.parts if isinstance(part, AttentionPart) and part.crosses}
            if not crossed <= {before.name for before in self.stacks[:n]}:
                raise ValueError(f"family {self.name}: {stack.name} crosses {crossed}, which is no stack before it")

    @property
    def reads_pairs(self) -> bool:
        """Is it an encoder and a decoder that looks at it: does it read a source and write a target?"""
        return any(part.crosses for stack in self.stacks for part in stack.parts if isinstance(part, AttentionPart))

    @property
    def causal(self) -> bool:
        """Is it a decoder and nothing else?"""
        return all(stack.causal for stack in self.stacks)

    @property
    def image(self) -> bool:
        """Does it read images, and nothing else?"""
        return all(bool(stack.image) for stack in self.stacks)

    @property
    def sound(self) -> bool:
        """Does it read sounds? What it writes of them may be text (Whisper)."""
        return self.stacks[0].sound

    @property
    def experts(self) -> bool:
        """Has it feed-forward parts of which every token is sent to some?"""
        return any(isinstance(part, ExpertsPart) for stack in self.stacks for part in stack.parts)

    @property
    def towers(self) -> bool:
        """Are they models of images and of text side by side, that are compared (CLIP)?"""
        return len(self.stacks) > 1 and any(stack.image for stack in self.stacks) and not self.image

    @property
    def unit(self) -> str:
        """What data for it are counted in: pairs of image and text, images, positions of sounds, or tokens."""
        if self.towers:
            return "pairs"
        return "images" if self.image else "positions" if self.sound and not self.reads_pairs else "tokens"

    def class_positions(self, config: Any) -> int:
        """Positions of an image that are no patches."""
        return int(self.stacks[0].class_position and getattr(config, "pool", "cls") == "cls")

    def to_json(self) -> dict[str, Any]:
        """As a file has it; what is as usual is left out."""
        kinds = {part_type: kind for kind, part_type in KINDS.items()}
        said: dict[str, Any] = {"name": self.name, "summary": self.summary, **_said(self)}
        for layout, stack in zip(self.stacks, said["stacks"], strict=True):
            pairs = zip(layout.parts, stack["parts"], strict=True)
            stack["parts"] = [{kinds[type(part)]: fields} for part, fields in pairs]
        return said


def _said(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_said(each) for each in value]
    if not hasattr(value, "__dataclass_fields__"):
        return value
    fields = {name: (getattr(value, name), field.default) for name, field in value.__dataclass_fields__.items()}
    return {name: _said(now) for name, (now, usual) in fields.items() if now != usual}
