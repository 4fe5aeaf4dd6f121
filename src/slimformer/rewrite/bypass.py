"""A linear path beside neurons, in place: as a path of its own, or as ordinary neurons.

Without a gate a(t) − a(−t) = t for ReLU, GELU (both forms) and SiLU, so a path of rank r is 2 r neurons, written by A
and −A and read by B and −B, and the model stays what its stock class can say. Gated neurons are products; there the
feed-forward part gets two thin matrices (or a square one) beside it, `nn.ragged.put_bypass`, and with them the bias c
where what reads the neurons has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from slimformer.decompose.bypass import Bypass, on_path
from slimformer.linalg.moments import Moments
from slimformer.models import Site
from slimformer.models.architecture import weight_of
from slimformer.nn.ragged import put_bypass
from slimformer.rewrite import surgery


def is_linear_apart(activation: str) -> bool:
    """Is a(t) − a(−t) = t, also far out, where some activations clip? Then two neurons can carry a linear map."""
    if activation not in ACT2FN:
        return False
    a = ACT2FN[activation]
    if any(True for _ in a.parameters()):  # what is learned may be learned otherwise
        return False
    t = torch.cat([torch.linspace(-6, 6, 97, dtype=torch.float64), torch.logspace(0, 4, 33, dtype=torch.float64)])
    return bool(((a(t) - a(-t) - t).abs() < 1e-9 * t.abs().clamp_min(1)).all())


@torch.no_grad()
def put_path(model: PreTrainedModel, site: Site, fitted: Bypass) -> None:
    """Let the feed-forward part of a block keep the neurons of `fitted` and a linear path beside them."""
    reader = model.get_submodule(site.reader)
    bias = getattr(reader, "bias", None)
    b = None if bias is None else bias.detach().cpu().double() + fitted.c
    for writer in site.writers:
        surgery.keep_rows(model.get_submodule(writer.module), fitted.J)
    if not site.gated:
        _write_pairs(model.get_submodule(site.writers[0].module), fitted.A)
        surgery.write(reader, torch.cat([fitted.N, fitted.B, -fitted.B], 1), b)
        return
    surgery.write(reader, fitted.N, b)
    put_bypass(
        model.get_submodule(site.root),
        site.part.module,
        width=site.outer,
        rank=len(fitted.A),
        bias=site.path_brings_bias,
    )
    path = model.get_submodule(_path(site))
    matrices = [fitted.A, fitted.B] if len(list(path.children())) == 2 else [fitted.B @ fitted.A]
    for layer, W in zip(path.children(), matrices, strict=True):
        surgery.write(layer, W, fitted.c)  # only the last can have a bias


def _write_pairs(layer: nn.Module, A: Tensor) -> None:
    """Let `layer` write A x and −A x after what it writes."""
    bias = getattr(layer, "bias", None)
    W = torch.cat([weight_of(layer).cpu().double(), A, -A])
    b = None if bias is None else torch.cat([bias.detach().cpu().double(), W.new_zeros(2 * len(A))])
    surgery.write(layer, W, b)


def _path(site: Site) -> str:
    return f"{site.reader.rpartition('.')[0]}.bypass"


@dataclass(frozen=True)
class Reading:
    """What the reader of a site reads, as features of one linear map: [h_J; A x] where there is a path of this rank.

    Neurons that stand for a path are read in pairs, a(t) − a(−t) = t, and stay pairs when the map is changed.
    """

    site: Site
    rank: int = 0

    @property
    def bias(self) -> bool:
        """May the map have a constant?"""
        return self.site.reader_bias or (self.rank > 0 and self.site.path_brings_bias)

    @property
    def exit(self) -> str:
        """The module whose output is added to the stream."""
        beside = self.site.gated and (self.rank or self.site.beside)
        return self.site.reader.rpartition(".")[0] if beside else self.site.exit

    def heard_at(self, model: nn.Module) -> dict[str, str]:
        """The modules whose inputs are the features, part after part."""
        path = {"path": self._last(model)} if self.rank and self.site.gated else {}
        return {"features": self.site.reader, **path}

    def features(self, heard: Mapping[str, Tensor]) -> Tensor:
        """The features, from what the modules heard."""
        H = heard["features"]
        if not self.rank:
            return H
        if self.site.gated:
            return torch.cat([H, heard["path"]], -1)
        k = H.shape[-1] - 2 * self.rank
        return torch.cat([H[..., :k], H[..., k : k + self.rank] - H[..., k + self.rank :]], -1)

    def moments(self, model: nn.Module, joint: Moments, J: Tensor) -> Moments:
        """Moments of the features in the dense model, of which `joint` are those of neurons and input."""
        if not self.site.gated:
            rows = weight_of(model.get_submodule(self.site.writers[0].module))
            return on_path(joint, J, rows[len(J) : len(J) + self.rank].cpu())
        layers = list(model.get_submodule(_path(self.site)).children())
        A = weight_of(layers[0]).cpu() if len(layers) > 1 else torch.eye(self.site.outer)
        return on_path(joint, J, A)

    def nudge(self, model: nn.Module, δW: Tensor, δb: Tensor) -> None:
        """Change the map by δW and δb."""
        reader = model.get_submodule(self.site.reader)
        if not self.rank:
            return surgery.nudge(reader, δW, δb)
        k = δW.shape[1] - self.rank
        if self.site.gated:
            surgery.nudge(reader, δW[:, :k], δb)  # one of the two has a bias
            return surgery.nudge(model.get_submodule(self._last(model)), δW[:, k:], δb)
        return surgery.nudge(reader, torch.cat([δW, -δW[:, k:]], 1), δb)

    def _last(self, model: nn.Module) -> str:
        path = _path(self.site)
        return f"{path}.{len(list(model.get_submodule(path).children())) - 1}"
