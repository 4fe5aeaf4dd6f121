"""Open a checkpoint, plain or ragged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from slimformer.errors import ModelBroken, ModelNotFound, SlimformerError
from slimformer.models.load import read_config
from slimformer.models.packed import is_packed, open_packed, require_readable
from slimformer.models.registered import class_of
from slimformer.nn import ragged


def load(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> PreTrainedModel:
    """The model in `folder` (or behind a hub id), with the head it was saved with, ready for inference.

    `dtype` is the precision to hold it in; without it the one it is stored in.
    """
    ragged.enable()
    where = _local(folder)
    model_class = _model_class(where)
    try:
        with _without_load_report():
            model, found = _opened(model_class, where, dtype)
    except SlimformerError:
        raise
    except SafetensorError as error:
        raise ModelBroken(
            f"{folder}: the weights are damaged or incomplete ({error}); copy or save it again"
        ) from error
    except Exception as error:  # each field of a config, each shape and each byte has its own way to be wrong
        raise ModelBroken(f"{folder}: the model cannot be opened: {_in_one_line(error)}") from error
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        raise ModelBroken(
            f"{folder}: {len(missing)} weights are missing, the first is {missing[0]}; copy or save it again"
        )
    return model.to(device).eval()


def _opened(model_class: Any, where: Path, dtype: torch.dtype | None) -> tuple[Any, dict[str, Any]]:
    """The model and what transformers says of loading it; weights in fewer bits are unpacked here."""
    config = AutoConfig.from_pretrained(where, trust_remote_code=False)
    require_readable(config, where)
    if is_packed(config):
        return open_packed(model_class, where, config, dtype)
    found: tuple[Any, dict[str, Any]] = model_class.from_pretrained(
        where, dtype=dtype or "auto", output_loading_info=True
    )
    return found


def _local(folder: str | Path) -> Path:
    """The folder itself, or a local copy of what the hub has under that name."""
    where = Path(folder)
    if where.is_dir():
        return where
    if where.exists():
        raise ModelNotFound(f"{str(folder)!r} is a file; give the folder it is in")
    if isinstance(folder, Path) or folder.startswith((".", "/", "~")) or folder.count("/") > 1:
        raise ModelNotFound(f"there is no folder {str(folder)!r}")
    try:
        return Path(snapshot_download(folder))
    except (OSError, ValueError) as error:
        raise ModelNotFound(f"{folder!r} is neither a folder here nor a model the hub gives; check the name") from error


def _model_class(where: Path) -> Any:
    """The class the checkpoint was saved from; the bare model when its config names none."""
    if (where / "cascade.json").is_file():
        raise ModelNotFound(
            f"{str(where)!r} is a cascade of two models; open it with slimformer.load_cascade, or one of them alone "
            "(its small/ or large/)"
        )
    return class_of(read_config(where, where / "config.json").get("architectures"), where)


@contextmanager
def _without_load_report() -> Iterator[None]:
    """transformers prints a table of what does not fit; here that is an error of one line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _in_one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    if "ignore_mismatched_sizes" in text:
        return "the weights do not have the sizes config.json states; copy or save it again"
    return text[:300] or type(error).__name__
