"""The sizes of blocks as GGUF says them: one number for all in the architectures of the families, one for each block in
`deci`, the architecture llama.cpp has for models of the LLaMA family whose blocks differ.

`deci` computes what `llama` computes, with head_count, head_count_kv and feed_forward_length as arrays. It knows whole
heads and neurons alone; a block without neurons it would skip, attention and all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from slimformer.errors import CannotExport
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.architecture import Architecture

NAMES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
RAGGED = "deci"
AS_WIDE = ("qwen2",)  # whose heads llama.cpp takes to be as wide together as the model; it is not so once some are cut
WITHOUT_DECI = {"qwen3": "norms of queries and keys"}
WHOLE = {"attention": "cut.attention=heads", "ffn": "cut.ffn=neurons"}


@dataclass(frozen=True)
class BlockSizes:
    """Heads, key/value heads and neurons of every block, and the architecture that can say them."""

    arch: str
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    neurons: tuple[int, ...]
    head_dim: int

    @property
    def ragged(self) -> bool:
        """Do blocks differ, so that the file has a number for each?"""
        return self.arch == RAGGED

    @property
    def permuted(self) -> bool:
        """Are rotary planes neighbours in the file?"""
        return self.arch in ("llama", RAGGED)


def block_sizes(model: PreTrainedModel) -> BlockSizes:
    """What a file says of the blocks of a model of a known type."""
    config: Any = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    blocks = describe(model).blocks
    heads, neurons = [block.heads[0] for block in blocks], [block.neurons[0] for block in blocks]
    narrow = config.model_type in AS_WIDE and heads[0].units * head_dim != config.hidden_size
    return BlockSizes(
        RAGGED if getattr(config, "slimformer", None) or narrow else NAMES[config.model_type],
        tuple(site.units for site in heads), tuple(site.units // max(1, site.group) for site in heads),
        tuple(site.units for site in neurons), head_dim,
    )  # fmt: skip


def require_whole(model: PreTrainedModel) -> None:
    """Refuse blocks that differ in more than whole heads and neurons, each with the setting that keeps it whole."""
    config: Any = model.config
    table = getattr(config, "slimformer", None)
    if not table:
        return
    if reason := WITHOUT_DECI.get(config.model_type):
        raise CannotExport(
            f"the blocks of this {config.model_type} differ in size, and GGUF has {reason} only where they do not; "
            f"compress with {option('format', 'plain')}, or export to onnx or torch"
        )
    if table.get("replaced"):
        raise CannotExport(
            "feed-forward parts of this model were replaced (the step replace), and GGUF has no word for what stands "
            "there; export to onnx or torch"
        )
    if table.get("ends"):
        raise CannotExport(
            "the embedding or the head of this model is of low rank (the step ends), and GGUF knows whole tables "
            "alone; export to onnx or torch"
        )
    if table.get("ranks"):
        _refuse(f"attention is cut by rank in {_blocks(len(table['ranks']))}", WHOLE["attention"])
    if table.get("bypass", {}).get("ranks"):
        _refuse(f"there are linear paths beside the neurons of {_blocks(len(table['bypass']['ranks']))}", WHOLE["ffn"])
    if none := _without_neurons(describe(model)):
        raise CannotExport(
            f"{_blocks(none)} of this model {'has' if none == 1 else 'have'} no neurons left, and llama.cpp leaves out "
            f"such a block, attention and all; compress with a larger budget, or export to onnx or torch"
        )


def _refuse(fact: str, setting: str) -> None:
    raise CannotExport(
        f"{fact}, and GGUF knows whole heads and neurons alone; compress with {option('target', 'llama.cpp')} (or with "
        f"the setting {setting}), or export to onnx or torch"
    )


def _blocks(n: int) -> str:
    return f"{n} block{'' if n == 1 else 's'}"


def _without_neurons(architecture: Architecture) -> int:
    return sum(not site.units for block in architecture.blocks for site in block.neurons)
