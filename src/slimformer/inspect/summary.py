"""What a model is made of, before anything is cut."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from slimformer.inspect.parameters import parameter_formula
from slimformer.models import Architecture
from slimformer.models.load import Loaded
from slimformer.models.norms import mlp_norms
from slimformer.plan.cost import block_cost, full_size, kv_cache_bytes, outside_macs, site_cost
from slimformer.plan.profile import Legal, Prices, least_cost
from slimformer.rewrite.exact import Scope
from slimformer.rewrite.lossless import offers


def inspection(loaded: Loaded, architecture: Architecture, seq_len: int) -> dict[str, Any]:
    """Family, sizes and exact costs, whole and by part, and how low each format can go. Nothing is run."""
    total = block_cost(architecture, seq_len).macs
    parts = {
        kind: sum(site_cost(s, full_size(s), seq_len).macs for s in architecture if s.kind == kind)
        for kind in ("attn.heads", "ffn.hidden")
    }
    lossless = offers(
        loaded.model,
        architecture,
        Scope(dtype=loaded.dtype, multiple_of=8),
        seq_len=seq_len,
    )
    weights_only = sum(site_cost(s, full_size(s), 0).macs for s in architecture.heads)
    params = sum(parameter.numel() for parameter in loaded.model.parameters())
    inside = sum(
        p.numel() for stack in architecture.stacks for p in loaded.model.get_submodule(stack.path).parameters()
    )
    return {
        "model": loaded.name,
        "class": type(loaded.model).__name__,
        "model_type": architecture.model_type,
        "family": architecture.family.name,
        "blocks": architecture.n_blocks,
        "hidden": architecture.hidden,
        "seq_len": seq_len,
        "params": {"total": params, "blocks": inside, "outside": params - inside},
        "parameters": parameter_formula(loaded.model, architecture).to_json(),
        "macs_per_token": {
            "blocks": total, "outside": outside_macs(loaded.model, architecture, seq_len), **parts,
            "attn.projections": weights_only, "attn.scores": parts["attn.heads"] - weights_only,
        },
        "kv_cache_bytes": kv_cache_bytes(architecture, seq_len, loaded.dtype.itemsize),
        "least_macs": {name: _least(architecture, seq_len, plain=name == "plain") for name in ("ragged", "plain")},
        "lossless": [each.to_json() for each in lossless],
        "replaceable_mlp": _replaceable(architecture),
        "scale_free_mlp": _scale_free(loaded, architecture),
        "sites": [
            {
                "site": site.name, "units": site.units, "unit": site.unit, "kv_heads": site.units // max(1, site.group),
                **({"fixed": site.stays} if site.stays else {}),
                **asdict(site_cost(site, full_size(site), seq_len)),
            }
            for site in architecture
        ],
    }  # fmt: skip


def _scale_free(loaded: Loaded, architecture: Architecture) -> dict[str, Any]:
    """May a feed-forward part be replaced by a map that is right up to scale? If not, why."""
    norms = mlp_norms(loaded.model, architecture, 0)
    offered = norms.after is not None and _replaceable(architecture)
    return {"offered": offered, "reason": norms.reason or (None if offered else "nothing can stand for these parts")}


def _replaceable(architecture: Architecture) -> bool:
    """Can the step `replace` put something in the place of feed-forward parts?"""
    sites = architecture.neurons
    alone = len(architecture.stacks) == 1 and len(sites) == architecture.n_blocks
    return alone and all(site.feed_forward.mlp for site in sites)


def _least(architecture: Architecture, seq_len: int, *, plain: bool) -> float | None:
    """The smallest --macs, rounded up so that asking for it works; none for plain sizes where blocks differ already."""
    if plain and not architecture.blocks_alike:
        return None
    least = least_cost(architecture, Prices(seq_len), Legal(plain=plain))
    return math.ceil(1000 * least / block_cost(architecture, seq_len).macs) / 1000
