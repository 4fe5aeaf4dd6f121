"""Lossless rewrites of neurons: constant ones and copies go, scales are evened out. The maths: `decompose.neurons`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from slimformer.decompose.neurons import canonical, constants, copies, never_fires, power_scales
from slimformer.models import Architecture, Site, family_of
from slimformer.models.architecture import own_rows, weight_of
from slimformer.rewrite import surgery
from slimformer.rewrite.apply import writer_rows
from slimformer.rewrite.exact import Change, Scope
from slimformer.rewrite.forbidden import activation_name, is_relu


@dataclass(frozen=True)
class Superfluous:
    """Neurons of a site that may go, and how the reader's weight and bias make up for those that do."""

    site: Site
    units: Tensor
    absorb: Callable[[Tensor], None]


def dead_neurons(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """Neurons nobody reads, or that always write the same; the output bias absorbs what they write."""
    sites = [site for site in architecture.neurons if site.units]
    yield from _removed(model, [_dead(model, site, scope) for site in sites], scope)


def duplicate_neurons(model: PreTrainedModel, architecture: Architecture, scope: Scope) -> Iterator[Change]:
    """Neurons that write a multiple of what another one writes; the reader adds up their columns."""
    sites = [site for site in architecture.neurons if site.units]
    yield from _removed(model, [_copied(model, site, scope) for site in sites], scope)


def scales(model: PreTrainedModel, architecture: Architecture, _scope: Scope) -> Iterator[Change]:
    """Writer rows and reader columns brought to one size by powers of two. Nothing is saved; ranges become alike."""
    for site in architecture.neurons:
        if site.units:
            yield Change(site, lambda site=site: _scale(model, site))  # type: ignore[misc]


def _dead(model: PreTrainedModel, site: Site, scope: Scope) -> Superfluous:
    reader: Any = model.get_submodule(site.reader)
    rows, W = _rows(model, site), weight_of(reader).cpu()
    values = constants(rows, ACT2FN[activation_name(model)], never=_never(model, site, rows[0]))
    values = values.where(W.any(0), 0.0)
    absorbs = site.reader_bias and not scope.half
    gone = ~values.isnan() if absorbs else values == 0

    def absorb(units: Tensor) -> None:
        if absorbs and bool(values[units].any()):
            moved = W[:, units].double() @ values[units]
            surgery.write(reader, weight_of(reader), reader.bias.detach().cpu().double() + moved)

    return Superfluous(site, gone.nonzero()[:, 0], absorb)


def _never(model: PreTrainedModel, site: Site, rows: Tensor) -> Tensor | None:
    """ReLUs no input makes fire, where a norm stands in front; None where nothing can be said."""
    if not is_relu(model) or not site.norm or any(stack.gains_from_one for stack in family_of(model.config).stacks):
        return None
    norm: Any = model.get_submodule(site.norm)
    gain, shift = (getattr(norm, name, None) for name in ("weight", "bias"))
    return never_fires(
        rows,
        torch.ones(rows.shape[1] - 1) if gain is None else gain.detach().cpu(),
        None if shift is None else shift.detach().cpu(),
        centred=isinstance(norm, nn.LayerNorm),
    )


def _copied(model: PreTrainedModel, site: Site, scope: Scope) -> Superfluous:
    reader = model.get_submodule(site.reader)
    keys, scale = canonical(_rows(model, site), homogeneous=is_relu(model))
    same = copies(keys, rtol=scope.rtol)
    gone = (same != torch.arange(len(same))).nonzero()[:, 0]

    def absorb(units: Tensor) -> None:
        W = weight_of(reader).cpu().double().clone()
        W.index_add_(1, same[units], W[:, units] * (scale[units] / scale[same[units]]))
        surgery.write(reader, W, None)

    return Superfluous(site, gone, absorb)


def _removed(model: PreTrainedModel, superfluous: list[Superfluous], scope: Scope) -> Iterator[Change]:
    """As many neurons as the format and the multiple allow: at least one stays, in a plain model as many in each block,
    and of all experts of a block as many."""
    keep: dict[str, int] = {}
    for each in superfluous:
        alike = "" if scope.format == "plain" else each.site.alike
        least = _multiple(each.site.units, len(each.units), scope.multiple_of)
        keep[alike] = max(least, keep.get(alike, 0))
    for each in superfluous:
        units = keep["" if scope.format == "plain" else each.site.alike]
        count = each.site.units - units
        if count > 0:
            gone = each.units[-count:]
            yield Change(replace(each.site, units=units), lambda each=each, gone=gone: _remove(model, each, gone))  # type: ignore[misc]


def _multiple(units: int, gone: int, of: int) -> int:
    return min(units, -(-max(1, units - gone) // of) * of)


def _remove(model: PreTrainedModel, superfluous: Superfluous, gone: Tensor) -> None:
    superfluous.absorb(gone)
    stay = torch.ones(superfluous.site.units, dtype=torch.bool)
    stay[gone] = False
    rows = stay.nonzero()[:, 0]
    for name in dict.fromkeys(writer.module for writer in superfluous.site.writers):
        surgery.keep_rows(model.get_submodule(name), writer_rows(superfluous.site, name, rows.tolist()))
    surgery.keep_columns(model.get_submodule(superfluous.site.reader), rows)


def _scale(model: PreTrainedModel, site: Site) -> None:
    writer: Any = model.get_submodule(site.writers[-1].module)
    reader = model.get_submodule(site.reader)
    rows, W = _rows(model, site)[-1], weight_of(reader).cpu().double()
    c = power_scales(rows.norm(dim=1), W.norm(dim=0))
    scaled, mine = rows * c[:, None], own_rows(site, site.writers[-1]).flatten()
    weight, bias = weight_of(writer).cpu().double().clone(), getattr(writer, "bias", None)
    b = None if bias is None else bias.detach().cpu().double().clone()
    weight[mine] = scaled[:, :-1]
    if b is not None:
        b[mine] = scaled[:, -1]
    surgery.write(writer, weight, b)
    surgery.write(reader, W / c, None)


def _rows(model: PreTrainedModel, site: Site) -> list[Tensor]:
    """Rows of every writer with the bias as last column, the gate first."""
    out = []
    for writer in site.writers:
        layer: Any = model.get_submodule(writer.module)
        mine = own_rows(site, writer).flatten() if writer.parts > 1 else slice(None)
        W = weight_of(layer)[mine].cpu().double()
        b = layer.bias.detach()[mine].cpu().double() if writer.bias else W.new_zeros(len(W))
        out.append(torch.cat([W, b[:, None]], 1))
    return out
