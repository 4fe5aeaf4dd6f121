"""A model's portrait as plain numbers: from its weights, and from data that flow through it. JSON, ready to print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.inspect.activations import BlockActivations, StreamSpectrum, observe, significant
from slimformer.inspect.attention import attention_spectra
from slimformer.inspect.compressibility import compressibility
from slimformer.inspect.heads import head_factors
from slimformer.inspect.linearity import linearity
from slimformer.inspect.weights import BlockWeights, block_weights, score_map
from slimformer.linalg.score_forms import ScoreForms, null_forms, score_forms
from slimformer.linalg.symmetry import shared_basis
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture
from slimformer.models.ranks import heads_of


def nothing(*_args: Any, **_kwargs: Any) -> list[dict[str, Any]]:
    """Of models whose blocks have several attentions: spectra are of one."""
    return []


def weights_portrait(
    model: PreTrainedModel, architecture: Architecture, *, values: bool = False, progress: Progress = silent
) -> list[dict[str, Any]]:
    """Block by block: compressibility, asymmetry of heads, magnitudes; with `values` the spectra and maps too."""
    blocks = []
    for weights in block_weights(model, architecture):
        block = compressibility(weights, architecture.hidden).to_json()
        block["symmetry"] = {name: _rounded(x) for name, x in vars(weights.symmetry).items()}
        block["rms"] = {name: float(f"{x:.5g}") for name, x in weights.rms.items()}
        block["norms"] = {name: significant(getattr(weights, name).norm(dim=1)) for name in ("qk", "vo")}
        if values:
            block["values"] = _spectra(weights)
            block["qk_map"] = [significant(row, 3) for row in score_map(model, architecture, weights.block)]
        blocks.append(block)
        progress("weights", weights.block + 1, architecture.n_blocks)
    return blocks


def data_portrait(
    model: PreTrainedModel,
    architecture: Architecture,
    splits: Mapping[str, Sequence[Batch]],
    rows: Mapping[int, Sequence[Batch]],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Activations and symmetric scores over the fit split; attention over sequences of one length each, by that length.

    How linear feed-forward parts are is measured on the report split.
    """
    batches, held = splits["fit"], splits["report"]
    streams = [_streams(model, architecture, block) for block in observe(model, architecture, batches, progress)]
    for block, linear in zip(streams, linearity(model, architecture, batches, held, progress), strict=True):
        block["mlp_linear"] = linear.to_json()
    attention = [
        {
            "length": length,
            "sequences": len(part),
            "blocks": [b.to_json() for b in attention_spectra(model, architecture, part, seed=seed, progress=progress)],
        }
        for length, part in rows.items()
    ]
    return {"activations": streams, "attention": attention}


def _streams(model: PreTrainedModel, architecture: Architecture, block: BlockActivations) -> dict[str, Any]:
    spectra = {name: StreamSpectrum.of(moments).to_json() for name, moments in block.moments.items() if moments.width}
    entered = block.moments.get("attention in")
    forms: dict[str, Any] = {}
    if entered is not None:
        factors = head_factors(model, architecture, block.block)
        T, m = shared_basis(entered.second(centred=False), entered.second(centred=True))
        forms = _forms(score_forms(factors.W_q.cpu(), factors.W_k.cpu(), T, m))
        h, rank, _ = factors.W_q.shape
        forms["null"] = _forms(null_forms(h, rank, T, m))
        forms["distance"] = 0 if heads_of(architecture, block.block).attention.rotary else None
    errors = forms.get("symmetric", [])
    return {"block": block.block, "streams": spectra, "symmetry_on_data": errors, "score_forms": forms}


def _forms(errors: ScoreForms) -> dict[str, Any]:
    by_head = {"symmetric": _rounded(errors.symmetric), "half_rank": _rounded(errors.half_rank)}
    return {**by_head, "one_for_all": round(errors.one_for_all, 4)}


def _spectra(weights: BlockWeights) -> dict[str, Any]:
    heads = {name: [significant(row) for row in getattr(weights, name)] for name in ("qk", "vo")}
    return heads | {name: significant(row) for name, row in weights.ffn.items()}


def _rounded(values: Tensor) -> list[float]:
    return [round(x, 4) for x in torch.as_tensor(values).tolist()]
