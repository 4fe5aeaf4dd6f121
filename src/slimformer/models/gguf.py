"""Models whose weights are in one GGUF file, as those of the demo packages are."""

from __future__ import annotations

import logging
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from slimformer.errors import ModelBroken, ModelNotFound


def load_gguf(folder: str, file: str, dtype: torch.dtype) -> tuple[PreTrainedModel, Any]:
    """Read a GGUF file into an ordinary model: dequantised, and rebuilt so that it can be saved like any other."""
    try:
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    except ImportError as error:
        raise ModelNotFound(f"reading {file} needs two more packages; run: pip install gguf accelerate") from error
    logging.getLogger("transformers.modeling_gguf_pytorch_utils").setLevel(logging.ERROR)
    try:
        with redirect_stderr(StringIO()):  # it draws a progress bar of its own that no setting turns off
            read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file, trust_remote_code=False)
    except Exception as error:  # a torn file fails in many ways, deep inside gguf
        raise ModelBroken(f"{file} in {folder} cannot be read: {' '.join(str(error).split())[:300]}") from error
    return _rebuilt(read, dtype), tokenizer


def _rebuilt(read: Any, dtype: torch.dtype) -> PreTrainedModel:
    """The same weights in a model that has forgotten where they came from, because transformers saves no other."""
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model: Any = type(read)(config)
    model.to(dtype)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.generation_config = read.generation_config
    return model
