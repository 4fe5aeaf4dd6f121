"""From a model in memory to a folder that opens like any other.

A folder holds config, weights (safetensors), tokenizer or image processor, `plan.json`, `report.json`, its page
`report.html` and the model card. A ragged one also holds `modeling_slimformer.py`, which is `nn/ragged.py` itself. A
sentence-transformers folder keeps what makes it one. Nothing appears under the final name before a fresh process has
reloaded it to the same outputs.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging

from slimformer.checkpoint.atomic import writing
from slimformer.checkpoint.foreign import strip_foreign_code
from slimformer.checkpoint.sentence import sentence_modules
from slimformer.checkpoint.verify import verify as verify_reload
from slimformer.errors import SaveFailed
from slimformer.nn.travelling import write_code

LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*", "USE_POLICY*")
SENTENCE_FILES = ("modules.json", "config_sentence_transformers.json", "sentence_*_config.json")
OTHERS = shutil.ignore_patterns("*.onnx", "*.h5", "*.ot", "*.msgpack", "openvino*", "*.py")


@dataclass(frozen=True)
class Belongings:
    """What goes into a folder with the weights: tokenizer or image processor, texts by file name, and what is copied
    from `source_folder`, where the dense model came from: licences and the parts of a sentence-transformers model."""

    processor: Any = None
    source_folder: Path | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, bytes] = field(default_factory=dict)  # files of modules that were not there before


ALONE = Belongings()


def save(
    model: PreTrainedModel,
    folder: str | Path,
    belongings: Belongings = ALONE,
    *,
    packed: PreTrainedModel | None = None,
    force: bool = False,
    verify: bool = True,
) -> None:
    """Write `model` to `folder`, whole or not at all.

    `packed` is written in place of `model`: the same weights, in fewer bits. With `verify` a fresh process reloads it.
    """
    with writing(Path(folder), "checkpoint", force=force) as partial:
        write_model(model if packed is None else packed, partial)
        write_belongings(partial, belongings.processor, belongings.source_folder)
        for name, content in belongings.parts.items():
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
        write_texts(partial, belongings.texts)
        if verify:
            verify_reload(model, partial, packed)


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Files of text, by name."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def write_model(model: PreTrainedModel, folder: Path) -> None:
    """Config, generation config and weights."""
    generation = getattr(model, "generation_config", None) if model.can_generate() else None
    try:
        if generation is not None:
            model.generation_config = GenerationConfig()
        with _no_progress_bar():
            model.save_pretrained(folder)
    except (ValueError, StrictDataclassError) as error:
        raise SaveFailed(f"transformers refuses to save this model: {' '.join(str(error).split())}") from error
    finally:
        if generation is not None:
            model.generation_config = generation
    if generation is not None:  # written as it is: published models hold settings that save_pretrained would refuse
        generation.to_json_file(folder / "generation_config.json", keys_to_pop=["compile_config"])


def write_belongings(folder: Path, processor: Any, source: Path | None, *, parts: bool = True) -> None:
    """What belongs to a model whose config is written: its tokenizer or image processor, licences, with `parts` those
    of a sentence-transformers model; and the file that builds a ragged one. No code of others.
    """
    if processor is not None:
        processor.save_pretrained(folder)
    if source is not None:
        (copy_companions if parts else copy_files)(Path(source), folder)
    strip_foreign_code(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "slimformer" in config and "auto_map" in config:
        write_code(folder, config["slimformer"])


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def copy_companions(source: Path, folder: Path) -> None:
    """Licences, and what makes a folder a sentence-transformers model: its list of modules and their folders."""
    modules = sentence_modules(source)
    for path in (str(module["path"]) for module in modules[1:]):
        if (source / path).is_dir():
            shutil.copytree(source / path, folder / path, ignore=OTHERS, dirs_exist_ok=True)
        else:
            (folder / path).mkdir(parents=True, exist_ok=True)  # Normalize has an empty folder, which archives forget
    copy_files(source, folder, LICENCES + (SENTENCE_FILES if modules else ()))


def copy_files(source: Path, folder: Path, patterns: Sequence[str] = LICENCES) -> None:
    """The files of a folder that fit a pattern; the licences, unless told otherwise."""
    for pattern in patterns:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copyfile(file, folder / file.name)
