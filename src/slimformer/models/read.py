"""A checkpoint looked at, then read: config, headers and class first, weights last. What does not fit is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto import CONFIG_MAPPING
from transformers.utils import logging

from slimformer.errors import ModelBroken, ModelNotFound, SlimformerError, UnknownArchitecture
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import read_json
from slimformer.models.architecture import is_bare
from slimformer.models.class_choice import POOLER, Choice, choose_class, on_meta, require_place_for_all
from slimformer.models.families import FAMILY_KEY, bring_family, family_of, read_family
from slimformer.models.opening import Opening
from slimformer.models.packed import is_packed, open_packed, plain_names, require_readable
from slimformer.models.place import SENTENCE_PARTS, Place, require_regular_texts
from slimformer.models.weight_files import Weights, open_weights

BLOCK_COUNTS, MOST_BLOCKS = ("num_hidden_layers", "n_layer", "n_layers"), 10_000
SPARE = 10_000_000  # weights a model may have beyond twice those of its files, such as a pooler, before it is built
OWN_CODE = "modeling_slimformer."
CONFIG_FILES = ("config.json", "generation_config.json")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose weights were not read yet: what it says of itself, and what opens it."""

    place: Place
    opening: Opening
    config: Any
    weights: Weights
    choice: Choice

    @property
    def notes(self) -> list[str]:
        """What there is to say about how it is opened."""
        return [note for note in (self.choice.note, _foreign_code(self)) if note]


def look_at(place: Place, opening: Opening, *, supported: bool = True) -> Checkpoint:
    """Config, headers of the weights and the class that opens them; refused where they do not belong together.

    With `supported`, types of models that no family describes are refused before transformers guesses at them.
    """
    require_regular_texts(place.folder)
    if (place.folder / "adapter_config.json").is_file():
        raise ModelBroken(
            f"{place.name} holds an adapter, which lies on top of another model; merge it into that first"
        )
    require_unchanged(place.folder, *CONFIG_FILES, *SENTENCE_PARTS)
    config = _config(place, opening, supported=supported)
    require_readable(config, place.name)
    weights = open_weights(place.folder)
    names = plain_names(weights.files) if is_packed(config) else weights.files
    choice = choose_class(config, names, opening.model_class, place.name)
    return Checkpoint(place, opening, config, weights, choice)


def read_weights(
    checkpoint: Checkpoint, *, whole: bool = False, verify: bool = True
) -> tuple[PreTrainedModel, list[str]]:
    """The model with all of its weights, and notes on what was left out.

    What a file lacks would be drawn at random, and compressed as if trained; what it holds beyond the model would be
    lost. A model without a head may lack its pooler, unless it is asked for `whole`. With `verify`, weights of a result
    must be what was written.
    """
    name, opening = checkpoint.place.name, checkpoint.opening
    if verify:
        checkpoint.weights.require_unchanged()
    _require_room(checkpoint)
    try:
        with _without_load_report():
            model, info = _from_files(checkpoint)
    except SlimformerError:  # said well already
        raise
    except Exception as error:  # transformers, safetensors and torch raise a dozen types for one fact
        raise ModelBroken(f"{name}: the weights cannot be read: {reason(error)}") from error
    allowed = POOLER if is_bare(model) and not whole else "\0"
    missing = sorted(key for key in info["missing_keys"] if not key.startswith(allowed))
    if missing:
        raise ModelBroken(
            f"{name}: {len(missing)} weights that config.json promises are missing, the first is {missing[0]}; "
            "use an intact checkpoint"
        )
    class_is_given = opening.model_class is not None
    notes = require_place_for_all(model, info["unexpected_keys"], asked=class_is_given, where=name)
    if not checkpoint.place.local:
        model.config.name_or_path = name  # not where the copy of it lies
    return model, [*checkpoint.notes, *notes]


def _require_room(checkpoint: Checkpoint) -> None:
    """Refuse a config of a far larger model than the files hold, which transformers would first fill at random.

    A turned digit in one size is enough to take all the memory there is. Cost: a model of shapes.
    """
    weights, packed = checkpoint.weights, is_packed(checkpoint.config)
    held = 8 * weights.size(weights.files) if packed else sum(map(math.prod, weights.shapes.values()))
    for model in on_meta(checkpoint.config, [checkpoint.choice.model_class]):
        needed = sum(parameter.numel() for parameter in model.parameters())
        if needed > 2 * held + SPARE:
            raise ModelBroken(
                f"{checkpoint.place.name}: config.json describes a model of {needed:,} weights, and its files cannot "
                f"hold more than {held:,}; use the config.json that belongs to these weights"
            )


def _from_files(checkpoint: Checkpoint) -> tuple[Any, dict[str, Any]]:
    """The model, and what transformers says of loading it; weights in fewer bits are unpacked here."""
    model_class: Any = checkpoint.choice.model_class
    config, dtype = checkpoint.config, checkpoint.opening.dtype
    if is_packed(config):
        return open_packed(model_class, checkpoint.weights, config, dtype)
    opened: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
        checkpoint.place.folder, config=config, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True
    )
    return opened


def _config(place: Place, opening: Opening, *, supported: bool) -> Any:
    """The config as transformers reads it, of a stock class, without references to code of others."""
    said, trusted = read_config(place.name, place.folder / "config.json"), opening.trust_remote_code
    if not isinstance(said.get("model_type"), str):
        raise UnknownArchitecture(f"{place.name}: config.json names no model_type; supported are Hugging Face models")
    family = None if opening.family is None else read_family(opening.family)
    if supported and not trusted and family is None and FAMILY_KEY not in said:
        family_of(said["model_type"])
    try:
        config: Any = AutoConfig.from_pretrained(place.folder, trust_remote_code=trusted)
        stock = CONFIG_MAPPING[config.model_type] if config.model_type in CONFIG_MAPPING else type(config)
        if not isinstance(config, stock):
            config = stock.from_pretrained(place.folder)
        if family is not None:
            bring_family(config, family)
        if supported:
            family_of(config)
    except SlimformerError:
        raise
    except Exception as error:  # each field of a config has its own way to be wrong
        raise ModelBroken(f"{place.name}: config.json cannot be used: {reason(error)}") from error
    if hasattr(config, "transformers_weights"):  # names another file than the one that was looked at
        del config.transformers_weights
    if "/" in str(config._attn_implementation):  # a kernel, which is code of the hub
        config._attn_implementation = None
    return config


def _foreign_code(checkpoint: Checkpoint) -> str:
    """A note where a checkpoint brings code for its model, because another forward pass is not seen in the weights."""
    auto_map = getattr(checkpoint.config, "auto_map", None)
    codes = (
        [str(code) for auto, code in auto_map.items() if auto.startswith("AutoModel")]
        if isinstance(auto_map, dict)
        else []
    )
    if all(code.startswith(OWN_CODE) for code in codes):
        return ""
    kind = checkpoint.choice.model_class.__name__
    return f"{checkpoint.place.name} brings code of its own for its model, which is not run; opened as a {kind}"


def read_config(where: object, path: Path) -> dict[str, Any]:
    """What config.json says, refused where it is not there, is no JSON object or speaks of thousands of blocks."""
    if (path.parent / "cascade.json").is_file():
        raise ModelNotFound(f"{str(where)!r} is a cascade of two models; give its small/ or its large/")
    if not path.is_file():
        raise ModelNotFound(f"{str(where)!r} holds no config.json, so it is not a Hugging Face model folder")
    try:
        config = read_json(path)
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{where}: config.json cannot be read: {reason(error)}; use an intact checkpoint") from error
    if not isinstance(config, dict):
        raise ModelBroken(f"{where}: config.json cannot be read: it holds no object; use an intact checkpoint")
    for key in BLOCK_COUNTS:
        if isinstance(config.get(key), int) and config[key] > MOST_BLOCKS:  # transformers would go and build them
            raise ModelBroken(f"{where}: config.json says {key} {config[key]}; use an intact checkpoint")
    for key in ("id2label", "label2id"):  # transformers would put names of its own in their place
        if not isinstance(config.get(key), dict | None):
            raise ModelBroken(f"{where}: {key} in config.json names no classes; use an intact checkpoint")
    return config


@contextmanager
def _without_load_report() -> Iterator[None]:
    """transformers prints a table of what does not fit; here that is an error of one line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def reason(error: BaseException) -> str:
    """What went wrong, in one line and not too long."""
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:
        return "they do not have the sizes config.json states; use an intact checkpoint"
    return text[:300] or type(error).__name__
