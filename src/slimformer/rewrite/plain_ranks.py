"""One rank for all of attention, said in the words of a stock config.

The LLaMA family and ViT know one `head_dim` for queries, keys and values of all blocks. A model cut to r_qk = r_vo = r
in every block is such a model, if these can be said:

    scale         stock scores are divided by √r, ours by the √d of the dense head: W_q ← √(r/d) W_q
    frequencies   stock planes f = 0 … r/2 − 1 turn at b^(−2f/r), not at the θ_f of the planes kept; but `longrope`
                  divides each by a factor of its own, and 1 / (θ_f b^(2f/r)) as short and long factors says any θ_f
    one list      the table of frequencies is one for all blocks and heads, so the planes kept must be, too

Planes of their own for every key head, which plans prefer, cannot be said. Frequencies that follow the length of the
text (`dynamic`, `longrope` itself) are refused, and so are families whose head width is hidden size over heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import PlanDoesNotFit
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.models.architecture import weight_of
from slimformer.models.ranks import heads_of
from slimformer.rewrite import surgery

STATIC = ("default", "linear", "llama3", "yarn")  # kinds of positions whose frequencies never change
NEIGHBOURS = 8  # rounded factors that are tried, to meet a frequency to the last digit


def _is_rotary(architecture: Architecture) -> bool:
    return bool(heads_of(architecture, 0).attention.rotary)


@torch.no_grad()
def become_plain(model: PreTrainedModel, architecture: Architecture, ranks: Mapping[str, Mapping[str, Any]]) -> None:
    """Put stock attention in the place of ours, and state head width and frequencies in the config, in place.

    `ranks` are those of the blocks that are not full. `architecture` is that of the dense model.
    """
    _require_head_dim(model, architecture)
    r, planes = _one_setting(architecture, ranks)
    model.config.head_dim = r
    if _is_rotary(architecture):
        _state_frequencies(model, planes)
    for i in range(architecture.n_blocks):
        _stock(model, heads_of(architecture, i))


def _state_frequencies(model: PreTrainedModel, planes: Sequence[int]) -> None:
    base: Any = model.base_model
    positions = base.rotary_emb
    frequencies = positions.inv_freq.cpu().double()[list(planes)]
    model.config.rope_parameters = _stated(model.config, frequencies, float(positions.attention_scaling))
    base.rotary_emb = type(positions)(config=model.config).to(positions.inv_freq.device)


def _require_head_dim(model: PreTrainedModel, architecture: Architecture) -> None:
    heads = heads_of(architecture, 0)
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type")
    if not heads.attention.plain_heads or hasattr(model.get_submodule(heads.module), "q_norm"):
        raise _unsayable(f"{architecture.model_type} has no word for narrower heads")
    if heads.attention.rotary and kind not in STATIC:
        raise _unsayable(f"positions of type {kind!r} follow the length of the text")


def _one_setting(architecture: Architecture, ranks: Mapping[str, Mapping[str, Any]]) -> tuple[int, list[int]]:
    """The one rank and the one list of planes of all blocks."""
    settings = list(ranks.values())
    first = settings[0]
    same = len(settings) == architecture.n_blocks and all(rank == first for rank in settings)
    planes = first["planes"] or []
    own = any(not isinstance(f, int) for f in planes) or bool(planes) != _is_rotary(architecture)
    if not same or first["qk"] != first["vo"] or not first["qk"] or own:
        raise _unsayable("it has one head width, and one list of rotary planes, for all blocks and heads")
    return int(first["qk"]), [int(f) for f in planes]


def _unsayable(why: str) -> PlanDoesNotFit:
    return PlanDoesNotFit(
        f"attention cut by rank cannot be said in a stock config ({why}); use {option('format', 'ragged')}"
    )


def _stated(config: Any, frequencies: Tensor, scaling: float) -> dict[str, Any]:
    """`rope_parameters` that give these frequencies."""
    theta = config.rope_parameters["rope_theta"]
    factors = _factors(frequencies, theta)
    return {
        "rope_type": "longrope", "rope_theta": theta, "short_factor": factors, "long_factor": factors,
        "factor": 1.0, "attention_factor": scaling,
        "original_max_position_embeddings": config.max_position_embeddings,
    }  # fmt: skip


def _factors(frequencies: Tensor, theta: float) -> list[float]:
    """c with 1 / (c b^(2f/r)) = θ_f as computed in single precision: of some neighbours the one that comes nearest."""
    r = 2 * len(frequencies)
    turns = theta ** (torch.arange(0, r, 2, dtype=torch.int64).float() / r)
    exact = 1 / (frequencies * turns.double())
    steps = torch.arange(-NEIGHBOURS, NEIGHBOURS + 1)[:, None] * torch.finfo(torch.float32).eps / 2
    tried = (exact * (1 + steps)).float()
    off = (1.0 / (tried * turns) - frequencies.float()).abs()
    return [float(c) for c in tried.gather(0, off.argmin(0, keepdim=True))[0]]


def _stock(model: PreTrainedModel, heads: Site) -> None:
    """The stock attention with the projections of ours, its queries scaled to the stock scale."""
    old: Any = model.get_submodule(heads.module)
    stock: Any = type(old).__bases__[1]  # RankAttention, then what it stands in for
    with torch.device("meta"):
        new = stock(model.config, *(() if old.layer_idx is None else (old.layer_idx,)))
    for name, child in old.named_children():
        setattr(new, name, child)
    new.train(old.training)
    query = new.get_submodule(old.names[0])
    scale, bias = old.scaling / new.scaling, getattr(query, "bias", None)
    W = weight_of(query).cpu().double() * scale
    surgery.write(query, W, None if bias is None else bias.detach().cpu().double() * scale)
    model.set_submodule(heads.module, new)
