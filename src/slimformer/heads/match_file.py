"""A map between two models as a small module and as one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from slimformer.errors import DataNotFound, DataUnreadable
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import parse_own_json
from slimformer.files.seals import read_sealed, save_sealed
from slimformer.heads.match import Match, Side

KEYS = ("source.centre", "source.A", "target.centre", "target.A")


class Embedding(nn.Module):
    """One side of a map: features of its model to unit vectors of the common space, float32."""

    centre: Tensor
    A: Tensor

    def __init__(self, side: Side) -> None:
        super().__init__()
        self.kept = side.kept
        self.register_buffer("centre", side.centre.float())
        self.register_buffer("A", side.A.float())

    def forward(self, X: Tensor) -> Tensor:
        return Side(self.centre.double(), self.A.double(), self.kept).embed(X).to(X.dtype)


def modules_of(fitted: Match) -> tuple[Embedding, Embedding]:
    """Source and target as modules; likeness is the product of what they give."""
    return Embedding(fitted.source), Embedding(fitted.target)


def write_match(fitted: Match, path: Path, header: dict[str, Any] | None = None) -> None:
    """Weights in float32, and what else is to be remembered as JSON."""
    sides = (fitted.source, fitted.target)
    tensors = dict(zip(KEYS, (t.float().contiguous() for s in sides for t in (s.centre, s.A)), strict=True))
    known = {"slimformer_match": 1, "method": fitted.method, "strength": fitted.strength}
    nearest = [side.kept for side in sides]
    save_sealed(tensors, path, {"match": json.dumps({**(header or {}), **known, "kept": nearest})})


def read_match(path: Path) -> Match:
    """Read what `write_match` wrote."""
    if not path.is_file():
        raise DataNotFound(f"there is no map {str(path)!r}")
    require_unchanged(path.parent, path.name)
    try:
        tensors, texts = read_sealed(path)
        header = parse_own_json(texts["match"])
        a, A, b, B = (tensors[key].to(torch.float64) for key in KEYS)
        return Match(header["method"], header["strength"], Side(a, A, header["kept"][0]), Side(b, B, header["kept"][1]))
    except (OSError, LookupError, TypeError, ValueError) as error:
        raise DataUnreadable(f"{path} is not a map that slimformer wrote, or it is damaged") from error
