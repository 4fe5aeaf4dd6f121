"""Open a checkpoint, plain or ragged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Unpack

from transformers import PreTrainedModel

from slimformer.errors import ModelNotFound
from slimformer.messages.arguments import check_arguments
from slimformer.models.fetch import find_place
from slimformer.models.load import load_model, on_device
from slimformer.models.opening import Opening, OpeningOptions, say, usable_device
from slimformer.models.read import look_at, read_weights
from slimformer.nn import travelling

AS_STORED = Opening(device="cpu", dtype=None)


@check_arguments
def load(folder: str | Path, *, verify: bool = True, **opening: Unpack[OpeningOptions]) -> PreTrainedModel:
    """The model in `folder` (or behind a hub id), with the head it was saved with, ready for inference.

    `dtype` is the precision to hold it in, without it the one it is stored in; `device` is the CPU, as for
    `from_pretrained`, unless another or "auto" is given. `model_class` names another head than config.json does;
    `revision` and `trust_remote_code` are for the hub (SECURITY.md). Weights that slimformer wrote are read once more
    to compare their SHA-256 with what was written, which takes a second or two for each gigabyte; not with
    `verify=False`.

    >>> model = slimformer.load("smaller")
    >>> type(model).__name__, model.training
    ('LlamaForCausalLM', False)
    """
    travelling.enable()
    how = replace(AS_STORED, **opening)
    device, place = usable_device(how.device), find_place(folder, how)
    if (place.folder / "cascade.json").is_file():
        raise ModelNotFound(
            f"{str(folder)!r} is a cascade of two models; open it with slimformer.load_cascade, or one of them alone "
            "(its small/ or large/)"
        )
    if place.gguf:
        return load_model(folder, how).model
    model, notes = read_weights(look_at(place, how, supported=False), whole=True, verify=verify)
    say(notes)
    return on_device(model, device)
