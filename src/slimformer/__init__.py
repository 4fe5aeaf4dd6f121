"""slimformer: shrink trained transformers to a compute budget, without retraining.

    import slimformer

    result = slimformer.compress("demo:smollm2", data="builtin", macs=0.8)
    result.save("smaller")
    model = slimformer.load("smaller")

Importing the package also teaches the Auto classes of transformers to open checkpoints whose blocks differ in size,
those whose attention runs over groups of keys, and the package's own architectures, `linformer` and `minimal`.
"""

from slimformer.nn import linformer as _linformer
from slimformer.nn import long_context as _long_context
from slimformer.nn import minimal_model as _minimal
from slimformer.nn import ragged as _ragged

_ragged.enable()
_long_context.enable()
_linformer.enable()
_minimal.register()

from slimformer.checkpoint.load import load as load  # noqa: E402
from slimformer.compress import compress as compress  # noqa: E402
from slimformer.compress import compress_streamed as compress_streamed  # noqa: E402
from slimformer.errors import SlimformerError as SlimformerError  # noqa: E402
from slimformer.models import describe as describe  # noqa: E402
from slimformer.plan import Plan as Plan  # noqa: E402
from slimformer.recipe import Recipe as Recipe  # noqa: E402
from slimformer.steps.cascade import Cascade as Cascade  # noqa: E402
from slimformer.steps.cascade import load_cascade as load_cascade  # noqa: E402
from slimformer.steps.cascade import make_cascade as make_cascade  # noqa: E402
from slimformer.steps.result import Result as Result  # noqa: E402

__version__ = "0.1.0"
