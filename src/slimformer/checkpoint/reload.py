"""Open a checkpoint as a stranger would, and write down what comes out.

    python reload.py FOLDER SAMPLE.safetensors OUTPUTS.safetensors

Run by path in a fresh process. It knows torch, transformers and safetensors, not slimformer: a plain checkpoint must
open by its stock class, a ragged one by its Auto class with `trust_remote_code=True`. Only an architecture that is
slimformer's own, and attention over groups of keys (such a folder opens as the dense model without), are opened with
the package. The outputs file holds what the
model gives for the sample and, in its metadata, a checksum of every weight.
"""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.dynamic_module_utils import get_class_from_dynamic_module

KEYS = ("logits", "start_logits", "end_logits", "last_hidden_state", "logits_per_image")


def open_fresh(folder: Path) -> Any:
    """The model in `folder`, by the class its config names."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    name = config["architectures"][0]
    how = {"dtype": torch.float32} if is_packed(config) else {}  # packed weights cannot be cast later
    if not hasattr(transformers, name):  # an architecture of slimformer's own
        return _own_class(name).from_pretrained(folder, **how)
    if "slimformer_attention" in config:
        from slimformer.nn import long_context

        long_context.enable()
    if "slimformer" not in config:
        return getattr(transformers, name).from_pretrained(folder, **how)
    for auto, reference in config["auto_map"].items():
        if reference.endswith(f".{name}"):
            return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True, **how)
    model_class: Any = get_class_from_dynamic_module(f"modeling_slimformer.{name}", str(folder))
    return model_class.from_pretrained(folder, **how)


def is_packed(config: dict[str, Any]) -> bool:
    """Are weights stored as integers?"""
    return "quantization_config" in config


def _own_class(name: str) -> Any:
    from slimformer.models.registered import registered  # whatever is imported of it, the package teaches Auto classes

    return registered(name)


@torch.no_grad()
def outputs_of(model: nn.Module, sample: dict[str, Tensor]) -> dict[str, Tensor]:
    """Logits, or hidden states where there is no head, on the CPU in float32."""
    training, weight = model.training, next(model.parameters())
    inputs = {name: _as_input(tensor, weight) for name, tensor in sample.items()}
    out = model.eval()(**inputs)
    model.train(training)
    return {key: out[key].float().cpu().contiguous() for key in KEYS if out.get(key) is not None}


def _as_input(tensor: Tensor, weight: Tensor) -> Tensor:
    return tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else tensor.dtype)


def checksums(model: nn.Module, *, single: bool = False) -> dict[str, str]:
    """A checksum of the bytes of every weight; with `single` of what is no integer as float32."""
    tensors = {
        name: tensor.float() if single and tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    return {name: f"{_crc(tensor):08x} {tensor.dtype}" for name, tensor in tensors.items()}


def _crc(tensor: Tensor) -> int:
    return zlib.crc32(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def main(folder: str, sample: str, outputs: str) -> None:
    model = open_fresh(Path(folder))
    weights = checksums(model)
    exact = model if getattr(model.config, "quantization_config", None) else model.float()
    # float32 whatever the weights are: half precision on a CPU is slow, rough, and on some machines not there at all.
    save_file(outputs_of(exact, load_file(sample)), outputs, metadata={"weights": json.dumps(weights)})


if __name__ == "__main__":
    main(*sys.argv[1:])
