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
    from slimformer.calibrate.store import Statistics as Statistics
    from slimformer.checkpoint.load import load as load
    from slimformer.compress import compress as compress
    from slimformer.compress import compress_streamed as compress_streamed
    from slimformer.compress import heal as heal
    from slimformer.compress import quantize as quantize
    from slimformer.compress import sparsify as sparsify
    from slimformer.errors import SlimformerError as SlimformerError
    from slimformer.evaluate.report import Report as Report
    from slimformer.models import describe as describe
    from slimformer.plan.plan import Plan as Plan
    from slimformer.recipe import Recipe as Recipe
    from slimformer.recipe import load_recipe as load_recipe
    from slimformer.steps.cascade import Cascade as Cascade
    from slimformer.steps.cascade import load_cascade as load_cascade
    from slimformer.steps.cascade import make_cascade as make_cascade
    from slimformer.steps.result import Result as Result
    from slimformer.verbs.budgets import apply as apply
    from slimformer.verbs.budgets import cut as cut
    from slimformer.verbs.budgets import frontier as frontier
    from slimformer.verbs.budgets import plan as plan
    from slimformer.verbs.calibrate import calibrate as calibrate
    from slimformer.verbs.compare import bench as bench
    from slimformer.verbs.compare import evaluate as evaluate
    from slimformer.verbs.compare import evaluate_task as evaluate_task
    from slimformer.verbs.look import attention as attention
    from slimformer.verbs.look import inspect as inspect
    from slimformer.verbs.share import export as export
    from slimformer.verbs.share import push as push
    from slimformer.verbs.solve import adapt as adapt
    from slimformer.verbs.solve import match as match
    from slimformer.verbs.solve import probe as probe
    from slimformer.verbs.sweep import sweep as sweep

__version__ = "0.1.0"
__all__ = [
    "Cascade", "Plan", "Recipe", "Report", "Result", "SlimformerError", "Statistics", "adapt", "apply", "attention",
    "bench", "calibrate", "compress", "compress_streamed", "cut", "describe", "evaluate", "evaluate_task", "export",
    "frontier", "heal", "inspect", "load", "load_cascade", "load_recipe", "make_cascade", "match", "plan", "probe",
    "push", "quantize", "sparsify", "sweep",
]  # fmt: skip

make_lazy(
    __name__,
    {
        "Cascade": "slimformer.steps.cascade",
        "Plan": "slimformer.plan.plan",
        "Recipe": "slimformer.recipe",
        "Report": "slimformer.evaluate.report",
        "Result": "slimformer.steps.result",
        "SlimformerError": "slimformer.errors",
        "Statistics": "slimformer.calibrate.store",
        "adapt": "slimformer.verbs.solve",
        "apply": "slimformer.verbs.budgets",
        "attention": "slimformer.verbs.look",
        "bench": "slimformer.verbs.compare",
        "calibrate": "slimformer.verbs.calibrate",
        "compress": "slimformer.compress",
        "compress_streamed": "slimformer.compress",
        "cut": "slimformer.verbs.budgets",
        "describe": "slimformer.models",
        "evaluate": "slimformer.verbs.compare",
        "evaluate_task": "slimformer.verbs.compare",
        "export": "slimformer.verbs.share",
        "frontier": "slimformer.verbs.budgets",
        "heal": "slimformer.compress",
        "inspect": "slimformer.verbs.look",
        "load": "slimformer.checkpoint.load",
        "load_cascade": "slimformer.steps.cascade",
        "load_recipe": "slimformer.recipe",
        "make_cascade": "slimformer.steps.cascade",
        "match": "slimformer.verbs.solve",
        "plan": "slimformer.verbs.budgets",
        "probe": "slimformer.verbs.solve",
        "push": "slimformer.verbs.share",
        "quantize": "slimformer.compress",
        "sparsify": "slimformer.compress",
        "sweep": "slimformer.verbs.sweep",
    },
)


def _teach_transformers() -> None:
    from slimformer.lab import architectures
    from slimformer.nn import long_context, travelling

    travelling.enable()
    long_context.enable()
    architectures.register()


after_import("transformers", _teach_transformers)
