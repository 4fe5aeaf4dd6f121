"""Ways to make a width smaller: pure functions of moments and weights. One method, one file."""

from collections.abc import Callable

from slimformer.decompose.elimination import elimination
from slimformer.decompose.interpolative import interpolative
from slimformer.decompose.reduction import Curve as Curve
from slimformer.decompose.reduction import Selection as Selection
from slimformer.decompose.reduction import Width as Width
from slimformer.decompose.reduction import select as select
from slimformer.errors import UnknownMethod

METHODS: dict[str, Callable[..., Curve]] = {"elimination": elimination, "interpolative": interpolative}


def method(name: str) -> Callable[..., Curve]:
    """The decomposition called `name`."""
    if name not in METHODS:
        raise UnknownMethod(f"there is no method {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]
