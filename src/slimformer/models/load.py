"""From a folder, a hub id or a demo name to a model and what turns data into its inputs."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, AutoTokenizer, PreTrainedModel

from slimformer.errors import ModelBroken, UnknownArchitecture, UnknownType, WrongArgument
from slimformer.files.manifest import require_unchanged
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models.architecture import is_bare, parts
from slimformer.models.class_choice import HEADS
from slimformer.models.experts import sharing_weights
from slimformer.models.families import bring_family, family_of, read_family
from slimformer.models.fetch import find_place
from slimformer.models.gguf import load_gguf
from slimformer.models.opening import Opening, opening_facts, say, usable_device, usable_precision
from slimformer.models.packed import is_packed
from slimformer.models.place import PROCESSOR_FILES, PROCESSOR_SETTINGS, Place
from slimformer.models.read import Checkpoint, look_at, read_weights, reason
from slimformer.models.weight_files import KINDS

IMAGES, SOUNDS, BOTH = "image processor", "feature extractor", "processor"
KIND_OF_INPUT = {"pixel_values": IMAGES, "input_values": SOUNDS, "input_features": SOUNDS}


@dataclass(frozen=True, repr=False)
class Loaded(Short):
    """A model ready to be described, with the tokenizer or image processor that belongs to it (if any)."""

    name: str
    model: PreTrainedModel
    processor: Any  # tokenizer, image processor, feature extractor (with its tokenizer, if any) or None
    folder: Path | None = None  # where it was opened from, when that is local
    dtype: torch.dtype = torch.float32  # in which precision its weights are stored
    companions: Path | None = None  # where its licences and sentence-transformers parts are: its folder, or the cache
    opening: dict[str, Any] = field(default_factory=dict)  # what was asked for, see `opening_facts`
    notes: tuple[str, ...] = ()  # what one should know of how it was opened

    def facts(self) -> dict[str, str]:
        """What it is, and where."""
        precision = str(self.dtype).removeprefix("torch.")
        return {"": f"{self.name}, a {type(self.model).__name__} on {self.model.device}, stored in {precision}"}


def load_model(name: str | Path, opening: Opening = Opening(), *, supported: bool = True) -> Loaded:  # noqa: B008
    """Open MODEL: a folder, a hub id, or `demo:smollm2` / `demo:minilm`. The head is the one the checkpoint names.

    A type of models that no family describes is refused, unless it need not be `supported`.
    """
    device, place = usable_device(opening.device), find_place(name, opening)
    if place.gguf:
        return _from_gguf(place, place.gguf, opening, device)
    checkpoint = look_at(place, opening, supported=supported)
    model, notes = read_weights(checkpoint)
    require_usable(model, place.name)
    say(notes)
    towers = supported and family_of(checkpoint.config).towers
    kind = BOTH if towers else KIND_OF_INPUT.get(model.main_input_name, "tokenizer")
    return Loaded(
        place.name, on_device(model, device), _processor(place, opening, kind),
        place.folder if place.local else None, _stored_precision(checkpoint), place.folder,
        opening_facts(opening, place.commit), tuple(notes),
    )  # fmt: skip


def open_for_work(
    model: str | Path | PreTrainedModel | Loaded,
    processor: Any = None,
    opening: Opening = Opening(),  # noqa: B008
) -> Loaded:
    """A model to calibrate and to compress, from wherever it is; `opening` is for those that are not here yet."""
    if isinstance(model, Loaded):
        return model
    if isinstance(model, PreTrainedModel):
        if opening.family is not None:
            bring_family(model.config, read_family(opening.family))
        return in_memory(model, processor)
    if opening.dtype is not None:
        usable_precision(opening.dtype, opening.device)
    return load_model(model, opening)


def in_memory(model: PreTrainedModel, processor: Any = None) -> Loaded:
    """A model that is already here. It is put into evaluation mode and otherwise left as it is: one with experts is
    worked on in modules beside its own."""
    require_usable(model, type(model).__name__)
    away = next((key for key, parameter in model.named_parameters() if parameter.is_meta), None)
    if away is not None:
        raise ModelBroken(
            f"{type(model).__name__}: weights are not in memory but offloaded ({away}); give the folder to "
            "compress_streamed (`slimformer compress --memory`), which reads them block by block"
        )
    name = getattr(model.config, "name_or_path", "") or type(model).__name__
    with suppress(UnknownType):
        model = sharing_weights(model) if family_of(model.config).experts else model
    return Loaded(name, model.eval(), processor, None, model.dtype)


def _from_gguf(place: Place, file: str, opening: Opening, device: str) -> Loaded:
    model, tokenizer = load_gguf(str(place.folder), file, opening.dtype or torch.float32)
    require_usable(model, place.name)
    if opening.family is not None:
        bring_family(model.config, read_family(opening.family))
    if opening.model_class not in (None, type(model).__name__, "AutoModelForCausalLM"):
        raise WrongArgument(
            f"{option('model_class', opening.model_class)}: {place.name} is one GGUF file, which opens as a "
            f"{type(model).__name__} only; leave it out"
        )
    return Loaded(place.name, on_device(model, device), tokenizer, place.folder, companions=place.folder)


@dataclass(frozen=True)
class Found:
    """A checkpoint that was found and not yet read."""

    checkpoint: Checkpoint
    processor: Any
    dtype: torch.dtype


def find_model(name: str | Path, opening: Opening = Opening()) -> Found:  # noqa: B008
    """Where MODEL is, what it says of itself, and its tokenizer; of the hub all of it is fetched. No weights yet."""
    place = find_place(name, opening)
    if place.gguf:
        raise ModelBroken(f"{name} is one GGUF file, which is read whole; leave {option('memory')} out")
    checkpoint = look_at(place, opening)
    if is_packed(checkpoint.config):
        raise ModelBroken(
            f"{name}: its weights are packed in fewer bits, and unpacked whole; leave {option('memory')} out"
        )
    if family_of(checkpoint.config).sound:
        raise UnknownArchitecture(f"{name} reads sounds, and is walked in memory only; leave {option('memory')} out")
    if family_of(checkpoint.config).towers:
        raise UnknownArchitecture(f"{name} is two towers, and is walked in memory only; leave {option('memory')} out")
    if family_of(checkpoint.config).experts:
        raise UnknownArchitecture(f"{name} has experts, and is walked in memory only; leave {option('memory')} out")
    processor = _processor(place, opening, IMAGES if family_of(checkpoint.config).image else "tokenizer")
    return Found(checkpoint, processor, _stored_precision(checkpoint))


def _stored_precision(checkpoint: Checkpoint) -> torch.dtype:
    """What the config says, else the precision of the first weights on disk."""
    said: torch.dtype | None = getattr(checkpoint.config, "dtype", None)
    if said is not None and not (isinstance(said, torch.dtype) and said.is_floating_point):
        raise ModelBroken(
            f"{checkpoint.place.name}: config.json says dtype {said}, which is no precision of weights; "
            "use an intact checkpoint"
        )
    stored = [dtype for kind in checkpoint.weights.kinds.values() for dtype in KINDS if KINDS[dtype] == kind]
    return said or next((dtype for dtype in stored if dtype.is_floating_point), torch.float32)


def on_device(model: Any, device: str) -> PreTrainedModel:
    """The model on a device, ready for inference (`to` of transformers is wrapped beyond what type checkers follow)."""
    model.to(device)
    return model.eval()


def require_usable(model: PreTrainedModel, name: str) -> None:
    """Refuse a head whose outputs nothing here can compare, and weights with NaN or infinite values.

    Weights that are not in memory are left to whoever reads them.
    """
    kinds = [kind.__name__ for kind in type(model).__mro__]
    if not is_bare(model) and not any(kind.endswith(HEADS) for kind in kinds):
        known = ", ".join(sorted({head.removeprefix("For") for head in HEADS}))
        raise UnknownArchitecture(
            f"{name}: {kinds[0]} has a head that is not supported; open it as the bare model, or with one of {known}"
        )
    for key, parameter in model.named_parameters():
        if not parameter.is_meta and not all(bool(torch.isfinite(part).all()) for part in parts(parameter)):
            raise ModelBroken(f"{name}: the weights hold NaN or infinite values ({key}); use an intact checkpoint")


def _processor(place: Place, opening: Opening, kind: str) -> Any:
    """What makes inputs of data, or None when the folder has none (then data must come as token ids)."""
    auto: Any = {IMAGES: AutoImageProcessor, SOUNDS: AutoFeatureExtractor, BOTH: AutoProcessor}.get(kind, AutoTokenizer)
    found = [path.name for pattern in PROCESSOR_FILES for path in place.folder.glob(pattern)]
    if not found:
        return None  # transformers would make up an empty tokenizer
    if kind == SOUNDS and any(not name.endswith("processor_config.json") for name in found):
        auto = AutoProcessor  # with its tokenizer
    require_unchanged(place.folder, *PROCESSOR_FILES, *PROCESSOR_SETTINGS)
    try:
        return auto.from_pretrained(place.folder, trust_remote_code=opening.trust_remote_code)
    except Exception as error:  # from a missing file to a missing package
        raise ModelBroken(f"{place.name}: the {kind} cannot be read: {reason(error)}") from error
