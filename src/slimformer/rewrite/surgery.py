"""The only file that assigns weights. Orientation (Conv1D stores inputs × outputs) and precision are settled here."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.decompose import Selection
from slimformer.models.architecture import weight_of


def keep_rows(layer: nn.Module, rows: Tensor) -> None:
    """Let `layer` write only these of its outputs: W ← W[rows], b ← b[rows]."""
    _assign(layer, weight_of(layer)[rows.to(layer.weight.device)])  # type: ignore[arg-type]
    bias = getattr(layer, "bias", None)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach()[rows.to(bias.device)].clone(), requires_grad=bias.requires_grad)


def keep_columns(layer: nn.Module, columns: Tensor) -> None:
    """Let `layer` read only these of its inputs: W ← W[:, columns]."""
    stored = weight_of(layer)
    _assign(layer, stored[:, columns.to(stored.device)])


def keep_entries(modules: Iterable[nn.Module], rows: Tensor, size: int) -> None:
    """Of every parameter of these modules that has `size` entries only these; those that were one stay one."""
    smaller: dict[nn.Parameter, nn.Parameter] = {}
    for module in modules:
        for name, old in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if old not in smaller and len(old) == size and all(old is not new for new in smaller.values()):
                entries = old.detach()[rows.to(old.device)].clone()
                smaller[old] = nn.Parameter(entries, requires_grad=old.requires_grad)
            if old in smaller:
                setattr(module, name, smaller[old])
        for count in ("num_embeddings", "out_features"):
            if getattr(module, count, None) == size:
                setattr(module, count, len(rows))


@torch.no_grad()
def set_table(model: PreTrainedModel, E: Tensor) -> None:
    """Give the embedding of a model other rows, and the head, where it is the same table."""
    table = model.get_input_embeddings()
    assert isinstance(table.weight, nn.Parameter)
    table.weight.copy_(E.to(table.weight))


def drop_bias(layer: nn.Module) -> None:
    """Let `layer` write W x alone."""
    layer.register_parameter("bias", None)


def read(layer: nn.Module, selection: Selection) -> None:
    """Let `layer` read the smaller width: W ← W E, b ← b + W c."""
    stored = weight_of(layer)
    W = stored.cpu().double()  # solved for on the CPU, in double precision; cast once, here
    bias = getattr(layer, "bias", None)
    if bias is not None:
        shifted = bias.detach().cpu().double() + W @ selection.c
        layer.bias = nn.Parameter(shifted.to(bias), requires_grad=bias.requires_grad)
    _assign(layer, (W @ selection.E).to(stored))


def write(layer: nn.Module, W: Tensor, b: Tensor | None) -> None:
    """Let `layer` write W x + b."""
    old, bias = weight_of(layer), getattr(layer, "bias", None)
    if bias is not None and b is not None:
        layer.bias = nn.Parameter(b.to(bias), requires_grad=bias.requires_grad)
    _assign(layer, W.to(old))


def nudge(layer: nn.Module, δW: Tensor, δb: Tensor) -> None:
    """W ← W + δW and, where there is a bias, b ← b + δb."""
    stored = weight_of(layer)
    bias = getattr(layer, "bias", None)
    if bias is not None:
        moved = bias.detach().cpu().double() + δb
        layer.bias = nn.Parameter(moved.to(bias), requires_grad=bias.requires_grad)
    _assign(layer, (stored.cpu().double() + δW).to(stored))


def rescale(norm: nn.Module, gain: Tensor, bias: Tensor | None = None) -> None:
    """Give a norm another gain, and another bias where it has one."""
    old = norm.weight
    assert isinstance(old, nn.Parameter)
    norm.weight = nn.Parameter(gain.to(old), requires_grad=old.requires_grad)
    if bias is not None:
        before = norm.bias
        assert isinstance(before, nn.Parameter)
        norm.bias = nn.Parameter(bias.to(before), requires_grad=before.requires_grad)


def _assign(layer: nn.Module, W: Tensor) -> None:
    """Give `layer` the weight W (outputs × inputs), stored its own way round."""
    outputs, inputs = W.shape
    stored = W.mT if isinstance(layer, Conv1D) else W
    grad = layer.weight.requires_grad
    layer.weight = nn.Parameter(stored.contiguous().clone(), requires_grad=bool(grad))
    if isinstance(layer, Conv1D):
        layer.nx, layer.nf = inputs, outputs
    else:
        layer.in_features, layer.out_features = inputs, outputs  # type: ignore[assignment]


def set_attribute(block: nn.Module, path: str, value: int) -> None:
    """Keep an attribute that depends on sizes true, e.g. the head count OPT's attention views by."""
    *parents, name = path.split(".")
    setattr(block.get_submodule(".".join(parents)), name, value)


@torch.no_grad()
def round_weights(model: nn.Module, dtype: torch.dtype, *, but: Iterable[Tensor] = ()) -> None:
    """Round weights to the precision they are stored in: what is measured is then what is saved.

    Those that are not in memory are left alone, and so are the tensors `but`, which another model has, too.
    """
    shared = {id(tensor) for tensor in but}
    for parameter in model.parameters():
        if parameter.dtype != dtype and not parameter.is_meta and id(parameter) not in shared:
            parameter.copy_(parameter.to(dtype))
