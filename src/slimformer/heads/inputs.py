"""Arrays as they come to tensors, by the conventions of scikit-learn; what cannot be used ends in one line."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimformer.errors import RowsUnusable, SlimformerError


class NotFitted(SlimformerError, ValueError, AttributeError):
    """Something was asked of a head that has seen no rows."""


def not_fitted(name: str) -> Exception:
    """The error for a head without rows; scikit-learn's own where that is in use, since its tools look for it."""
    message = f"this {name} has seen no rows yet; call fit or partial_fit first"
    if "sklearn" in sys.modules:
        from sklearn.exceptions import NotFittedError

        return NotFittedError(message)
    return NotFitted(message)


def rows_of(X: Any, name: str, expected: int | None = None) -> Tensor:
    """X as rows × features in float64, all finite."""
    if type(X).__module__.startswith("scipy.sparse"):
        raise TypeError("sparse data were passed, and dense rows are needed; use X.toarray()")
    array = X.detach().cpu().numpy() if isinstance(X, Tensor) else np.asarray(X)
    if np.iscomplexobj(array):
        raise RowsUnusable("Complex data not supported: features must be real numbers")
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise _unreadable(error) from error
    if array.ndim != 2:
        raise RowsUnusable(
            f"Expected 2D array (rows × features), got {array.ndim}D array instead. Reshape your data with "
            "X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) if it is a single row"
        )
    if array.shape[0] == 0:
        raise RowsUnusable(f"Found array with 0 sample(s) (shape={array.shape}) while a minimum of 1 is required.")
    if array.shape[1] == 0:
        raise RowsUnusable(f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required.")
    if expected is not None and array.shape[1] != expected:
        raise RowsUnusable(f"X has {array.shape[1]} features, but {name} is expecting {expected} features as input")
    return _finite(torch.tensor(array, dtype=torch.float64), "X")


def _unreadable(error: Exception) -> Exception:
    text = f"features must be numbers: {error}"
    return TypeError(text) if isinstance(error, TypeError) else RowsUnusable(text)


def _finite(values: Tensor, name: str) -> Tensor:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        where = int(bad.flatten(1).any(1).nonzero()[0]) if values.ndim > 1 else int(bad.nonzero()[0])
        raise RowsUnusable(f"Input {name} contains NaN or infinity, first in row {where}; drop or fill such rows")
    return values


def labels_of(y: Any, n: int) -> NDArray[Any]:
    """One label for each row: integers, names, or whole numbers written as floats."""
    array = _targets(y)
    if array.ndim == 2 and array.shape[1] == 1:
        _warn_column()
        array = array[:, 0]
    if array.ndim != 1:
        raise RowsUnusable(f"y has the shape {array.shape}; classes are one label for each row")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise RowsUnusable("Input y contains NaN or infinity; drop such rows")
        if (array != np.round(array)).any():
            raise RowsUnusable(
                "Unknown label type: continuous. These are numbers, not classes; use target='numbers' for a regression"
            )
    if array.dtype.kind == "O" and any(value is None or value != value for value in array.tolist()):
        raise RowsUnusable("Input y contains missing labels (None or NaN); drop such rows")
    return _as_many(array, n)


def numbers_of(y: Any, n: int, *, binary: bool) -> tuple[Tensor, bool]:
    """Targets as rows × q in float64, and whether they came as one number a row; `binary` asks for 0 and 1."""
    array = _targets(y)
    if array.dtype.kind not in "fiub":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise RowsUnusable(f"targets must be numbers: {error}") from error
    array = _as_many(array, n)
    values = _finite(torch.tensor(array, dtype=torch.float64), "y")
    flat = values.ndim == 1
    values = values[:, None] if flat else values
    if values.ndim != 2:
        raise RowsUnusable(f"y has the shape {array.shape}; targets are rows × numbers")
    if binary and not bool(((values == 0) | (values == 1)).all()):
        raise RowsUnusable("several labels for each row are written as 0 and 1, one column for each label")
    return values, flat


def weights_of(sample_weight: Any, n: int) -> Tensor:
    """Weights of the rows, none below zero; 1 unless given."""
    if sample_weight is None:
        return torch.ones(n, dtype=torch.float64)
    w = torch.tensor(np.asarray(sample_weight), dtype=torch.float64)
    w = w.expand(n).clone() if w.ndim == 0 else w
    if w.shape != (n,) or not bool((w >= 0).all()) or not bool(torch.isfinite(w).all()):
        raise RowsUnusable(f"sample_weight must be {n} finite numbers of at least zero, one for each row")
    if not bool((w > 0).any()):
        raise RowsUnusable("all rows have the weight zero, so there is nothing to fit")
    return w


def _targets(y: Any) -> NDArray[Any]:
    if y is None:
        raise RowsUnusable("this head requires y to be passed, but the target y is None")
    return y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)


def _as_many(array: NDArray[Any], n: int) -> NDArray[Any]:
    if array.ndim == 0 or len(array) != n:
        raise RowsUnusable(f"there are {n} rows and {array.shape} targets; they must be as many")
    return array


def _warn_column() -> None:
    import warnings

    category: type[Warning] = UserWarning
    if "sklearn" in sys.modules:
        from sklearn.exceptions import DataConversionWarning as category  # type: ignore[no-redef]
    warnings.warn("A column-vector y was passed when a 1d array was expected; it is flattened", category, stacklevel=4)
