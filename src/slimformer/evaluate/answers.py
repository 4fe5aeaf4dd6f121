"""What one model makes of every input, ready to be routed: entropy of its output, loss, choice, weight and length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.errors import UnknownArchitecture
from slimformer.evaluate.compare import has_classes, is_language_model
from slimformer.evaluate.perplexity import device_of, evaluating, pieces
from slimformer.evaluate.routing import Answers, WindowScores, entropy, window_scores
from slimformer.messages.progress import Progress, silent


def observe(model: PreTrainedModel, batches: Sequence[Batch], *, progress: Progress = silent) -> Answers:
    """Entropy and loss of a model, input by input. Cost: one pass.

    Classifiers lose 1 for a wrong label, language models the nats per token of a window. Classifiers without labels
    lose nothing by themselves: what counts is then whether two of them disagree.
    """
    require_answers(model)
    language = is_language_model(model)
    labelled = not language and all(has_classes(model, batch.labels) for batch in batches)
    measure = "nats per token" if language else "error" if labelled else "disagreement"
    rows: list[tuple[Any, ...]] = []
    progress("observe", 0, len(batches))
    with evaluating(model):
        for i, batch in enumerate(batches):
            rows += _windows(model, batch) if language else _examples(model, batch)
            progress("observe", i + 1, len(batches))
    if not rows:
        raise ValueError("there are no inputs to route: no batches, or nothing to predict in them")
    unsure, losses, choices, weights, lengths = zip(*rows, strict=True)
    return Answers(measure, unsure, () if measure == "disagreement" else losses, choices, weights, lengths)


def require_answers(model: PreTrainedModel) -> None:
    """Refuse models without an output whose entropy says how sure they are."""
    config = model.config
    classifies = type(model).__name__.endswith(("SequenceClassification", "ImageClassification"))
    one_of_many = classes(model) > 1 and getattr(config, "problem_type", None) in (
        None, "single_label_classification",
    )  # fmt: skip
    if not is_language_model(model) and not (classifies and one_of_many):
        raise UnknownArchitecture(
            f"{type(model).__name__} gives neither the probabilities of classes nor of next tokens, so there is no "
            "entropy to route by; use a classifier of 2 or more classes, or a causal language model"
        )


def classes(model: PreTrainedModel) -> int:
    """How many classes the head tells apart."""
    return int(model.config.num_labels or 0)


def _examples(model: PreTrainedModel, batch: Batch) -> Iterator[tuple[Any, ...]]:
    """Entropy, loss, choice, weight and length of every example of a batch."""
    logits = logits_of(model, batch.inputs).cpu()
    choices = logits.argmax(-1)
    wrong = torch.zeros(len(logits)) if batch.labels is None else choices != batch.labels.cpu()
    ones = torch.ones(len(logits))
    lengths = ones if batch.mask is None else batch.mask.sum(1)
    columns = (entropy(logits), wrong.double(), choices, ones, lengths.double())
    return zip(*(column.tolist() for column in columns), strict=True)


def _windows(model: PreTrainedModel, batch: Batch) -> Iterator[tuple[Any, ...]]:
    """The same for every window that predicts something; language models make no choice."""
    windows = read_windows(model, batch)
    some = windows.tokens > 0
    tokens = windows.tokens[some]
    # one more is read than predicted
    columns = (windows.entropy[some], windows.nats[some] / tokens, 0 * tokens, tokens.double(), tokens.double() + 1)
    return zip(*(column.tolist() for column in columns), strict=True)


def logits_of(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Tensor:
    """Class scores of a batch, on the device of the model."""
    place = device_of(model)
    here = {name: value.to(place) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    logits: Tensor = model(**here).logits
    return logits


def read_windows(model: PreTrainedModel, batch: Batch) -> WindowScores:
    """Scores of every window, as many at a time as leave room for their logits."""
    parts = []
    for part in pieces(model, batch):
        ids = part.inputs["input_ids"]
        real = torch.ones_like(ids, dtype=torch.bool) if part.mask is None else part.mask
        parts.append(window_scores(model(**part.inputs).logits, ids, real))
    columns = ([part.nats for part in parts], [part.entropy for part in parts], [part.tokens for part in parts])
    return WindowScores(*(torch.cat(column) for column in columns))
