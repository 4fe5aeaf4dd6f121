"""Which recordings are meant by a source of data, and whether what is made of them is for this model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.builtin import BUILTIN
from slimformer.calibrate.document import Document
from slimformer.calibrate.documents import SELF, Source
from slimformer.calibrate.own_sounds import SECONDS, own_sounds
from slimformer.calibrate.sounds import extractor_of, read_sounds, require_targets, soundfile
from slimformer.errors import DataUnreadable
from slimformer.models.families import family_of
from slimformer.models.sample_inputs import positions_of

MOST = 200  # recordings that are made where there are none


def recordings_meant(
    source: Source, model: PreTrainedModel, processor: Any, wanted: int, *, samples: int | None, seed: int
) -> list[Document]:
    """The recordings below a folder; made ones, so many positions of them, where the source is `builtin` or `self`."""
    config, rate, writes = model.config, int(extractor_of(processor).sampling_rate), family_of(model.config).reads_pairs
    soundfile()
    if not isinstance(source, str | Path):
        raise DataUnreadable(f"{config.model_type} hears sounds, not text; give a folder of wav or flac files")
    folder = Path(source)
    if folder.is_file():
        raise DataUnreadable(
            f"{source} is a file, and {config.model_type} hears sounds; give a folder of wav or flac files"
        )
    if source in (SELF, BUILTIN) and not folder.is_dir():
        each = config.max_source_positions if writes else positions_of(config, int(SECONDS[0] * rate))
        folder = own_sounds(min(MOST, -(-wanted // max(1, each))), rate=rate, seed=seed)
    recordings = read_sounds(folder, samples=samples, seed=seed)
    if writes:
        require_targets(recordings, model, processor)
    return recordings


def require_audible(inputs: Sequence[dict[str, Tensor]], config: Any) -> None:
    """Refuse features of another model's extractor, and what is no sound of one wave."""
    name = "input_values" if hasattr(config, "conv_stride") else "input_features"
    expected = () if name == "input_values" else (config.num_mel_bins, 2 * config.max_source_positions)
    shapes = {tuple(given[name].shape[1 if expected else 2 :]) for given in inputs if name in given}
    if shapes != {expected}:
        raise DataUnreadable(
            f"the feature extractor does not make the {name} the model reads"
            f"{f' ({expected[0]} × {expected[1]})' if expected else ''}; use the one that belongs to the model"
        )
