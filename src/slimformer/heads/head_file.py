"""A head as one safetensors file: sums, solution and parameters; no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slimformer.errors import DataNotFound, DataUnreadable
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import parse_own_json
from slimformer.files.seals import read_sealed, save_sealed
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.class_moments import ClassMoments, TargetMoments
from slimformer.heads.kept_rows import KeptRows
from slimformer.heads.solve import Solution

SUMS = {ClassMoments: ("counts", "sums", "grams"), TargetMoments: ("x", "gram", "y", "cross", "energy")}


def write_head(head: AnalyticHead, path: Path, *, rows: bool = False) -> None:
    """Moments and solution to one safetensors file; kept rows only if asked for, since they are data."""
    solution, moments = head.solution(), head.moments_
    tensors: dict[str, Tensor] = {name: getattr(moments, name) for name in SUMS[type(moments)]}
    tensors |= {"weight": solution.weight, "bias": solution.bias}
    header: dict[str, Any] = {
        "slimformer_head": 1, "params": {name: _plain(value) for name, value in head.get_params().items()},
        "width": head.n_features_in_,
        "flat": getattr(head, "_flat", True), "shrinkage": solution.shrinkage, "beta": solution.beta,
        "loss": solution.loss, "error": solution.error, "steps": solution.steps,
    }  # fmt: skip
    if isinstance(moments, ClassMoments):
        header |= {"labels": list(moments.labels), "apart": moments.apart}
    else:
        header |= {"rows": moments.rows}
    if rows:
        sample = head.kept_
        tensors |= {"kept.X": sample.X, "kept.weights": sample.weights, "kept.keys": torch.from_numpy(sample.keys)}
        header |= {"targets": sample.targets.tolist()}
    save_sealed(tensors, path, {"head": json.dumps(header)})


def read_head(path: Path) -> AnalyticHead:
    """What `write_head` wrote: a head that goes on learning where it stopped."""
    if not path.is_file():
        raise DataNotFound(f"there is no head {str(path)!r}")
    require_unchanged(path.parent, path.name)
    try:
        tensors, texts = read_sealed(path)
        return _head(parse_own_json(texts["head"]), tensors)
    except (OSError, LookupError, AttributeError, TypeError, ValueError) as error:
        raise DataUnreadable(f"{path} is not a head that slimformer wrote, or it is damaged") from error


def _head(header: dict[str, Any], tensors: dict[str, Tensor]) -> AnalyticHead:
    head = AnalyticHead(**{name: _mapping(value) for name, value in header["params"].items()})
    head.n_features_in_, head._flat = header["width"], header["flat"]
    moments: Any
    if "labels" in header:
        labels = tuple(header["labels"])
        moments = ClassMoments(labels, tensors["counts"], tensors["sums"], tensors["grams"], header["apart"])
    else:
        moments = TargetMoments(header["rows"], *(tensors[name] for name in SUMS[TargetMoments]))
    head._become(moments, _kept(header, tensors, head))
    numbers = (header["shrinkage"], header["beta"], header["loss"], header["error"], header.get("steps", 0))
    head._solution = Solution(tensors["weight"], tensors["bias"], *numbers)
    return head


def _plain(value: Any) -> Any:
    """Mappings as pairs: JSON would make strings of labels that are numbers."""
    return {"pairs": [list(pair) for pair in value.items()]} if isinstance(value, Mapping) else value


def _mapping(value: Any) -> Any:
    return {key: each for key, each in value["pairs"]} if isinstance(value, dict) else value


def _kept(header: dict[str, Any], tensors: dict[str, Tensor], head: AnalyticHead) -> KeptRows:
    if "kept.X" in tensors:
        targets = np.array(header["targets"])
        return KeptRows(head.keep, tensors["kept.keys"].numpy(), tensors["kept.X"], targets, tensors["kept.weights"])
    empty = torch.zeros(0, head.n_features_in_, dtype=torch.float64)
    targets = np.zeros((0,) if head.target == "classes" else (0, len(tensors["y"])))
    return KeptRows(head.keep, np.zeros(0, np.uint64), empty, targets, empty[:, 0])
