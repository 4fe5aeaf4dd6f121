"""Error curves on disk: a cache beside the statistics. One that is not what was written is as good as none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from slimformer.decompose import Curve
from slimformer.errors import FileChanged
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked
from slimformer.files.seals import read_sealed_json


def read_curves(path: Path) -> dict[str, Curve]:
    """Curves of an earlier run; none when there are none, or none that can be believed."""
    with suppress(OSError, ValueError, FileChanged):
        require_unchanged(path.parent, path.name)
        return curves_from(read_sealed_json(path))
    return {}


def plain_curves(curves: Mapping[str, Curve]) -> dict[str, Any]:
    """Curves as JSON can say them."""
    return {name: vars(curve) for name, curve in curves.items()}


def curves_from(data: Any) -> dict[str, Curve]:
    """The same back, checked: a ValueError where sizes, errors and order do not belong together."""
    curves = checked(dict[str, Curve], data)
    for name, curve in curves.items():
        if not _belong_together(curve):
            raise ValueError(f"{name[:80]}: its sizes, errors and order do not belong together")
    return curves


def _belong_together(curve: Curve) -> bool:
    errors = (curve.fit, curve.held, curve.floor)
    return (
        len(curve.sizes) > 0
        and all(len(part) == len(curve.sizes) for part in (curve.groups, *errors))
        and sorted(set(curve.sizes)) == list(curve.sizes)
        and curve.sizes[0] >= 0
        and curve.sizes[-1] <= len(curve.order)
        and sorted(curve.order) == list(range(len(curve.order)))
        and all(0 <= groups <= size for groups, size in zip(curve.groups, curve.sizes, strict=True))
        and all(math.isfinite(error) and error >= 0 for part in errors for error in part)
    )
