"""Attention as two widths of its own: the rank of queries and keys, and the rank of values.

They are another way to cut what `blocks.3.attn.heads` cuts, so they are not among the sites of an architecture: a plan
takes one way or the other for every block. One unit is one rank of *all* heads of a block:

    blocks.3.attn.qk     written by q and k, read by nobody but the scores; with rotary positions a unit is a plane
    blocks.3.attn.vo     written by v, read by the output projection
"""

from __future__ import annotations

from transformers import PreTrainedModel

from slimformer.models.architecture import Architecture, Site, Writer


def rank_sites(model: PreTrainedModel, architecture: Architecture) -> tuple[Site, ...]:
    """The ranks that may be cut, block by block. A norm of queries and keys needs all of their coordinates.

    Blocks that were cut by rank before are left to their heads.
    """
    found: list[Site] = []
    for i in range(architecture.n_blocks):
        heads = heads_of(architecture, i)
        attention = model.get_submodule(f"{architecture.blocks}.{i}.{architecture.family.attention}")
        if hasattr(attention, "ranks") or heads.fixed:
            continue
        if not hasattr(attention, "q_norm"):
            found.append(scores_site(heads, rotary=architecture.family.rotary))
        found.append(values_site(heads))
    return tuple(found)


def heads_of(architecture: Architecture, i: int) -> Site:
    """The site of block i that is cut by whole heads."""
    return next(site for site in architecture.of_block(i) if site.kind == "attn.heads")


def scores_site(heads: Site, *, rotary: bool) -> Site:
    """Queries and keys of the block of `heads`, rank by rank or plane by plane."""
    query, key, _ = heads.writers
    pair = 2 if rotary else 1
    kv_heads = heads.units // max(1, heads.group)
    writers = (
        Writer(query.module, pair * heads.units, query.bias, part=query.part, parts=query.parts),
        Writer(key.module, pair * kv_heads, key.bias, part=key.part, parts=key.parts),
    )
    return Site(
        f"blocks.{heads.block}.attn.qk", "attn.qk", heads.block, query.rows // pair, pair * heads.units, 1, heads.outer,
        writers, "", False,
    )  # fmt: skip


def values_site(heads: Site) -> Site:
    """Values of the block of `heads`, rank by rank."""
    value = heads.writers[2]
    kv_heads = heads.units // max(1, heads.group)
    writer = Writer(value.module, kv_heads, value.bias, part=value.part, parts=value.parts)
    return Site(
        f"blocks.{heads.block}.attn.vo", "attn.vo", heads.block, value.rows, heads.units, 1, heads.outer,
        (writer,), heads.reader, heads.reader_bias,
    )  # fmt: skip
