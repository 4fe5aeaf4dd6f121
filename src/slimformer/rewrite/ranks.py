"""Attention cut by rank: within a head, coordinates of queries and keys on one side and of values on the other.

Heads and their number stay. `install` lets one block have ranks; `cut_ranks` also selects the coordinates. What the
coordinates should be is decided elsewhere (`decompose`): a head may be turned into a basis in which the first
coordinates are the best ones, because any invertible map may move from values to the output projection, and, without
rotary positions, from queries to keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.decompose import Selection
from slimformer.decompose.bilinear import ScoreRanks, on_heads
from slimformer.decompose.low_rank import Ranks
from slimformer.errors import PlanDoesNotFit
from slimformer.models import Site
from slimformer.models.architecture import HEADS, Writer, own_rows, weight_of
from slimformer.models.description import dense_head_dim
from slimformer.nn.ragged import Planes, put_ranks
from slimformer.rewrite import surgery


def install(model: PreTrainedModel, site: Site, *, qk: int, vo: int, planes: Planes | None = None) -> None:
    """Put attention of ranks `qk` and `vo` in the place of the one with the heads `site`; no weight is touched.

    Until the projections have that many outputs a head (and the output projection as many inputs) the block cannot run.
    With full ranks it does what it did. `planes` are the rotary planes kept; without them there are all.
    """
    block = model.get_submodule(site.root)
    table = site.attention.table(dense_head_dim(site.attention, block))
    try:
        put_ranks(block, table, {"qk": qk, "vo": vo, "planes": planes}, **site.sizes)
    except ValueError as error:
        raise PlanDoesNotFit(f"{site.name}: {error}") from error


def stand_in(model: PreTrainedModel, site: Site) -> None:
    """Before heads of an attention are cut that would ask the config for their number: put ours in its place."""
    if site.kind == HEADS and site.attention.stand_in and not hasattr(model.get_submodule(site.module), "ranks"):
        install(model, site, qk=site.unit, vo=site.unit)


@torch.no_grad()
def cut_ranks(
    model: PreTrainedModel,
    site: Site,
    *,
    rows_qk: Tensor | None = None,
    rows_v: Tensor | None = None,
    reader: Selection | None = None,
) -> None:
    """Keep these coordinates of every head of a site, in place: queries and keys `rows_qk`, values `rows_v`.

    Rows are numbered within a head as it is now: one list for all heads, or one for every key/value head (2-D). With
    rotary positions they are whole planes, f before f + d/2. None keeps all. Without values no score is needed, so an
    empty `rows_v` empties queries and keys, too. `reader` refits the output projection to the values kept; without it
    the columns of the others are dropped. Cost: that of copying the weights.
    """
    query, _, value = site.writers
    K = site.kv_heads
    kept_v = _per_head(rows_v, K, value.rows)
    kept_qk = _per_head(rows_qk if kept_v.shape[1] else torch.empty(0, dtype=torch.long), K, query.rows)
    planes = _planes(model, site, kept_qk, query.rows)
    install(model, site, qk=kept_qk.shape[1], vo=kept_v.shape[1], planes=planes)
    kept = (kept_qk.repeat_interleave(site.group, 0), kept_qk, kept_v)
    for name in dict.fromkeys(writer.module for writer in site.writers):
        surgery.keep_rows(model.get_submodule(name), _rows(site, name, kept))
    if rows_v is not None or reader is not None:
        columns = _numbered(kept_v.repeat_interleave(site.group, 0), site.unit)
        surgery.read(model.get_submodule(site.reader), reader or _dropping(columns, site.width))


def rotary_rows(planes: Sequence[int], width: int) -> Tensor:
    """The coordinates of rotary planes in a head of that width: all f, then all f + width/2."""
    first = torch.tensor(list(planes), dtype=torch.long)
    return torch.cat([first, first + width // 2])


def _per_head(rows: Tensor | None, heads: int, width: int) -> Tensor:
    """Rows of each of `heads` heads."""
    rows = torch.arange(width) if rows is None else rows.cpu().long()
    if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < width:
        raise PlanDoesNotFit(f"rows {rows.tolist()} are not all in a head of width {width}")
    if rows.ndim == 2 and len(rows) != heads:
        raise PlanDoesNotFit(f"there are rows for {len(rows)} key/value heads, and {heads} of these")
    return rows.expand(heads, -1) if rows.ndim == 1 else rows


def _planes(model: PreTrainedModel, site: Site, kept: Tensor, width: int) -> list[int] | list[list[int]] | None:
    """Rotary planes of the model's own numbering that the kept rows (heads × qk) stand for."""
    if not site.attention.rotary or not kept.shape[1]:
        return None
    first, second = kept[:, : kept.shape[1] // 2], kept[:, kept.shape[1] // 2 :]
    if not torch.equal(second, first + width // 2):
        raise PlanDoesNotFit(
            f"{site.name}: rotary positions turn coordinates in pairs (f, f + {width // 2}); "
            f"rows {kept[0].tolist()} are not whole pairs with all f first"
        )
    known = getattr(model.get_submodule(site.module), "planes", None)
    old = torch.arange(width // 2) if known is None else torch.tensor(known)
    frequencies = old.expand(len(kept), -1).gather(1, first)
    same = bool((frequencies == frequencies[:1]).all())
    return frequencies[0].tolist() if same else frequencies.tolist()


def _rows(site: Site, module: str, rows: Sequence[Tensor]) -> Tensor:
    """Rows of a matrix that holds one or all three of queries, keys and values, part after part."""
    pairs = [pair for pair in zip(site.writers, rows, strict=True) if pair[0].module == module]
    return torch.cat([own_rows(site, writer).gather(1, each).flatten() for writer, each in pairs])


def _numbered(planes: Tensor, width: int) -> Tensor:
    """Rows within heads (heads × k) as rows of the whole matrix."""
    return (torch.arange(len(planes))[:, None] * width + planes).flatten()


def _dropping(columns: Tensor, width: int) -> Selection:
    E = torch.eye(width, dtype=torch.float64)[:, columns]
    return Selection(columns, E, torch.zeros(width, dtype=torch.float64))


@torch.no_grad()
def reduce_ranks(model: PreTrainedModel, site: Site, *, scores: ScoreRanks | None, values: Ranks | None) -> None:
    """Give an attention the queries, keys and values of these reductions, in place; None leaves a side as it is.

    W_q ← N W_q, W_k ← M W_k, W_v ← S W_v head by head, biases alike, and the output projection reads the values kept.
    """
    query, _, value = site.writers
    maps = (scores.N, scores.M, values.S if values else None) if scores else (None, None, values.S if values else None)
    new = [mapped(model.get_submodule(w.module), w, site, S) for w, S in zip(site.writers, maps, strict=True)]
    qk = query.rows if scores is None else scores.M.shape[1]
    vo = value.rows if values is None else values.S.shape[1]
    kept = scores.planes.tolist() if scores is not None and scores.planes is not None else None
    shared = kept is not None and all(planes == kept[0] for planes in kept)
    install(model, site, qk=qk, vo=vo, planes=kept[0] if kept is not None and shared else kept)
    for name in dict.fromkeys(writer.module for writer in site.writers):
        parts = [part for writer, part in zip(site.writers, new, strict=True) if writer.module == name]
        biases = [b for _, b in parts if b is not None]
        surgery.write(
            model.get_submodule(name), torch.cat([W for W, _ in parts]), torch.cat(biases) if biases else None
        )
    if values is not None:
        surgery.read(model.get_submodule(site.reader), Selection(torch.arange(values.E.shape[1]), values.E, values.c))


def mapped(layer: nn.Module, writer: Writer, site: Site, S: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of one of queries, keys and values, `S` applied to every head."""
    part = own_rows(site, writer).flatten() if writer.parts > 1 else slice(None)
    W, bias = weight_of(layer)[part].cpu().double(), getattr(layer, "bias", None)
    b = None if bias is None else bias.detach()[part].cpu().double()
    if S is None:
        return W, b
    return on_heads(S, W), None if b is None else on_heads(S, b)
