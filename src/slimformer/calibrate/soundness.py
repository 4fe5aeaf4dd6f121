"""What moments must be, whoever wrote them: sums over rows of real numbers.

Nothing here proves that they are those of some data; but what no data can give (a negative square, less than no row, a
product beyond what its squares allow) is found before anything is factorised.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose.response import Response
from slimformer.linalg.moments import Moments
from slimformer.models.architecture import block_of

ROUNDING = 1e-3  # of the mean diagonal: products are taken in single precision
ROWS = 256  # of a matrix looked at together, to take little memory


def require_sound(block: BlockMoments) -> None:
    """A ValueError that names the first part of a block's moments that no data can give. Cost: reading them once."""
    places = {block_of(name) for name in block.sites}
    stack, number = next(iter(places)) if len(places) == 1 else ("", -1)
    if number > block.block or number < (0 if stack else block.block):  # a stack that is named may not be the first
        raise ValueError(f"they are not those of block {block.block}")
    if not (math.isfinite(block.error_weight) and block.error_weight > 0):
        raise ValueError(f"the weight of the block is {block.error_weight}, and weights are above 0")
    for site, splits in block.sites.items():
        for split, moments in splits.items():
            _require_gram(f"{site}, {split}", moments)
    for split, moments in block.joint.items():
        _require_gram(f"neurons with their input, {split}", moments)
    for split, response in block.responses.items():
        _require_response(split, response)
    for site, root in block.metric.items():
        _require_finite(f"the metric of {site}", root)


def _require_gram(name: str, moments: Moments) -> None:
    total, gram, n = moments.sum, moments.gram, moments.count
    if n < 1:
        raise ValueError(f"those of {name} are over {n} rows")
    for tensor in (total, gram):
        _require_finite(name, tensor)
    squares = gram.diagonal()
    slack = ROUNDING * float(squares.abs().mean()) if len(squares) else 0.0
    if bool((squares < 0).any()):
        raise ValueError(f"those of {name} hold a negative square")
    if bool((total.square() > n * (squares + slack)).any()):
        raise ValueError(f"the sums of {name} are larger than their squares allow")
    for rows, some in zip(gram.split(ROWS), squares.split(ROWS), strict=True):
        if bool((rows.square() > torch.outer(some + slack, squares + slack)).any()):
            raise ValueError(f"products of {name} are larger than their squares allow")


def _require_response(split: str, response: Response) -> None:
    parts = (response.queries, response.keys, response.planes)
    if response.count < 1:
        raise ValueError(f"the response of attention, {split}, is over {response.count} queries")
    if len({tuple(part.shape) for part in parts}) > 1 or parts[0].ndim != 3 or parts[0].shape[1] != parts[0].shape[2]:
        raise ValueError(f"the response of attention, {split}, has no shape of one")
    for part in parts:
        _require_finite(f"the response of attention, {split}", part)
        if bool((part.diagonal(dim1=1, dim2=2) < 0).any()):
            raise ValueError(f"the response of attention, {split}, holds a negative square")


def _require_finite(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float64:
        raise ValueError(f"{name}: numbers are {tensor.dtype}, not float64")
    if not all(bool(torch.isfinite(part).all()) for part in _parts(tensor)):
        raise ValueError(f"{name}: there are NaN or infinite values")


def _parts(tensor: Tensor) -> Iterable[Tensor]:
    return tensor.flatten().split(ROWS * ROWS)
