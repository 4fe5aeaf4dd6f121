"""Models larger than memory: everything but the blocks is opened, and a block only while it is looked at.

A skeleton is the model the checkpoint names, built on the meta device: shapes without weights. What is outside the
blocks (embeddings, norms, heads) is read once it is asked for; the weights of block i are read when they are asked for
and given back afterwards. Files are mapped, not copied, so weights that are stored in the precision they are used in
take no memory of their own. Names in the files may lack the prefix of the headless model, or have it where the module
has none; what the module does not know is refused, or passed over, as when a model is loaded whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.errors import ModelBroken, UnknownArchitecture
from slimformer.messages.words import option
from slimformer.models.architecture import Architecture, fingerprint, parts
from slimformer.models.class_choice import require_place_for_all, unexpected
from slimformer.models.description import describe
from slimformer.models.load import Loaded, find_model, require_usable
from slimformer.models.opening import Opening, opening_facts, say
from slimformer.models.read import reason
from slimformer.models.weight_files import Weights


@dataclass(frozen=True)
class Skeleton:
    """A model whose blocks have shapes only, and the files their weights are in."""

    loaded: Loaded
    architecture: Architecture
    weights: Weights
    dtype: torch.dtype

    @property
    def outside(self) -> list[str]:
        """The names of what is not in a block, each tensor once."""
        tied = self.loaded.model.all_tied_weights_keys
        return [n for n in self.weights.files if not self.architecture.inside(n) and n not in tied]

    def inside(self, i: int) -> list[str]:
        """The names of what is in block i."""
        path = self.architecture.blocks[i].path
        return [name for name in self.weights.files if name.startswith(f"{path}.")]

    def read_outside(self) -> Skeleton:
        """Let what is outside the blocks be there. Cost: reading it."""
        model: Any = self.loaded.model
        for key, tensor in self.weights.read(self.outside, self.dtype):
            put(model, key, tensor)
        model.tie_weights()
        require_usable(model, self.loaded.name)
        return self

    @contextmanager
    def resident(self, i: int) -> Iterator[None]:
        """The weights of block i are there inside."""
        self.fill(self.loaded.model, i)
        try:
            yield
        finally:
            release(self.loaded.model, self.architecture, i)

    def fill(self, model: PreTrainedModel, i: int) -> None:
        """Give block i of `model`, this one or its twin, the weights in the files."""
        for name, tensor in self.weights.read(self.inside(i), self.dtype):
            put(model, name, tensor)

    def twin(self) -> PreTrainedModel:
        """A second skeleton that shares what is outside the blocks, as long as nobody replaces it."""
        model = self.loaded.model
        shared = [*model.parameters(), *model.buffers()]
        return copy.deepcopy(model, {id(tensor): tensor for tensor in shared if not tensor.is_meta})

    def fingerprint(self, seen: Callable[[str], None] = lambda _name: None) -> str:
        """As `architecture.fingerprint`, reading every weight once; NaN and infinite ones are refused on the way."""

        def read(name: str) -> Iterator[Tensor]:
            ((_, tensor),) = self.weights.map([name])
            for part in parts(tensor):
                part = part.to(self.dtype)
                if not bool(torch.isfinite(part).all()):
                    raise ModelBroken(f"{self.loaded.name}: the weights hold NaN or infinite values ({name})")
                yield part
            seen(name)

        self.weights.require_unchanged()
        return fingerprint(self.loaded.model, read)


def sketch(name: str | Path, opening: Opening = Opening()) -> Skeleton:  # noqa: B008
    """MODEL in shapes, before any weight is read: config, tokenizer and the headers of its files.

    Refused (`ModelBroken`) where files do not hold what the module needs, hold more than that, or in other shapes.
    """
    model_place = find_model(name, opening)
    checkpoint = model_place.checkpoint
    place, stored = checkpoint.place, checkpoint.weights
    try:
        with torch.device("meta"):
            model: Any = checkpoint.choice.model_class(checkpoint.config)
    except Exception as error:  # each field of a config has its own way to be wrong
        raise ModelBroken(f"{place.name}: config.json cannot be used: {reason(error)}") from error
    model.eval().requires_grad_(False)
    require_usable(model, place.name)
    _make_buffers(model)
    names = _names(model, stored)
    weights = stored.known_as(names)
    _require_all(place.name, model, weights)
    left_out = unexpected(model, stored.files.keys() - names.keys())
    class_is_given = opening.model_class is not None
    notes = [*checkpoint.notes, *require_place_for_all(model, left_out, asked=class_is_given, where=place.name)]
    say(notes)
    facts = opening_facts(opening, place.commit)
    loaded = Loaded(
        place.name, model, model_place.processor, place.folder, model_place.dtype, place.folder, facts, tuple(notes)
    )  # fmt: skip
    architecture = describe(model)
    if len(architecture.stacks) > 1:
        raise UnknownArchitecture(
            f"{place.name}: models of several stacks of blocks are not walked on disk yet; leave {option('memory')} out"
        )
    if architecture.n_layers > architecture.n_blocks:
        raise UnknownArchitecture(
            f"{place.name}: one block is run many times, so there is nothing to walk on disk; "
            f"leave {option('memory')} out"
        )
    return Skeleton(loaded, architecture, weights, opening.dtype or torch.float32)


def _make_buffers(model: Any) -> None:
    """Tables that no file holds, such as rotary angles, are computed as when the model is loaded."""
    for module in model.modules():
        empty = {name: buffer for name, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
        for name, buffer in empty.items():
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
        if empty:
            model._init_weights(module)


def _names(model: Any, weights: Weights) -> dict[str, str]:
    """From names in the files to those of the module: the same, or with the prefix of the headless model more or less.

    What the module lacks (tables older versions stored, the head of a model that is opened without) is left out.
    """
    known, prefix = model.state_dict().keys(), f"{model.base_model_prefix}."
    names = {key: key for key in weights.files if key in known}
    for key in [key for key in weights.files if key not in names]:
        for other in (prefix + key, key.removeprefix(prefix)):
            if other in known and other not in weights.files:
                names[key] = other
    return names


def _require_all(name: str, model: Any, weights: Weights) -> None:
    """Refuse a checkpoint that lacks a weight of the module, or has it in another shape."""
    shapes = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    for key in (key for key in shapes if key not in weights.files and key not in model.all_tied_weights_keys):
        raise ModelBroken(
            f"{name}: this checkpoint cannot be streamed: {key} is not in its files; leave {option('memory')} out"
        )
    for key in shapes.keys() & weights.shapes.keys():
        if shapes[key] != weights.shapes[key]:
            raise ModelBroken(
                f"{name}: {key} is {weights.shapes[key]} in its files and {shapes[key]} by config.json; "
                "use an intact checkpoint"
            )


def put(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Let the parameter or buffer of that name be this tensor."""
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if leaf in module._parameters:
        module._parameters[leaf] = nn.Parameter(tensor, requires_grad=False)
    else:
        module._buffers[leaf] = tensor


def release(model: PreTrainedModel, architecture: Architecture, i: int) -> None:
    """Let block i have shapes only."""
    for module in model.get_submodule(architecture.blocks[i].path).modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None:
                empty = torch.empty_like(parameter, device="meta")
                module._parameters[leaf] = nn.Parameter(empty, requires_grad=False)
