"""One metric, one file: from a model and data to numbers, with what an error bar needs."""

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
