"""Match two models on inputs both have read: read features or make them, fit on some pairs, retrieve on others.

This is the command `slimformer match`. A fifth of the pairs is set aside by the seed and decides nothing; strengths and
the best method are chosen on a fifth of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from slimformer.calibrate.documents import Document
from slimformer.calibrate.tables import choose_columns, open_table
from slimformer.calibrate.tasks import read_data
from slimformer.errors import ColumnNotFound, DataNotFound, DataUnreadable, TooFewTokens
from slimformer.evaluate.intervals import share_interval
from slimformer.files.reading import DATA, require_regular
from slimformer.heads.features import feature_chunks, readings_of
from slimformer.heads.match import METHODS, SET_ASIDE, Match, match, ranks, without_hubs
from slimformer.messages.progress import Progress, silent
from slimformer.models import family_of
from slimformer.models.load import Loaded

AT = (1, 5, 10)
IMAGE_COLUMNS = ("image", "file_name", "path")
TEXT_COLUMNS = ("caption", "text", "sentence", "name")
LEAST = 10


@dataclass(frozen=True)
class Matched:
    """The best map, and what every method reached on pairs that were set aside."""

    best: Match
    report: dict[str, Any]


def read_features(path: str | Path) -> Tensor:
    """Rows × features from .npy, or from the only matrix of a safetensors file."""
    file = Path(path)
    if not file.is_file():
        raise DataNotFound(f"there is no file {str(path)!r} with features")
    try:
        require_regular(file, DATA)
        if file.suffix.lower() == ".npy":
            features = torch.from_numpy(np.load(file, allow_pickle=False).astype(np.float64))
        else:
            matrices = {name: tensor for name, tensor in load_file(file).items() if tensor.ndim == 2}
            if len(matrices) != 1:
                raise DataUnreadable(f"{path} holds {len(matrices)} matrices; give a file with one")
            features = next(iter(matrices.values())).double()
    except (OSError, EOFError, SafetensorError, ValueError, TypeError) as error:
        raise DataUnreadable(f"{path} cannot be read as features: {error}") from error
    if features.ndim != 2:
        raise DataUnreadable(f"{path} has the shape {tuple(features.shape)}; features are rows × numbers")
    return features


def model_features(
    loaded: Loaded, data: str, *, pool: str | None = None, seq_len: int = 64, samples: int | None = None,
    progress: Progress = silent,
) -> Tensor:  # fmt: skip
    """Features a model gives to the images or texts of `data`, one row for each, in order."""
    family = family_of(loaded.model.config)
    documents = documents_of(data, image=family.image, samples=samples)
    reading = readings_of(loaded.model, (pool or ("cls" if family.image else "mean"),))[0]
    parts = []
    for chunk in feature_chunks(loaded.model, loaded.processor, documents, [reading], seq_len=seq_len):
        parts.append(chunk.features[reading])
        progress(f"{Path(loaded.name).name}"[:16], sum(map(len, parts)), len(documents))
    return torch.cat(parts).double()


def documents_of(data: str, *, image: bool, samples: int | None = None) -> list[Document]:
    """What one model reads of the pairs: the image column of a table (paths relative to it) or its text column."""
    table = open_table(Path(data), None) if Path(data).is_file() else None
    if table is None:
        if image:
            raise DataUnreadable(f"{data} has no column with images; give a jsonl, tsv or csv with image and caption")
        return list(read_data(data, limit=samples))
    names = IMAGE_COLUMNS if image else TEXT_COLUMNS
    column = next((name for name in names if name in table.columns), None)
    if column is None:
        if image:
            raise ColumnNotFound(f"{data} has none of the columns {', '.join(names)}")
        column = choose_columns(table, None)[0]
    values = [str(row.get(column, "")) for row in table.rows([column])][:samples]
    return [Document(str(Path(data).parent / value) if image else value) for value in values]


def fit_and_retrieve(
    X: Tensor, Y: Tensor, methods: Sequence[str] = (), *, seed: int = 0, progress: Progress = silent
) -> Matched:
    """Every method on four fifths of the pairs, retrieval both ways on the rest."""
    if len(X) != len(Y):
        raise DataUnreadable(
            f"there are {len(X)} sources and {len(Y)} targets; rows are pairs, so they must be as many"
        )
    if len(X) < LEAST:
        raise TooFewTokens(f"{len(X)} pairs are too few to fit on some and to measure on others; give {LEAST} or more")
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed + 1))
    test, fit = order.tensor_split([max(2, int(SET_ASIDE * len(X)))])
    maps, rows, judged = {}, [], {}
    methods = methods or tuple(METHODS)
    for i, method in enumerate(methods):
        progress("match", i, len(methods))
        maps[method] = match(X[fit], Y[fit], method, seed=seed)
        judged[method] = _on_pairs_aside(X[fit], Y[fit], method, maps[method].strength, seed)
        rows.append({"method": method, "strength": maps[method].strength, **retrieval(maps[method], X[test], Y[test])})
    progress("match", len(methods), len(methods))
    best = max(judged, key=lambda method: judged[method])
    report = {
        "slimformer_match": 1, "pairs": len(fit), "held_out": len(test), "best": best,
        "chance": {f"R@{k}": min(1.0, k / len(test)) for k in AT}, "methods": rows,
    }  # fmt: skip
    return Matched(maps[best], report)


def retrieval(fitted: Match, X: Tensor, Y: Tensor) -> dict[str, Any]:
    """R@1/5/10 both ways, as they are and without hubs, with intervals for R@1."""
    S = fitted.scores(X, Y)
    out: dict[str, Any] = {}
    for name, scores in (("cosine", S), ("csls", without_hubs(S))):
        out[name] = {"forward": recalls(ranks(scores)), "backward": recalls(ranks(scores.mT))}
    return out


def recalls(places: Tensor) -> dict[str, Any]:
    """Shares of queries whose own partner is among the first k, and the median rank."""
    out: dict[str, Any] = {f"R@{k}": float((places <= k).double().mean()) for k in AT}
    interval = share_interval((places <= 1).double().tolist())
    return {**out, "low": interval.low, "high": interval.high, "median_rank": float(places.median())}


def _on_pairs_aside(X: Tensor, Y: Tensor, method: str, strength: float, seed: int) -> float:
    """Mean reciprocal rank on the fifth the strength was chosen on: what methods are compared by."""
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    aside, rest = order.tensor_split([max(2, int(SET_ASIDE * len(X)))])
    S = match(X[rest], Y[rest], method, strength=strength).scores(X[aside], Y[aside])
    return float((1 / ranks(S)).mean() + (1 / ranks(S.mT)).mean())
