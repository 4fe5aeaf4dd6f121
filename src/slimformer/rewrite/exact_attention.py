"""Lossless rewrites of attention: biases, heads that write nothing, ranks that are not there. The maths: `gauges`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.decompose.bilinear import on_heads
from slimformer.decompose.gauges import (
    folded_bias,
    interpolated,
    reads_interpolated,
    shortest,
    silent_heads,
)
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import own_rows, weight_of
from slimformer.rewrite import surgery
from slimformer.rewrite.apply import keep_planes, writer_rows
from slimformer.rewrite.exact import Change, Scope
from slimformer.rewrite.forbidden import attentions, scores_are_bound
from slimformer.rewrite.ranks import cut_ranks, install, mapped, rotary_rows, stand_in

Part = tuple[Tensor, Tensor | None]  # weight and bias of queries, keys or values, in double precision


def value_biases(model: PreTrainedModel, architecture: Architecture, _scope: Scope) -> Iterator[Change]:
    """b_o ← b_o + W_o b_v, and values without a bias."""
    for site in attentions(architecture):
        if site.units and site.writers[2].bias and site.reader_bias:
            yield Change(_unbiased(site, 2), lambda site=site: _fold(model, site))  # type: ignore[misc]


def key_biases(model: PreTrainedModel, architecture: Architecture, _scope: Scope) -> Iterator[Change]:
    """Keys without a bias: it adds the same to all scores of a query."""
    for site in attentions(architecture):
        if site.units and site.writers[1].bias:
            key = model.get_submodule(site.writers[1].module)
            yield Change(_unbiased(site, 1), lambda key=key: surgery.drop_bias(key))  # type: ignore[misc]


def silent(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """Heads with W_o W_v = 0. Of grouped queries whole groups go, or as many heads of every group; one head stays."""
    for site in attentions(architecture):
        if not site.units or not site.writers[2].rows:
            continue
        null = silent_heads(_output(model, site), _augmented(model, site, 2), rtol=scope.rtol)
        heads_left = _equal_groups(null.reshape(-1, site.group))
        if 0 < len(heads_left) < site.units:
            group = len(heads_left) // len({unit // site.group for unit in heads_left})
            query, key, value = site.writers
            writers = (query, replace(key, shared=group), replace(value, shared=group))
            after = replace(site, units=len(heads_left), group=group, writers=writers)
            yield Change(after, lambda site=site, heads_left=heads_left: _keep_heads(model, site, heads_left))  # type: ignore[misc]


def value_ranks(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """Values of the rank W_o W_v has, the highest among the heads of a block; none where no head writes anything."""
    for site in attentions(architecture, ranks=True):
        if not site.units or not site.writers[2].rows:
            continue
        R, W = shortest(_output(model, site), _augmented(model, site, 2), rtol=scope.rtol)
        if W.shape[1] < site.writers[2].rows:
            yield Change(
                _ranked(site, vo=W.shape[1]),
                lambda site=site, R=R, W=W: _write_values(model, site, R, W),  # type: ignore[misc]
            )


def score_ranks(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """Queries and keys of the rank their form has; with rotary positions planes that are zero in all heads go."""
    for site in attentions(architecture, ranks=True):
        old = site.writers[0].rows if site.units else 0
        if old and site.attention.rotary:
            rows = _live_planes(_augmented(model, site, 0), _augmented(model, site, 1))
            if rows.shape[1] < old:
                yield Change(
                    _ranked(site, qk=rows.shape[1]),
                    lambda site=site, rows=rows: cut_ranks(model, describe(model)[site.name], rows_qk=rows),  # type: ignore[misc]
                )
        elif old and not scope.half:
            Q, K = shortest(_augmented(model, site, 0), _augmented(model, site, 1), rtol=scope.rtol)
            if K.shape[1] < old:
                yield Change(
                    _ranked(site, qk=K.shape[1]),
                    lambda site=site, Q=Q, K=K: _write_scores(model, site, Q, K),  # type: ignore[misc]
                )


def interpolations(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """W_v = B T with columns of the identity in T, and W_k alike where scores are free: d² numbers for each head."""
    free = not scores_are_bound(model, architecture)
    for site in attentions(architecture):
        if not site.units or not site.writers[2].rows:
            continue
        roles = (1, 2) if free and site.writers[1].rows else (2,)
        implicit = sum(
            form.saved
            for role in roles
            if (form := interpolated(mapped_part(model, site, role)[0], heads=site.units // site.group)).B.shape[1]
            == form.B.shape[2]
        )
        yield Change(site, lambda site=site, roles=roles: _interpolate(model, site, 1 in roles), implicit)  # type: ignore[misc]


def _unbiased(site: Site, role: int) -> Site:
    return replace(site, writers=tuple(replace(w, bias=False) if i == role else w for i, w in enumerate(site.writers)))


def _ranked(site: Site, *, qk: int | None = None, vo: int | None = None) -> Site:
    """The site with other ranks; without values there are no heads."""
    query, key, value = site.writers
    if vo == 0:
        return replace(site, units=0)
    if vo is not None:
        return replace(site, unit=vo, writers=(query, key, replace(value, rows=vo)))
    assert qk is not None
    return replace(site, writers=(replace(query, rows=qk), replace(key, rows=qk), value))


def mapped_part(model: PreTrainedModel, site: Site, role: int) -> Part:
    """Weight and bias of queries (0), keys (1) or values (2)."""
    writer = site.writers[role]
    return mapped(model.get_submodule(writer.module), writer, site, None)


def _augmented(model: PreTrainedModel, site: Site, role: int) -> Tensor:
    """heads × width × (D + 1): weights, and the bias as last column."""
    W, b = mapped_part(model, site, role)
    full = torch.cat([W, (W.new_zeros(len(W)) if b is None else b)[:, None]], 1)
    return full.reshape(-1, site.writers[role].rows, full.shape[1])


def _output(model: PreTrainedModel, site: Site) -> Tensor:
    """heads × width × D: what every head's values are multiplied with, transposed."""
    W = weight_of(model.get_submodule(site.reader)).cpu().double()
    return W.mT.reshape(site.units, -1, len(W))


def _fold(model: PreTrainedModel, site: Site) -> None:
    reader: Any = model.get_submodule(site.reader)
    value: Any = model.get_submodule(site.writers[2].module)
    W_o = weight_of(reader).cpu()
    moved = folded_bias(W_o, reader.bias.detach().cpu(), value.bias.detach().cpu(), heads=site.units)
    surgery.write(reader, W_o, moved)
    surgery.drop_bias(value)


def _equal_groups(null: Tensor) -> list[int]:
    """Heads that stay (null: groups × heads of a group), so that all groups that stay have equally many."""
    groups, size = null.shape
    alive = [g for g in range(groups) if not bool(null[g].all())]
    spare = min((int(null[g].sum()) for g in alive), default=0)
    kept = []
    for g in alive:
        gone = set(null[g].nonzero()[:spare, 0].tolist())
        kept += [g * size + j for j in range(size) if j not in gone]
    return kept


def _keep_heads(model: PreTrainedModel, site: Site, heads_left: list[int]) -> None:
    stand_in(model, site)
    for name in dict.fromkeys(writer.module for writer in site.writers):
        surgery.keep_rows(model.get_submodule(name), writer_rows(site, name, heads_left))
    columns = torch.tensor(heads_left)[:, None] * site.unit + torch.arange(site.unit)
    surgery.keep_columns(model.get_submodule(site.reader), columns.flatten())
    keep_planes(model, site, heads_left)


def _live_planes(Q: Tensor, K: Tensor) -> Tensor:
    """Rows (kv heads × 2 planes) of rotary planes in which both a key and some query of its group are not zero.

    All key heads keep as many as the one with most; the others keep some of their zeros.
    """
    kv, width = len(K), K.shape[1]

    def planes(X: Tensor) -> Tensor:
        return X.any(2).reshape(len(X), 2, width // 2).any(1)

    live = planes(K) & planes(Q).reshape(kv, -1, width // 2).any(1)
    order = live.long().argsort(dim=1, descending=True, stable=True)[:, : int(live.sum(1).max())]
    return torch.stack([rotary_rows(each.sort().values.tolist(), width) for each in order])


def _write_values(model: PreTrainedModel, site: Site, R: Tensor, W: Tensor) -> None:
    reader: Any = model.get_submodule(site.reader)
    if not W.shape[1]:
        cut_ranks(model, describe(model)[site.name], rows_v=torch.empty(0, dtype=torch.long))
        return
    parts = [mapped_part(model, site, 0), mapped_part(model, site, 1), _split(W)]
    _install(model, site, qk=site.writers[0].rows, vo=W.shape[1])
    _write(model, site, parts)
    surgery.write(reader, R.flatten(0, 1).mT, None)


def _write_scores(model: PreTrainedModel, site: Site, Q: Tensor, K: Tensor) -> None:
    parts = [_split(Q), _split(K), mapped_part(model, site, 2)]
    _install(model, site, qk=K.shape[1], vo=site.writers[2].rows)
    _write(model, site, parts)


def _split(augmented: Tensor) -> Part:
    rows = augmented.flatten(0, 1)
    return rows[:, :-1], rows[:, -1]


def _install(model: PreTrainedModel, site: Site, *, qk: int, vo: int) -> None:
    install(model, site, qk=qk, vo=vo, planes=getattr(model.get_submodule(site.module), "planes", None))


def _write(model: PreTrainedModel, site: Site, parts: list[Part]) -> None:
    """Queries, keys and values of a block, in one matrix or three."""
    for name in dict.fromkeys(writer.module for writer in site.writers):
        mine = [part for writer, part in zip(site.writers, parts, strict=True) if writer.module == name]
        biases = [b for _, b in mine if b is not None]
        weight = torch.cat([W for W, _ in mine])
        bias = torch.cat(biases) if biases else None
        if site.attention.by_head:  # such a matrix keeps its sizes, so all have a bias or none has
            order = torch.cat([own_rows(site, writer).flatten() for writer in site.writers]).argsort()
            weight, bias = weight[order], None if bias is None else bias[order]
        surgery.write(model.get_submodule(name), weight, bias)


def _interpolate(model: PreTrainedModel, site: Site, with_keys: bool) -> None:
    reader = model.get_submodule(site.reader)
    kv = site.units // site.group
    parts = [mapped_part(model, site, role) for role in range(3)]
    W_v, b_v = parts[2]
    form = interpolated(W_v, heads=kv)
    shift = None if b_v is None else _solved(form.B, b_v)
    if form.B.shape[1] == form.B.shape[2] and (b_v is None or shift is not None):
        parts[2] = (form.T.flatten(0, 1), shift)
        surgery.write(reader, reads_interpolated(weight_of(reader).cpu(), form.B), None)
    keys = interpolated(parts[1][0], heads=kv) if with_keys else None
    if keys is not None and keys.B.shape[1] == keys.B.shape[2]:
        (W_q, b_q), (_, b_k) = parts[:2]
        each = keys.B.mT.repeat_interleave(site.group, 0)
        parts[0] = (on_heads(each, W_q), None if b_q is None else on_heads(each, b_q))
        parts[1] = (keys.T.flatten(0, 1), None if b_k is None else torch.zeros_like(b_k))
    _write(model, site, parts)


def _solved(B: Tensor, b: Tensor) -> Tensor | None:
    """B⁻¹ b head by head; None where some B has no inverse and b needs it."""
    blocks = b.reshape(len(B), -1, 1)
    x = torch.linalg.pinv(B) @ blocks
    return x.flatten() if torch.allclose(B @ x, blocks, rtol=0, atol=1e-12) else None
