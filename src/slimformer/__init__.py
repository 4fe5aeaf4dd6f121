"""slimformer: shrink trained transformers to a compute budget, without retraining.

    import slimformer

    result = slimformer.compress("demo:smollm2", data="builtin", macs=0.8)
    result.save("smaller")
    model = slimformer.load("smaller")

Importing the package also teaches the Auto classes of transformers to open checkpoints whose blocks differ in size,
those whose attention runs over groups of keys, and the package's own architectures, `linformer` and `minimal`: at once
where transformers is imported already, else as soon as it is. Importing the package alone imports neither transformers
nor torch; its names bring what they need when they are first used.
"""

from typing import TYPE_CHECKING

from slimformer.start.after_import import after_import
from slimformer.start.lazy import make_lazy

if TYPE_CHECKING:
    from slimformer.checkpoint.load import load as load
    from slimformer.compress import compress as compress
    from slimformer.compress import compress_streamed as compress_streamed
    from slimformer.compress import heal as heal
    from slimformer.compress import quantize as quantize
    from slimformer.compress import sparsify as sparsify
    from slimformer.errors import SlimformerError as SlimformerError
    from slimformer.models import describe as describe
    from slimformer.plan import Plan as Plan
    from slimformer.recipe import Recipe as Recipe
    from slimformer.steps.cascade import Cascade as Cascade
    from slimformer.steps.cascade import load_cascade as load_cascade
    from slimformer.steps.cascade import make_cascade as make_cascade
    from slimformer.steps.result import Result as Result

__version__ = "0.1.0"
__all__ = [
    "Cascade", "Plan", "Recipe", "Result", "SlimformerError", "compress", "compress_streamed", "describe",
    "heal", "load", "load_cascade", "make_cascade", "quantize", "sparsify",
]  # fmt: skip

make_lazy(
    __name__,
    {
        "Cascade": "slimformer.steps.cascade",
        "Plan": "slimformer.plan",
        "Recipe": "slimformer.recipe",
        "Result": "slimformer.steps.result",
        "SlimformerError": "slimformer.errors",
        "compress": "slimformer.compress",
        "compress_streamed": "slimformer.compress",
        "describe": "slimformer.models",
        "heal": "slimformer.compress",
        "load": "slimformer.checkpoint.load",
        "load_cascade": "slimformer.steps.cascade",
        "make_cascade": "slimformer.steps.cascade",
        "quantize": "slimformer.compress",
        "sparsify": "slimformer.compress",
    },
)


def _teach_transformers() -> None:
    from slimformer.lab import architectures
    from slimformer.nn import long_context, travelling

    travelling.enable()
    long_context.enable()
    architectures.register()


after_import("transformers", _teach_transformers)
