"""One metric, one file: from a model and data to numbers, with what an error bar needs."""

from typing import TYPE_CHECKING

from slimformer.start.lazy import make_lazy

if TYPE_CHECKING:
    from slimformer.evaluate.accuracy import Accuracy as Accuracy
    from slimformer.evaluate.accuracy import accuracy as accuracy
    from slimformer.evaluate.fidelity import Divergence as Divergence
    from slimformer.evaluate.fidelity import Similarity as Similarity
    from slimformer.evaluate.fidelity import logit_divergence as logit_divergence
    from slimformer.evaluate.fidelity import state_similarity as state_similarity
    from slimformer.evaluate.intervals import Difference as Difference
    from slimformer.evaluate.intervals import Interval as Interval
    from slimformer.evaluate.intervals import mean_interval as mean_interval
    from slimformer.evaluate.intervals import paired_difference as paired_difference
    from slimformer.evaluate.perplexity import Perplexity as Perplexity
    from slimformer.evaluate.perplexity import perplexity as perplexity
    from slimformer.evaluate.sample import generate_text as generate_text
    from slimformer.evaluate.speed import Latency as Latency
    from slimformer.evaluate.speed import ModelLatency as ModelLatency
    from slimformer.evaluate.speed import ParameterCount as ParameterCount
    from slimformer.evaluate.speed import Timing as Timing
    from slimformer.evaluate.speed import compare_latency as compare_latency
    from slimformer.evaluate.speed import file_size as file_size
    from slimformer.evaluate.speed import model_latency as model_latency
    from slimformer.evaluate.speed import parameter_count as parameter_count

NAMES = {
    "accuracy": ("Accuracy", "accuracy"),
    "fidelity": ("Divergence", "Similarity", "logit_divergence", "state_similarity"),
    "intervals": ("Difference", "Interval", "mean_interval", "paired_difference"),
    "perplexity": ("Perplexity", "perplexity"),
    "sample": ("generate_text",),
    "speed": (
        "Latency",
        "ModelLatency",
        "ParameterCount",
        "Timing",
        "compare_latency",
        "file_size",
        "model_latency",
        "parameter_count",
    ),
}
make_lazy(__name__, {name: f"slimformer.evaluate.{file}" for file, names in NAMES.items() for name in names})
