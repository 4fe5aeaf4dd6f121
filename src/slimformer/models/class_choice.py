"""Which class opens a checkpoint, and which of its weights that class has no place for.

Decided from facts: what config.json names, what was asked for, and whether the weights in the files are those of the
class. A file may hold more than a class takes only where another class of the same config knows those weights (a second
head, a pooler): anything else means that config.json describes another model than the files hold.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.models.auto import modeling_auto

from slimformer.errors import ModelBroken, UnknownArchitecture
from slimformer.messages.words import option
from slimformer.models.architecture import is_bare
from slimformer.models.registered import class_named

HEADS = (
    "ForCausalLM", "LMHeadModel", "DoubleHeadsModel", "ForMaskedLM", "ForSequenceClassification",
    "ForImageClassification", "ForTokenClassification", "ForQuestionAnswering", "ForNextSentencePrediction",
    "ForConditionalGeneration", "ForCTC",
)  # fmt: skip
CAUSAL = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")
POOLER = "pooler."  # many encoders come without one, and nothing that is compared reads it where there is no head
SHOWN = 3


@dataclass(frozen=True)
class Choice:
    """The class to open a checkpoint with; a note where it is not simply the one config.json names."""

    model_class: type[PreTrainedModel]
    note: str = ""


@dataclass(frozen=True)
class Fit:
    """Weights that a class needs and the files lack, those the files hold beyond it, and how many need a new prefix."""

    missing: frozenset[str]
    surplus: frozenset[str]
    moved: int


def choose_class(config: Any, weights: Iterable[str], class_name: str | None, where: object) -> Choice:
    """The class that was asked for, else the one config.json names, else the one whose weights these are."""
    if class_name is not None:
        return Choice(class_asked(class_name, config))
    architectures = getattr(config, "architectures", None)
    name = architectures[0] if isinstance(architectures, list) and architectures else architectures
    stated = class_named(name)
    if stated is not None and _opens(stated, config):
        return Choice(stated)
    if not name:
        what = "config.json names no class"
    elif stated is None:
        what = f"config.json names the class {str(name)[:80]!r}, which transformers does not have"
    else:
        what = f"config.json names the class {name}, which does not belong to its model_type {config.model_type!r}"
    told_by_weights = _class_of_weights(config, list(weights))
    if told_by_weights is None:
        raise UnknownArchitecture(
            f"{where}: {what}, and no class for models of type {config.model_type!r} has the weights in its files; "
            f"use an intact checkpoint, or name the class with {option('model_class')}"
        )
    chosen = f"its weights are those of a {told_by_weights.__name__}, so it is opened as one"
    return Choice(told_by_weights, f"{where}: {what}; {chosen} ({option('model_class')} names another)")


def class_asked(name: str, config: Any) -> type[PreTrainedModel]:
    """The class of that name, or that an Auto class of that name has for the config."""
    known = classes_for(config)
    autos = {auto: one for one, names in known.items() for auto in reversed(names)}
    by_name = {one.__name__: one for one in known}
    chosen = by_name.get(name) or autos.get(name)
    if chosen is not None:
        return chosen
    other = class_named(name)
    if other is not None:
        what = f"opens models of another type than {config.model_type!r}"
    elif hasattr(modeling_auto, name):
        what = f"has no class for models of type {config.model_type!r}"
    else:
        what = "is no model class of transformers"
    raise UnknownArchitecture(f"{option('model_class', name)} {what}; choose from {', '.join(sorted(by_name))}")


def classes_for(config: Any) -> dict[type[PreTrainedModel], list[str]]:
    """Every class for a config, with the names of the Auto classes that have it; some heads no Auto class knows."""
    names: dict[type[PreTrainedModel], list[str]] = {}
    for auto in sorted(name for name in vars(modeling_auto) if name.startswith("AutoModel")):
        mapping = getattr(getattr(modeling_auto, auto), "_model_mapping", None)
        if mapping is None or type(config) not in mapping:
            continue
        classes = mapping[type(config)]
        for one in classes if isinstance(classes, tuple) else (classes,):
            names.setdefault(one, []).append(auto)
    modules = [sys.modules[one.__module__] for one in names if _opens(one, config)]
    for one in (each for module in modules for each in vars(module).values()):
        known = isinstance(one, type) and issubclass(one, PreTrainedModel) and one.config_class is type(config)
        if known and one.__name__.endswith(HEADS):
            names.setdefault(one, [])
    return names


def require_place_for_all(model: PreTrainedModel, surplus: Iterable[str], *, asked: bool, where: object) -> list[str]:
    """Refuse weights in the files that `model` leaves out, unless another class of its config knows them.

    Where a model without a head was asked for by name, all that is outside it may stay unread. Gives a note on what is.
    """
    left_out = sorted(surplus)
    if not left_out:
        return []
    known = {name for other in on_meta(model.config, classes_for(model.config)) for name in other.state_dict()}
    prefix = f"{model.base_model_prefix}."
    strange = [name for name in left_out if not {name, prefix + name, name.removeprefix(prefix)} & known]
    if asked and is_bare(model):
        own = {name.split(".")[0] for name in model.state_dict()}
        strange = [name for name in strange if name.removeprefix(prefix).split(".")[0] in own]
    kind = type(model).__name__
    if strange:
        raise ModelBroken(
            f"{where}: its files hold {_listed(strange)}, for which {kind} has no place by "
            "config.json, so they would be "
            "left out; use the config.json that belongs to these weights, or name the class with "
            f"{option('model_class')}"
        )
    heads = [name for name in left_out if POOLER not in name]
    return [f"{where}: its files hold {_listed(heads)}, which {kind} does not have; left out"] if heads else []


def fit(model: PreTrainedModel, weights: Iterable[str]) -> Fit:
    """How the names in the files fit a model (weights or only shapes), under the names transformers gives them."""
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    known: Any = model.state_dict()
    placed: set[str] = set()
    surplus: set[str] = set()
    moved = 0
    for name in weights:
        plain, _ = rename_source_key(name, renamings, converters)
        own, _ = rename_source_key(name, renamings, converters, model.base_model_prefix, known)
        (placed if own in known else surplus).add(own)
        moved += own in known and own != plain
    missing = known.keys() - placed - set(model.all_tied_weights_keys)  # type: ignore[operator, call-overload]
    if is_bare(model):
        missing = {name for name in missing if not name.startswith(POOLER)}
    return Fit(frozenset(missing), frozenset(unexpected(model, surplus)), moved)


def unexpected(model: Any, names: Iterable[str]) -> set[str]:
    """Without what transformers passes over on purpose: tables that were stored once and are computed now."""
    info = SimpleNamespace(missing_keys=set(), unexpected_keys=set(names))
    model._adjust_missing_and_unexpected_keys(info)
    keys: set[str] = info.unexpected_keys
    return keys


def _class_of_weights(config: Any, weights: Sequence[str]) -> type[PreTrainedModel] | None:
    """Of the classes with a head that is supported, or none, the one that leaves out least of the files and misses
    nothing; what it leaves out must be known to another."""
    decoder = bool(getattr(config, "is_decoder", False)) or not _has_masked_head(config)
    known: set[str] = set()
    fits: list[tuple[Fit, PreTrainedModel]] = []
    for model in on_meta(config, classes_for(config)):
        known |= model.state_dict().keys()
        name = type(model).__name__
        if (is_bare(model) or name.endswith(HEADS)) and (decoder or not name.endswith(CAUSAL)):
            fits.append((fit(model, weights), model))
    allowed = [
        (len(each.surplus), each.moved, type(model))
        for each, model in fits
        if not each.missing and not unexpected(model, each.surplus) - known
    ]
    return min(allowed, key=lambda found: found[:2])[2] if allowed else None


def _has_masked_head(config: Any) -> bool:
    return any(one.__name__.endswith("ForMaskedLM") for one in classes_for(config))


def on_meta(config: Any, classes: Iterable[type[PreTrainedModel]]) -> Iterator[PreTrainedModel]:
    """The classes as models of shapes; those the config cannot make are passed over."""
    for one in classes:
        try:
            with torch.device("meta"):
                model = one(copy.deepcopy(config))  # some classes change it, such as the number of labels
        except Exception:  # a head may want fields that are not there
            continue
        yield model


def _opens(model_class: Any, config: Any) -> bool:
    return model_class.config_class in (None, type(config))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    what = "a weight" if len(names) == 1 else f"{len(names)} weights"
    return f"{what} ({', '.join(names[:SHOWN])}{more})"
