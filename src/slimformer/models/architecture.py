"""What a model is made of, as data: widths that may shrink, who writes them and who reads them.

A `Family` says once, for one kind of Hugging Face model, where things live. `describe` reads the real sizes off the
modules of one model (not off its config: a model that was compressed before has sizes of its own in every block) and
returns an `Architecture`: stacks of blocks of `Site`s, with names that are the same for every family:

    blocks.3.attn.heads     the heads of block 3       written by q, k, v      read by the output projection
    blocks.3.ffn.hidden     the neurons of block 3     written by up (, gate)  read by down

A block has as many sites as its stack has parts, each under the name of its part. Where a model has several stacks
their names come first, and blocks are counted in each: `decoder.blocks.3.cross.heads`. Blocks also have one number in
the order of the walk through all stacks (`Site.block`), by which files and walks go.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.errors import UnknownArchitecture
from slimformer.messages.short import Short
from slimformer.models.family import AttentionPart, Family, FeedForwardPart, Part, StackLayout

Kind = Literal["attn.heads", "ffn.hidden", "attn.qk", "attn.vo"]
HEADS: Kind = "attn.heads"
NEURONS: Kind = "ffn.hidden"
PART = 2**20  # numbers that are looked at together where all of a weight would be a copy too many


@dataclass(frozen=True)
class Writer:
    """A matrix whose output rows belong to units of a site: `rows` for each unit, shared by `shared` units.

    A key projection under grouped queries has `shared` = queries per group. A fused projection is several writers of
    one module, each with its `part` of `parts`: all rows of the first, then all of the next; or, with `by_head`, the
    rows of all of them for the first unit, then those for the next.
    """

    module: str
    rows: int
    bias: bool
    shared: int = 1
    part: int = 0
    parts: int = 1
    by_head: bool = False


@dataclass(frozen=True)
class Fixed:
    """What a width that stays as it is costs, and why it stays. MACs are per token, scores and context apart."""

    macs: int
    params: int
    reason: str


@dataclass(frozen=True)
class Expert:
    """Which of the experts of a block it is, how many there are, and to how many of them a token goes; `before` is its
    number in the model this one was made from."""

    number: int
    of: int
    active: int
    before: int

    def share(self, macs: int) -> int:
        """What of it a token costs on average, where all experts are as wide: all shares add up exactly."""
        return (self.number + 1) * macs * self.active // self.of - self.number * macs * self.active // self.of


@dataclass(frozen=True)
class Site:
    """A width that may shrink. One unit is a neuron or a query head; `unit` is how many coordinates it has."""

    name: str
    kind: Kind
    block: int  # the number of its block, counted through all stacks
    units: int
    unit: int
    group: int  # query heads that share one key/value head; 1 elsewhere
    outer: int  # width of the residual stream around it
    writers: tuple[Writer, ...]
    reader: str
    reader_bias: bool
    part: Part
    root: str = ""  # full path of its block
    entry: str = ""  # the module that is given the stream what it writes is added to
    norm: str = ""  # the norm it reads, where norms come before (pre-norm)
    beside: int = 0  # weights of a linear path beside the units, which stays as it is
    fixed: Fixed | None = None  # it may not shrink, and has no writers
    kept: str = ""  # why it may not shrink, though it has writers
    path_bias: bool = False  # of the linear path beside the units
    positions: int = 0  # of its stack, where these are always as many; 0: as long as the sequence
    looks_at: int = 0  # the same of the stack whose states its keys and values read (cross-attention)
    runs: int = 1  # of its block, in one pass
    distances: int = 0  # rows of tables by distance that every head multiplies its queries or keys with, too
    expert: Expert | None = None  # where it is one of several parts of which a token goes to some

    @property
    def gated(self) -> bool:
        """Is a neuron a product of two?"""
        return self.kind == NEURONS and len(self.writers) > 1

    @property
    def first(self) -> str:
        """The module that is given what the part reads; where something stands in for all of it, that."""
        return self.writers[0].module if self.writers else self.reader.rpartition(".")[0]

    @property
    def path_brings_bias(self) -> bool:
        """Has a linear path that is put beside these units to bring the bias their reader lacks? Only a path of its own
        can; where two neurons stand for one, there is no other place for a bias than the reader."""
        return self.gated and not self.reader_bias

    @property
    def stays(self) -> str:
        """Why it may not shrink; nothing where it may."""
        return self.fixed.reason if self.fixed else self.kept

    @property
    def width(self) -> int:
        """Coordinates at the reader."""
        return self.units * self.unit

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.units // max(1, self.group)

    @property
    def alike(self) -> str:
        """What all sites that must keep as many units have in common: its own name, or that of the experts of a
        block, whose matrices are stored in one tensor."""
        return f"{self.name.partition('.experts.')[0]}.experts" if self.expert else self.name

    @property
    def exit(self) -> str:
        """The module whose output is added to the stream: its reader, or what adds up all experts of a block."""
        return self.reader.rsplit(".", 2)[0] if self.expert else self.reader

    @property
    def crosses(self) -> bool:
        """Do its keys and values read the states of another stack?"""
        return isinstance(self.part, AttentionPart) and bool(self.part.crosses)

    @property
    def attention(self) -> AttentionPart:
        """The part whose heads or ranks these are."""
        assert isinstance(self.part, AttentionPart)
        return self.part

    @property
    def feed_forward(self) -> FeedForwardPart:
        """The part whose neurons these are."""
        assert isinstance(self.part, FeedForwardPart)
        return self.part

    @property
    def module(self) -> str:
        """Full path of the module of its part; of the block itself where the part has none."""
        return f"{self.root}.{self.part.module}".rstrip(".")

    @property
    def sizes(self) -> dict[str, int]:
        """Its sizes by role: heads and key/value heads, or neurons."""
        return {"heads": self.units, "kv_heads": self.kv_heads} if self.kind == HEADS else {"neurons": self.units}

    def rank_name(self, rank: str) -> str:
        """The name of the "qk" or "vo" rank of the same attention."""
        return f"{self.name.rpartition('.')[0]}.{rank}"


@dataclass(frozen=True)
class Block:
    """One block of a stack: its parts in the order they are added to the stream."""

    index: int  # counted through all stacks
    name: str
    path: str
    sites: tuple[Site, ...]
    runs: int = 1  # in one pass, one after the other (ALBERT)

    @property
    def heads(self) -> tuple[Site, ...]:
        """The sites of its attentions."""
        return tuple(site for site in self.sites if site.kind == HEADS)

    @property
    def neurons(self) -> tuple[Site, ...]:
        """The sites of its feed-forward parts."""
        return tuple(site for site in self.sites if site.kind == NEURONS)

    @property
    def ranked(self) -> Site | None:
        """The heads that may be cut by rank, too: of the only attention, if ours can stand in for it."""
        heads = self.heads
        return heads[0] if len(heads) == 1 and not heads[0].stays and heads[0].attention.ranks else None

    def one(self, kind: Kind) -> Site:
        """The only site of a kind, for methods that know one; refused where there are none or several."""
        found = [site for site in self.sites if site.kind == kind]
        if len(found) != 1:
            what = "attentions" if kind == HEADS else "feed-forward parts"
            raise UnknownArchitecture(f"{self.name} has {len(found)} {what}, and this works on blocks with one")
        return found[0]


@dataclass(frozen=True)
class Stack:
    """The blocks of one stack."""

    layout: StackLayout
    path: str  # full path to the list of blocks
    blocks: tuple[Block, ...]


@dataclass(frozen=True, repr=False)
class Architecture(Short):
    """The widths of one model, site by site."""

    family: Family
    model_type: str
    stacks: tuple[Stack, ...]

    def facts(self) -> dict[str, str]:
        """Kind, blocks and widths."""
        sizes: dict[str, list[int]] = {
            kind: sorted({s.units for s in self if s.kind == kind}) for kind in dict.fromkeys(s.kind for s in self)
        }
        spans = {kind: " … ".join(str(n) for n in sorted({found[0], found[-1]})) for kind, found in sizes.items()}
        return {"": f"{self.model_type} of {self.n_blocks} blocks", "hidden size": str(self.hidden), **spans}

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __getitem__(self, name: str) -> Site:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, Site]:
        return {site.name: site for site in self.sites}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """Those of all stacks, in the order of the walk."""
        return tuple(block for stack in self.stacks for block in stack.blocks)

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """Those of all blocks."""
        return tuple(site for block in self.blocks for site in block.sites)

    @property
    def heads(self) -> list[Site]:
        """The sites of all attentions."""
        return [site for site in self.sites if site.kind == HEADS]

    @property
    def neurons(self) -> list[Site]:
        """The sites of all feed-forward parts."""
        return [site for site in self.sites if site.kind == NEURONS]

    @property
    def n_blocks(self) -> int:
        return len(self.blocks)

    @property
    def n_layers(self) -> int:
        """Runs of blocks in one pass: the blocks, unless one is run many times."""
        return sum(block.runs for block in self.blocks)

    @property
    def hidden(self) -> int:
        """Width of the residual stream; of the widest where stacks differ."""
        return max(site.outer for site in self.sites)

    def layout(self, site: Site) -> StackLayout:
        """What is said of the stack of a site."""
        return next(stack.layout for stack in self.stacks if site.block <= stack.blocks[-1].index)

    def inside(self, name: str) -> bool:
        """Is this the name of a module or weight in a block?"""
        return any(name.startswith(f"{stack.path}.") for stack in self.stacks)

    def with_sites(self, sites: Mapping[str, Site]) -> Architecture:
        """The same with other sites under their names."""
        stacks = (
            replace(s, blocks=tuple(replace(b, sites=tuple(sites.get(x.name, x) for x in b.sites)) for b in s.blocks))
            for s in self.stacks
        )
        return replace(self, stacks=tuple(stacks))

    @property
    def blocks_alike(self) -> bool:
        """Have all blocks of a stack the same sizes?"""
        found = {(self.layout(site).name, site.part.name, site.units, site.group) for site in self}
        return len(found) == sum(len(stack.blocks[0].sites) for stack in self.stacks)


def block_of(site: str) -> tuple[str, int]:
    """The stack the name of a site begins with ("" in models of one) and the number of its block there; −1 for what is
    no such name."""
    found = re.match(r"(?:(\w+)\.)?blocks\.(\d+)\.", site, re.ASCII)
    return (found[1] or "", int(found[2])) if found else ("", -1)


def own_rows(site: Site, writer: Writer) -> Tensor:
    """Which rows of its matrix a writer of a site has: units (or groups of them) × rows of each."""
    mates = [each for each in site.writers if each.module == writer.module]
    counts = [each.rows * (1 if writer.by_head else site.units // each.shared) for each in mates]
    step = sum(counts) if writer.by_head else writer.rows
    first = sum(counts[: writer.part]) + step * torch.arange(site.units // writer.shared)
    return first[:, None] + torch.arange(writer.rows)


def out_in(module: nn.Module) -> tuple[int, int]:
    """(outputs, inputs) of a linear map, whichever way round it stores its weight."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    rows, columns = weight.shape
    return (columns, rows) if isinstance(module, Conv1D) else (rows, columns)


def has_bias(module: nn.Module) -> bool:
    return getattr(module, "bias", None) is not None


def base_path(model: PreTrainedModel) -> str:
    """Path from the model to its headless part: "bert.", "model.", or "" for a bare model."""
    prefix = model.base_model_prefix
    return f"{prefix}." if prefix and hasattr(model, prefix) else ""


def is_bare(model: PreTrainedModel) -> bool:
    """Has the model no head? The base of some with a head (T5) is the model itself."""
    return model.base_model is model and model.get_output_embeddings() is None


def reads_windows(model: PreTrainedModel, family: Family) -> bool:
    """Does the model read running text, window by window? Decoders do, unless their head speaks of whole rows."""
    return family.causal and (is_bare(model) or bool(model.can_generate()))


def reads_examples(model: PreTrainedModel, family: Family) -> bool:
    """Is a row one example to the model? To a masked language model, as to a decoder, text is running text."""
    return not reads_windows(model, family) and (is_bare(model) or model.get_output_embeddings() is None)


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a linear map as outputs × inputs, whichever way round it is stored."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.detach().mT if isinstance(module, Conv1D) else weight.detach()


def parts(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor in runs of at most `PART` numbers, in the order they are stored, so that no copy of all of it is made.

    Cost: none where it is contiguous.
    """
    flat = tensor.detach().reshape(-1)
    return iter(flat.split(PART))


def fingerprint(model: PreTrainedModel, read: Callable[[str], Iterable[Tensor]] | None = None) -> str:
    """A short hash of the kind of model, of its sizes, and of every weight.

    The same for the same model in float64, float32 and bfloat16; not in float16, which rounds to other neighbours.
    `read` gives the weights of a model that is not in memory, by their full names and part by part.
    """
    config = model.config
    digest = hashlib.blake2b(f"{config.model_type} {getattr(config, 'rope_parameters', None)}".encode(), digest_size=12)
    for name, parameter in sorted(model.base_model.named_parameters()):
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        for part in parts(parameter) if read is None else read(base_path(model) + name):
            digest.update(part.to("cpu", torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()
