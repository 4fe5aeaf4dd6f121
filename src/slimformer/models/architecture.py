"""What a model is made of, as data: widths that may shrink, who writes them and who reads them.

A `Family` says once, for one kind of Hugging Face model, where things live. `describe` reads the real sizes off the
modules of one model (not off its config: a model that was compressed before has sizes of its own in every block) and
returns an `Architecture`, a list of `Site`s with names that are the same for every family:

    blocks.3.attn.heads     the heads of block 3       written by q, k, v      read by the output projection
    blocks.3.ffn.hidden     the neurons of block 3     written by up (, gate)  read by down
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.errors import UnknownArchitecture
from slimformer.messages.arguments import IN_MEMORY, check_arguments
from slimformer.messages.short import Short
from slimformer.models.families import family_of
from slimformer.models.family import Family

Kind = Literal["attn.heads", "ffn.hidden", "attn.qk", "attn.vo"]
KINDS: tuple[Kind, ...] = ("attn.heads", "ffn.hidden")  # those every block has; ranks are another way to cut heads
PART = 2**20  # numbers that are looked at together where all of a weight would be a copy too many


@dataclass(frozen=True)
class Writer:
    """A matrix whose output rows belong to units of a site: `rows` for each unit, shared by `shared` units.

    A key projection under grouped queries has `shared` = queries per group. A fused projection is three writers of
    one module, each with its `part` of `parts`.
    """

    module: str
    rows: int
    bias: bool
    shared: int = 1
    part: int = 0
    parts: int = 1


@dataclass(frozen=True)
class Fixed:
    """What a width that stays as it is costs, and why it stays. MACs are per token, scores and context apart."""

    macs: int
    params: int
    reason: str


@dataclass(frozen=True)
class Site:
    """A width that may shrink. One unit is a neuron or a query head; `unit` is how many coordinates it has."""

    name: str
    kind: Kind
    block: int
    units: int
    unit: int
    group: int  # query heads that share one key/value head; 1 elsewhere
    outer: int  # width of the residual stream around it
    writers: tuple[Writer, ...]
    reader: str
    reader_bias: bool
    beside: int = 0  # weights of a linear path beside the units, which stays as it is
    fixed: Fixed | None = None  # it may not shrink, and has no writers
    path_bias: bool = False  # of the linear path beside the units

    @property
    def gated(self) -> bool:
        """Is a neuron a product of two?"""
        return self.kind == "ffn.hidden" and len(self.writers) > 1

    @property
    def path_brings_bias(self) -> bool:
        """Has a linear path that is put beside these units to bring the bias their reader lacks? Only a path of its own
        can; where two neurons stand for one, there is no other place for a bias than the reader."""
        return self.gated and not self.reader_bias

    @property
    def width(self) -> int:
        """Coordinates at the reader."""
        return self.units * self.unit


@dataclass(frozen=True, repr=False)
class Architecture(Short):
    """The widths of one model, site by site."""

    family: Family
    model_type: str
    blocks: str  # full path to the list of blocks
    n_blocks: int
    hidden: int
    sites: tuple[Site, ...]

    def facts(self) -> dict[str, str]:
        """Kind, blocks and widths."""
        sizes: dict[str, list[int]] = {kind: sorted({s.units for s in self if s.kind == kind}) for kind in KINDS}
        spans = {kind: " … ".join(str(n) for n in sorted({found[0], found[-1]})) for kind, found in sizes.items()}
        return {"": f"{self.model_type} of {self.n_blocks} blocks", "hidden size": str(self.hidden), **spans}

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __getitem__(self, name: str) -> Site:
        return self.by_name[name]

    @property
    def by_name(self) -> dict[str, Site]:
        return {site.name: site for site in self.sites}

    def of_block(self, i: int) -> tuple[Site, ...]:
        return tuple(site for site in self.sites if site.block == i)


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
    """Has the model no head?"""
    return model.base_model is model


def reads_windows(model: PreTrainedModel, family: Family) -> bool:
    """Does the model read running text, window by window? Decoders do, unless their head speaks of whole rows."""
    return family.causal and (is_bare(model) or bool(model.can_generate()))


def reads_examples(model: PreTrainedModel, family: Family) -> bool:
    """Is a row one example to the model? To a masked language model, as to a decoder, text is running text."""
    return not reads_windows(model, family) and (is_bare(model) or model.get_output_embeddings() is None)


def ffn_entry(model: PreTrainedModel, family: Family) -> str:
    """The module of a block that is given the stream the feed-forward part will be added to."""
    return family.ffn_norm if family.ffn_norm and is_pre_norm(model, family) else family.ffn_in[0]


def is_pre_norm(model: PreTrainedModel, family: Family) -> bool:
    """Is the stream itself normed only before it is read, never after it was added to? OPT comes both ways."""
    return family.norms_after is None or (family.ffn_norm is not None and bool(model.config.do_layer_norm_before))


@check_arguments(model=IN_MEMORY)
def describe(model: PreTrainedModel) -> Architecture:
    """The widths of `model`, read off its modules. Cost: none (no forward pass)."""
    family = family_of(model.config)
    path = base_path(model) + family.blocks
    try:
        blocks = model.get_submodule(path)
        sites = [site for i, block in enumerate(blocks.children()) for site in _sites(family, f"{path}.{i}", i, block)]
    except AttributeError as error:  # code of somebody else under a known model_type
        raise UnknownArchitecture(
            f"{type(model).__name__}: its modules are not those of the {family.name} family ({error})"
        ) from error
    if not sites:
        raise UnknownArchitecture(
            f"{type(model).__name__}: there is no block under {path!r}, so there is nothing to shrink"
        )
    return Architecture(family, model.config.model_type, path, len(sites) // 2, sites[0].outer, tuple(sites))


def _sites(family: Family, path: str, i: int, block: nn.Module) -> tuple[Site, Site]:
    return _heads(family, path, i, block), _neurons(family, path, i, block)


def _heads(family: Family, path: str, i: int, block: nn.Module) -> Site:
    attention: Any = block.get_submodule(family.attention)
    if getattr(attention, "fixed", ""):
        return _fixed_heads(family, path, i, attention)
    qk, vo = _ranks(family, block)
    reader = block.get_submodule(family.attn_out)
    outer = out_in(reader)[0]
    units, kv_units = _head_counts(family, block, qk + vo)
    group = units // kv_units if kv_units else 1
    roles = [(family.query, qk, 1), (family.key, qk, group), (family.value, vo, group)]
    writers = tuple(
        Writer(
            f"{path}.{name}",
            width,
            has_bias(block.get_submodule(name)),
            shared,
            part if family.fused else 0,
            3 if family.fused else 1,
        )
        for part, (name, width, shared) in enumerate(roles)
    )
    return Site(
        f"blocks.{i}.attn.heads", "attn.heads", i, units, max(1, vo), group, outer,
        writers, f"{path}.{family.attn_out}", has_bias(reader),
    )  # fmt: skip


def _fixed_heads(family: Family, path: str, i: int, attention: Any) -> Site:
    """Heads that cannot be cut, because the form of the attention has no rows and columns for each."""
    params = sum(parameter.numel() for parameter in attention.parameters())
    return Site(
        f"blocks.{i}.attn.heads", "attn.heads", i, attention.num_attention_heads, attention.head_dim, 1,
        attention.config.hidden_size, (), f"{path}.{family.attn_out}", False,
        fixed=Fixed(attention.macs, params, attention.fixed),
    )  # fmt: skip


def dense_head_dim(family: Family, block: nn.Module) -> int:
    """The width of one head of the model as it was trained, whatever ranks were cut to since."""
    attention: Any = block.get_submodule(family.attention)
    return int(attention.head_dim) if hasattr(attention, "ranks") else _attribute(block, family.head_dim)


def _ranks(family: Family, block: nn.Module) -> tuple[int, int]:
    """Width of one query or key, and of one value."""
    attention = block.get_submodule(family.attention)
    ranks = getattr(attention, "ranks", None)  # of nn.ragged.RankAttention, be it the package's or a checkpoint's own
    return (ranks["qk"], ranks["vo"]) if ranks else (dense_head_dim(family, block),) * 2


def _head_counts(family: Family, block: nn.Module, widths: int) -> tuple[int, int]:
    """Query heads and key/value heads, from the sizes of the matrices; `widths` is that of a key and a value."""
    if widths == 0:  # a head without values is none
        return 0, 0
    rows = [out_in(block.get_submodule(name))[0] for name in (family.query, family.key, family.value)]
    columns = out_in(block.get_submodule(family.attn_out))[1]
    if family.fused:
        units = (rows[0] + columns) // (2 * widths)
        return units, units
    return (rows[0] + columns) // widths, (rows[1] + rows[2]) // widths


def _neurons(family: Family, path: str, i: int, block: nn.Module) -> Site:
    reader = block.get_submodule(family.ffn_out)
    outer, units = out_in(reader)
    writers = tuple(Writer(f"{path}.{name}", 1, has_bias(block.get_submodule(name))) for name in family.ffn_in)
    beside = list(getattr(block.get_submodule(family.ffn), "bypass", ()))
    weights = sum(weight_of(layer).numel() for layer in beside)
    return Site(
        f"blocks.{i}.ffn.hidden", "ffn.hidden", i, units, 1, 1, outer,
        writers, f"{path}.{family.ffn_out}", has_bias(reader), weights,
        path_bias=any(has_bias(layer) for layer in beside),
    )  # fmt: skip


def _attribute(module: nn.Module, path: str) -> int:
    *parents, name = path.split(".")
    return int(getattr(module.get_submodule(".".join(parents)), name))


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
