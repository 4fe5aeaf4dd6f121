"""Attention as two widths of its own: the rank of queries and keys, and the rank of values.

They are another way to cut what `blocks.3.attn.heads` cuts, so they are not among the sites of an architecture: a plan
takes one way or the other for every block. One unit is one rank of *all* heads of a block:

    blocks.3.attn.qk     written by q and k, read by nobody but the scores; with rotary positions a unit is a plane
    blocks.3.attn.vo     written by v, read by the output projection
"""

from __future__ import annotations

from dataclasses import replace

from transformers import PreTrainedModel

from slimformer.models.architecture import HEADS, Architecture, Site, Writer


def rank_sites(model: PreTrainedModel, architecture: Architecture) -> tuple[Site, ...]:
    """The ranks that may be cut, block by block. A norm of queries and keys needs all of their coordinates.

    Blocks that were cut by rank before are left to their heads, and so are those with several attentions.
    """
    sites: list[Site] = []
    for block in architecture.blocks:
        heads = block.ranked
        attention = model.get_submodule(heads.module) if heads else None
        if heads is None or hasattr(attention, "ranks"):
            continue
        if not hasattr(attention, "q_norm"):
            sites.append(scores_site(heads))
        sites.append(values_site(heads))
    return tuple(sites)


def heads_of(architecture: Architecture, i: int) -> Site:
    """The one site of block i that is cut by whole heads."""
    return architecture.blocks[i].one(HEADS)


def scores_site(heads: Site) -> Site:
    """Queries and keys of `heads`, rank by rank or plane by plane."""
    query, key, _ = heads.writers
    pair = 2 if heads.attention.rotary else 1
    writers = (
        Writer(query.module, pair * heads.units, query.bias, part=query.part, parts=query.parts),
        Writer(key.module, pair * heads.kv_heads, key.bias, part=key.part, parts=key.parts),
    )
    return replace(
        heads, name=heads.rank_name("qk"), kind="attn.qk", units=query.rows // pair, unit=pair * heads.units, group=1,
        writers=writers, reader="", reader_bias=False,
    )  # fmt: skip


def values_site(heads: Site) -> Site:
    """Values of `heads`, rank by rank."""
    value = heads.writers[2]
    writer = Writer(value.module, heads.kv_heads, value.bias, part=value.part, parts=value.parts)
    return replace(
        heads,
        name=heads.rank_name("vo"),
        kind="attn.vo",
        units=value.rows,
        unit=heads.units,
        group=1,
        writers=(writer,),
    )
