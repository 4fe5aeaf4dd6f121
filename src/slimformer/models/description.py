"""From a model to its architecture: sizes are read off the modules a family names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from slimformer.errors import UnknownArchitecture
from slimformer.messages.arguments import IN_MEMORY, check_arguments
from slimformer.messages.words import option
from slimformer.models.architecture import (
    HEADS,
    NEURONS,
    Architecture,
    Block,
    Expert,
    Fixed,
    Site,
    Stack,
    Writer,
    base_path,
    has_bias,
    out_in,
    weight_of,
)
from slimformer.models.experts import numbers_before, take_apart
from slimformer.models.families import family_of
from slimformer.models.family import AttentionPart, BlockPart, Family, FeedForwardPart, Part, StackLayout


def is_pre_norm(model: PreTrainedModel, layout: StackLayout, part: Part) -> bool:
    """Is the stream itself normed only before it is read, never after it was added to? OPT comes both ways."""
    return part.norm_after is None or (part.norm is not None and bool(getattr(model.config, layout.pre_norm)))


@check_arguments(model=IN_MEMORY)
def describe(model: PreTrainedModel) -> Architecture:
    """The widths of `model`, read off its modules. Cost: none (no forward pass).

    Experts that are stored in one tensor get modules of their own (`models.experts`); what is saved stays the same.

    >>> architecture = slimformer.describe(slimformer.load("smaller"))
    >>> len(architecture.blocks), architecture.model_type
    (3, 'llama')
    """
    family = family_of(model.config)
    stacks: list[Stack] = []
    _require_known(model, family)
    try:
        take_apart(model, family)
        for layout in family.stacks:
            stacks.append(_stack(model, layout, sum(len(stack.blocks) for stack in stacks), len(family.stacks) > 1))
    except AttributeError as error:  # code of somebody else under a known model_type
        raise UnknownArchitecture(
            f"{type(model).__name__}: its modules are not those of the {family.name} family ({error}); name them in a "
            f"file for {option('family')}, which `slimformer families discover MODEL` can write"
        ) from error
    for stack in stacks:
        if not stack.blocks:
            raise UnknownArchitecture(
                f"{type(model).__name__}: there is no block under {stack.path!r}, so there is nothing to shrink"
            )
    return Architecture(family, model.config.model_type, tuple(stacks))


def _require_known(model: PreTrainedModel, family: Family) -> None:
    """Refuse what a family says it does not know of."""
    for refused in family.refuses:
        *parents, name = refused.module.split(".")
        try:
            there = getattr(model.base_model.get_submodule(".".join(parents)), name)
        except AttributeError:
            continue
        if there is not None:
            raise UnknownArchitecture(f"{type(model).__name__}: {refused.reason}, so it is not cut")


def _stack(model: PreTrainedModel, layout: StackLayout, first: int, named: bool) -> Stack:
    path = base_path(model) + layout.blocks
    prefix = f"{layout.name}." if named else ""
    runs = int(getattr(model.config, layout.runs)) if layout.runs else 1
    blocks = [
        Block(first + n, f"{prefix}blocks.{n}", f"{path}.{n}", (), runs)
        for n, _ in enumerate(model.get_submodule(path).children())
    ]
    return Stack(layout, path, tuple(replace(block, sites=_sites(model, layout, block)) for block in blocks))


def _positions(model: PreTrainedModel, name: str) -> int:
    """How many positions a stack always has; 0 where that is as data have it, or where there is no such stack."""
    layout = next(layout for layout in family_of(model.config).stacks if layout.name == name)
    if layout.config and layout.image:
        return patches(getattr(model.config, layout.config)) + layout.class_position
    return int(getattr(model.config, layout.positions)) if layout.positions else 0


def patches(config: Any) -> int:
    """Patches of an image, from the config of a model that reads them."""
    (height, width), (rows, columns) = (sides(size) for size in (config.image_size, config.patch_size))
    return (height // rows) * (width // columns)


def sides(size: Any) -> tuple[int, int]:
    """Height and width, however a config says them."""
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def _sites(model: PreTrainedModel, layout: StackLayout, block: Block) -> tuple[Site, ...]:
    out = []
    for n, site in enumerate(site for part in layout.parts for site in _of_part(model, part, block)):
        part = site.part
        norm = f"{block.path}.{part.norm}" if part.norm and is_pre_norm(model, layout, part) else ""
        first_writer = site.writers[0].module if site.writers else site.module
        looks_at = _positions(model, part.crosses) if isinstance(part, AttentionPart) and part.crosses else 0
        positions, entry = _positions(model, layout.name), block.path if n == 0 else norm or first_writer
        out.append(replace(site, norm=norm, entry=entry, positions=positions, looks_at=looks_at, runs=block.runs))
    return tuple(out)


def _of_part(model: PreTrainedModel, part: BlockPart, block: Block) -> tuple[Site, ...]:
    """The site of a part; of experts one for each."""
    if isinstance(part, AttentionPart):
        return (_heads(model, part, block),)
    if isinstance(part, FeedForwardPart):
        return (_neurons(model, part, block),)
    module = model.get_submodule(block.path)
    count, active = len(list(module.get_submodule(part.experts).children())), _attribute(module, f"{part.router}.top_k")
    before = numbers_before(model.config, int(block.path.rpartition(".")[2]), count)
    return tuple(
        replace(_neurons(model, part.expert(n), block), expert=Expert(n, count, active, before[n]))
        for n in range(count)
    )


def _heads(model: PreTrainedModel, part: AttentionPart, block: Block) -> Site:
    module = model.get_submodule(block.path)
    name, reader_path = f"{block.name}.{part.name}.heads", f"{block.path}.{part.out}"
    attention: Any = module.get_submodule(part.module)
    if getattr(attention, "fixed", ""):  # its form has no rows and columns for each head
        params = sum(parameter.numel() for parameter in attention.parameters())
        return Site(
            name, HEADS, block.index, attention.num_attention_heads, attention.head_dim, 1,
            attention.config.hidden_size, (), reader_path, False, part, block.path,
            fixed=Fixed(attention.macs, params, attention.fixed),
        )  # fmt: skip
    ranks = getattr(attention, "ranks", None)  # of nn.ragged.RankAttention, be it the package's or a checkpoint's own
    part = _as_it_is(model, part, module)
    qk, vo = (ranks["qk"], ranks["vo"]) if ranks else (dense_head_dim(part, module),) * 2
    reader = module.get_submodule(part.out)
    units, kv_units = _head_counts(part, module, qk, vo)
    group = units // kv_units if kv_units else 1
    roles = [(part.query, qk, 1), (part.key, qk, group), (part.value, vo, group)]
    writers = tuple(
        Writer(
            f"{block.path}.{path}", width, has_bias(module.get_submodule(path)), shared,
            role if part.fused else 0, 3 if part.fused else 1, part.by_head,
        )
        for role, (path, width, shared) in enumerate(roles)
    )  # fmt: skip
    return Site(
        name, HEADS, block.index, units, max(1, vo), group, out_in(reader)[0], writers, reader_path, has_bias(reader),
        part, block.path, kept=part.fixed, distances=_distances(part, module),
    )  # fmt: skip


def _distances(part: AttentionPart, block: nn.Module) -> int:
    """Rows of the tables by distance: as many for queries as for keys, each in both directions."""
    attention: Any = block.get_submodule(part.module)
    if part.distances is None or not attention.relative_attention:
        return 0
    return 2 * len(attention.pos_att_type) * _attribute(block, part.distances)


def _as_it_is(model: PreTrainedModel, part: AttentionPart, block: nn.Module) -> AttentionPart:
    """What a family leaves to the model: whether this block has rotary positions, and on how much of a head."""
    rotary: Any = part.rotary
    if isinstance(part.rotary, str):
        attention: Any = block.get_submodule(part.module)
        rotary = attention.rotary if hasattr(attention, "ranks") else _attribute(block, part.rotary)
    part = replace(part, rotary=bool(rotary))
    said = getattr(model.config, "rope_parameters", None) or {}
    if not part.rotary or part.no_ranks or float(said.get("partial_rotary_factor", 1.0)) == 1.0:
        return part
    reason = "positions turn a part of each head only"
    return replace(part, no_ranks=reason, fixed=f"{reason}, which no attention of ours does" * part.stand_in)


def dense_head_dim(part: AttentionPart, block: nn.Module) -> int:
    """The width of one head of the model as it was trained, whatever ranks were cut to since."""
    attention: Any = block.get_submodule(part.module)
    if hasattr(attention, "ranks"):
        return int(attention.head_dim)
    return part.head_dim if isinstance(part.head_dim, int) else _attribute(block, part.head_dim)


def _head_counts(part: AttentionPart, block: nn.Module, qk: int, vo: int) -> tuple[int, int]:
    """Query heads and key/value heads, from the sizes of the matrices; `qk` and `vo` are the widths of a key and a
    value."""
    if qk + vo == 0:  # a head without values is none
        return 0, 0
    rows = sum(out_in(block.get_submodule(name))[0] for name in dict.fromkeys((part.query, part.key, part.value)))
    heads = out_in(block.get_submodule(part.out))[1] // vo
    return heads, (rows - heads * qk) // (qk + vo)


def _neurons(model: PreTrainedModel, part: FeedForwardPart, block: Block) -> Site:
    module = model.get_submodule(block.path)
    if part.gated and part.gated[0] in dict(module.named_modules()):
        part = replace(part, writers=part.gated)
    name, standing = f"{block.name}.{part.name}.hidden", module.get_submodule(part.mlp) if part.mlp else None
    if said := getattr(standing, "stands_in", None):  # of nn.stand_ins, be it the package's or a checkpoint's own
        there: Any = standing
        params = sum(parameter.numel() for parameter in there.parameters())
        return Site(
            name, NEURONS, block.index, 0, 1, 1, there.out.out_features, (), f"{block.path}.{part.mlp}.out",
            bool(said["bias"]), part, block.path, fixed=Fixed(there.macs, params, f"replaced: {said['by']}"),
        )  # fmt: skip
    reader = module.get_submodule(part.out)
    outer, units = out_in(reader)
    writers = tuple(
        Writer(f"{block.path}.{path}", 1, has_bias(module.get_submodule(path)), part=n, parts=part.writers.count(path))
        for path, n in zip(part.writers, part.halves, strict=True)
    )
    beside = list(getattr(module.get_submodule(part.module), "bypass", ()))
    return Site(
        name, NEURONS, block.index, units, 1, 1, outer,
        writers, f"{block.path}.{part.out}", has_bias(reader), part, block.path,
        beside=sum(weight_of(layer).numel() for layer in beside), path_bias=any(has_bias(layer) for layer in beside),
        kept=part.fixed,
    )  # fmt: skip


def _attribute(module: nn.Module, path: str) -> int:
    *parents, name = path.split(".")
    return int(getattr(module.get_submodule(".".join(parents)), name))
