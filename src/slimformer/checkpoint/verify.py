"""Proof that a checkpoint is what it should be: a fresh process opens it and must see the same weights and outputs."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.checkpoint import reload
from slimformer.checkpoint.fresh import run_fresh
from slimformer.errors import SaveFailed
from slimformer.models import family_of
from slimformer.models.sample_inputs import seen_or_heard, vocabulary_size, with_others

RTOL = {torch.float32: 1e-4, torch.float64: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
N_TOKENS = 16


def verify(model: PreTrainedModel, folder: Path, packed: PreTrainedModel | None = None) -> None:
    """Refuse (`SaveFailed`) a folder that does not reload to the weights and outputs of `model`.

    Where weights were stored in fewer bits, `packed` is what the file holds; outputs are still those of `model`.

    Cost: starting Python with transformers, one load, one forward pass on the CPU.
    """
    sample = default_sample(model)
    exact = in_float32(model)
    expected = reload.outputs_of(exact, sample)
    if not all(bool(torch.isfinite(tensor).all()) for tensor in expected.values()):
        raise SaveFailed(f"the model gives NaN or infinite outputs as {model.dtype}; save it in float32")
    actual, weights = _reload(folder, sample)
    opened = model if packed is None or packed.config.quantization_config.get("dequantize") else packed
    _compare_weights(reload.checksums(opened, single=packed is not None), weights)
    _compare_outputs(expected, actual, RTOL.get(exact.dtype, 5e-2))


def in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """A copy in float32 of what is in half precision; on a graphics card, where room is short, the model itself.

    It is built anew, not cast: casting a model to half precision rounds its rotary angles, too, which no file holds.
    """
    if model.dtype not in {torch.float16, torch.bfloat16} or model.device.type != "cpu":
        return model
    exact: Any = type(model)(copy.deepcopy(model.config))
    exact.float().load_state_dict(model.state_dict())
    return exact.eval()


def default_sample(model: PreTrainedModel) -> dict[str, Tensor]:
    """One seeded sequence of random tokens, one random image or one random sound."""
    generator, config = torch.Generator().manual_seed(0), model.config
    if sample := seen_or_heard(model, 1, N_TOKENS, generator):
        return with_others(model, sample, generator, N_TOKENS - 3)
    groups = getattr(config, "slimformer_attention", None) or {}
    wanted = 2 * (groups.get("k", 0) + groups.get("window", 0)) or N_TOKENS  # fewer would not be grouped at all
    wanted = min(wanted, groups.get("length", wanted))
    length = min(wanted, getattr(config, "max_position_embeddings", wanted) - 2)
    rows = 2 if family_of(config).towers else 1  # an image is compared with several texts
    ids = torch.randint(vocabulary_size(config), (rows, max(1, length)), generator=generator)
    sample = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return with_others(model, sample, generator, max(1, length - 3))


def _reload(folder: Path, sample: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Outputs and checksums of the weights, as a fresh process sees them."""
    with tempfile.TemporaryDirectory(prefix="slimformer-verify-") as scratch:
        inputs, outputs = Path(scratch) / "sample.safetensors", Path(scratch) / "outputs.safetensors"
        save_file({name: tensor.cpu().contiguous() for name, tensor in sample.items()}, inputs)
        if wrong := run_fresh(reload.__file__, folder, inputs, outputs, **_offline(scratch)):
            raise SaveFailed(f"the saved model does not open in a fresh process: {wrong}")
        with safe_open(outputs, framework="pt") as file:
            results = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return results, json.loads(file.metadata()["weights"])


def _offline(scratch: str) -> dict[str, str]:
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(Path(scratch) / "modules"),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }


def _compare_weights(expected: dict[str, str], actual: dict[str, str]) -> None:
    wrong = sorted(name for name in expected.keys() | actual.keys() if expected.get(name) != actual.get(name))
    if wrong:
        others = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise SaveFailed(f"the saved model reloads with other weights than it was saved with: {wrong[0]}{others}")


def _compare_outputs(expected: dict[str, Tensor], actual: dict[str, Tensor], rtol: float) -> None:
    for key, tensor in expected.items():
        if key not in actual or actual[key].shape != tensor.shape:
            raise SaveFailed(f"the saved model reloads to outputs of another shape: {key}")
        scale = max(1.0, float(tensor.abs().max()))
        worst = float((actual[key] - tensor).abs().max())
        if not worst <= rtol * scale:
            raise SaveFailed(
                f"the saved model reloads to other outputs: {key} differs by {worst:.2g} (its scale is {scale:.2g})"
            )
