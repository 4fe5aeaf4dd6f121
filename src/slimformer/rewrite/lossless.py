"""All rewrites that change no output, in the order they are done, and what each of them saves.

    b_v into b_o, b_k out, heads and ranks that are not there out, copies of neurons merged, constant neurons out.

Each is exact for every input, not only on data. Docs: docs/methods/lossless.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.models import Architecture, describe
from slimformer.plan.cost import block_cost, kv_cache_bytes
from slimformer.rewrite import exact_attention as attention
from slimformer.rewrite import exact_neurons as neurons
from slimformer.rewrite import forbidden
from slimformer.rewrite.exact import Rewrite, Scope
from slimformer.rewrite.sizes import keep_attributes_true, sayable, state_sizes

REWRITES: dict[str, Rewrite] = {
    "value-bias": Rewrite("b_v folded into b_o", forbidden.no_value_bias, attention.value_biases),
    "key-bias": Rewrite("b_k dropped", forbidden.no_key_bias, attention.key_biases),
    "silent-heads": Rewrite("heads with W_o W_v = 0 removed", forbidden.only_ragged, attention.silent),
    "value-ranks": Rewrite("values cut to the rank of W_o W_v", forbidden.no_value_ranks, attention.value_ranks),
    "score-ranks": Rewrite(
        "queries and keys cut to the rank of their form; rotary planes that are zero removed",
        forbidden.no_score_ranks, attention.score_ranks,
    ),
    "duplicate-neurons": Rewrite("copies of neurons merged", forbidden.no_sums, neurons.duplicate_neurons),
    "dead-neurons": Rewrite("neurons that are constant or not read removed", forbidden.never, neurons.dead_neurons),
    "scales": Rewrite(
        "rows and columns of neurons brought to one size", forbidden.not_homogeneous, neurons.scales,
        note="saves nothing, evens out ranges; not in the recipe",
    ),
    "interpolation": Rewrite(
        "d columns of every W_k and W_v made the identity", forbidden.no_sums, attention.interpolations,
        note="saves nothing in a dense matrix, only in a module that gathers inputs; not in the recipe",
    ),
    "centred-keys": Rewrite(
        "b_k = -W_k mean", forbidden.no_centring, lambda *_: iter(()),
        note="saves nothing, needs data, and is the freedom that drops b_k; not in the recipe",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Saving:
    """What one rewrite saves: MACs per token, bytes of the KV cache of one sequence. `why` says why not, or a note."""

    rewrite: str
    says: str
    possible: bool
    why: str
    sites: int = 0
    params: int = 0
    macs: int = 0
    kv_cache_bytes: int = 0
    implicit: int = 0  # numbers that became 0 or 1, stored all the same

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def rewritten(
    model: PreTrainedModel,
    names: Sequence[str],
    scope: Scope,
    *,
    seq_len: int,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> tuple[PreTrainedModel, list[Saving]]:
    """A copy of `model` that gives the same outputs, smaller where it can be, and what each rewrite saved.

    A result the stock config can describe is plain, whatever the format asked for. Cost: one pivoted QR of every head
    and one sort of every block's neurons; no forward pass.
    """
    small, savings = deepcopy(model), []
    todo = [name for name in REWRITES if name in names]
    for done, name in enumerate(todo):
        before = describe(small)
        reason = REWRITES[name].forbidden(small, before, scope)
        sites = implicit = 0
        if not reason:
            for change in REWRITES[name].find(small, before, scope):
                change.carry_out()
                sites, implicit = sites + 1, implicit + change.implicit
            keep_attributes_true(small)
        saving = _saving(name, reason, (before, describe(small)), scope, seq_len)
        savings.append(replace(saving, sites=sites, implicit=implicit))
        progress(done + 1, len(todo))
    state_sizes(small, "plain" if scope.format == "plain" or sayable(small) else "ragged")
    return small, savings


@torch.no_grad()
def offers(
    model: PreTrainedModel, architecture: Architecture, scope: Scope, *, seq_len: int, names: Sequence[str] = ()
) -> list[Saving]:
    """What each rewrite (or those named) would save on its own, or why it is not to be had. Nothing is changed."""
    out = []
    for name in names or REWRITES:
        rewrite = REWRITES[name]
        reason = rewrite.forbidden(model, architecture, scope)
        sites, implicit = {}, 0
        for change in () if reason else rewrite.find(model, architecture, scope):
            sites[change.after.name] = change.after
            implicit += change.implicit
        after = architecture.with_sites(sites)
        saving = _saving(name, reason, (architecture, after), scope, seq_len)
        out.append(replace(saving, sites=len(sites), implicit=implicit))
    return out


def _saving(name: str, reason: str, both: tuple[Architecture, Architecture], scope: Scope, seq_len: int) -> Saving:
    """What lies between two architectures, before a rewrite and after it."""
    old, new = (block_cost(each, seq_len) for each in both)
    before, after = (kv_cache_bytes(each, seq_len, scope.dtype.itemsize) for each in both)
    rewrite = REWRITES[name]
    return Saving(
        name, rewrite.says, not reason, reason or rewrite.note, params=old.params - new.params,
        macs=old.macs - new.macs, kv_cache_bytes=before - after,
    )  # fmt: skip
