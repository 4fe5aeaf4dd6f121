"""What a report shows of two models besides metrics: latency, the same beginning continued, nearest neighbours."""

from __future__ import annotations

from typing import Any

from slimformer.calibrate.gather import Data, positions, vocabulary
from slimformer.evaluate.by_text import reads_alike
from slimformer.evaluate.compare import is_language_model
from slimformer.evaluate.neighbours import LENGTH, SENTENCES, neighbours
from slimformer.evaluate.sample import generate_text
from slimformer.evaluate.speed import Rounds, model_latency
from slimformer.models import describe
from slimformer.models.load import Loaded

PROMPT = "The main idea of this"


def latency(dense: Loaded, small: Loaded, data: Data) -> dict[str, Any]:
    """Medians in seconds for one sequence, dense and small interleaved in one run. Where tokens differ both get those
    that both know: so many tokens, not the same text."""
    architecture, inputs = describe(dense.model), data.splits["report"][0].inputs
    words = architecture.family.unit == "tokens"
    least = min(vocabulary(each.model) for each in (dense, small)) if words else 0
    sample = {name: tensor[:1] for name, tensor in inputs.items()}
    for name in sample.keys() & {"input_ids", "decoder_input_ids"} if words else ():
        sample[name] = sample[name].clamp_max(least - 1)
    blocks = [stack.layout.blocks for stack in architecture.stacks]
    measured = model_latency(dense.model, small.model, sample, Rounds(5, 1), blocks=blocks)

    def part(timing: Any, ratio: float) -> dict[str, float]:
        return {"dense": timing.timings["dense"].median, "small": timing.timings["small"].median, "ratio": ratio}

    return {
        "body": part(measured.body, measured.body_ratio),
        "end_to_end": part(measured.end_to_end, measured.end_to_end_ratio),
        "repeats": measured.body.repeats,
        "threads": measured.body.threads,
        "device": measured.body.device,
        "inputs": {name: list(shape) for name, shape in measured.inputs.items()},
    }


def continuations(loaded: Loaded, small: Loaded) -> dict[str, str] | None:
    """The same beginning continued by both, where there are a tokenizer that can say it and room to go on."""
    goes_on = is_language_model(loaded.model) and not describe(loaded.model).family.reads_pairs
    if loaded.processor is None or not goes_on:
        return None
    ids = loaded.processor(PROMPT)["input_ids"]
    room = positions(loaded.model.config) - len(ids)
    if not ids or room < 1 or max(ids) >= vocabulary(loaded.model):
        return None
    models = {"dense": (loaded.model, loaded.processor), "small": (small.model, _reader(loaded, small))}
    return {name: generate_text(*each, PROMPT, min(24, room)) for name, each in models.items()}


def _reader(loaded: Loaded, small: Loaded) -> Any:
    """The tokenizer of the smaller model: the same as before, or one of its own where it knows fewer tokens."""
    return loaded.processor if reads_alike(loaded, small) else small.processor


def nearest(loaded: Loaded, small: Loaded) -> list[dict[str, Any]] | None:
    """What encoders of text find alike, where there are a tokenizer that can say it and room for it."""
    family = describe(loaded.model).family
    if loaded.processor is None or family.causal or family.unit != "tokens" or family.reads_pairs:
        return None
    ids = [i for sentence in SENTENCES for i in loaded.processor(sentence)["input_ids"]]
    fits = positions(loaded.model.config) >= LENGTH and ids and max(ids) < vocabulary(loaded.model)
    return neighbours(loaded.model, small.model, loaded.processor, _reader(loaded, small)) if fits else None
