"""GGUF, the format of llama.cpp, for models of the LLaMA family; where their blocks differ, as `deci` (`gguf_sizes`).

Rotary planes are pairs (f, f + d/2) in Hugging Face models and neighbours (2f, 2f + 1) in `llama` files, so rows of W_q
and W_k change places head by head. Frequencies other than b^(−2f/d) go along as factors. What was written is read back
by transformers and must be the same weights, the same outputs and the same tokens.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import CannotExport
from slimformer.export.gguf_sizes import NAMES, BlockSizes, block_sizes, require_whole
from slimformer.export.vocabulary import Vocabulary, vocabulary
from slimformer.messages.words import option

FILE = "model.gguf"
QUANTS = ("f32", "f16", "q8_0")
IN_BLOCK = re.compile(r"\.layers\.(\d+)\.self_attn\.(q_proj|k_proj)\.")
BLOCK = 32  # numbers that share a scale in Q8_0
STATIC = ("default", "linear", "llama3", "longrope")  # kinds of positions whose frequencies can be written down


@dataclass(frozen=True)
class Written:
    """Weights as the file holds them, rounded, under their names in transformers; what a reader must know."""

    weights: dict[str, Tensor]
    stored: dict[str, int]  # kind of number → tensors stored so
    needs_config: bool
    sizes: BlockSizes


def require_sayable(model: PreTrainedModel, tokenizer: Any, quant: str) -> None:
    """Refuse, in one line, what the format cannot hold."""
    config, kind = model.config, type(model).__name__
    if quant not in QUANTS:
        raise CannotExport(f"{option('quant', quant)} is not known; choose from {', '.join(QUANTS)}")
    if importlib.util.find_spec("gguf") is None:
        raise CannotExport("GGUF needs the package gguf; run: pip install 'slimformer[gguf]'")
    if config.model_type not in NAMES or not kind.endswith("ForCausalLM"):
        known = ", ".join(NAMES)
        raise CannotExport(f"GGUF is for language models of the types {known}, this is {kind}; export to onnx or torch")
    require_whole(model)
    if tokenizer is None:
        raise CannotExport("GGUF holds the tokenizer, too, and this model has none; put tokenizer.json into its folder")
    if config.hidden_act != "silu":
        raise CannotExport(f"GGUF has silu in these models, this one has {config.hidden_act}; export to onnx or torch")
    rotary = rope_factors(model)
    if rotary is not None and not block_sizes(model).permuted:
        raise CannotExport(
            f"GGUF has no place for the frequencies of this {config.model_type}; export to onnx or torch"
        )


def rope_factors(model: PreTrainedModel) -> Tensor | None:
    """By what the customary frequencies b^(−2f/d) are divided; None where they are the customary ones."""
    rotary: Any = model.get_submodule("model.rotary_emb")
    rope = model.config.rope_parameters
    lengths = [rope.get(name) for name in ("short_factor", "long_factor")]
    kind = rope.get("rope_type", "default")
    moving = kind not in STATIC or lengths[0] != lengths[1]
    if moving or not math.isclose(float(getattr(rotary, "attention_scaling", 1.0)), 1.0, rel_tol=1e-6):
        raise CannotExport(f"positions of kind {kind} cannot be written to GGUF; export to onnx or torch")
    actual = rotary.inv_freq.detach().cpu().double()
    usual = rope["rope_theta"] ** (-torch.arange(len(actual), dtype=torch.double) / len(actual))
    factors = usual / actual
    return None if torch.allclose(factors, torch.ones_like(factors), rtol=1e-5) else factors.float()


@torch.no_grad()
def write_gguf(model: PreTrainedModel, tokenizer: Any, folder: Path, *, quant: str = "f16", name: str = "") -> Written:
    """Write `model.gguf`. Norms, biases and rows no block of 32 fits stay f32 (f16 with q8_0). Cost: one copy."""
    import gguf

    require_sayable(model, tokenizer, quant)
    config, sizes = model.config, block_sizes(model)
    writer = gguf.GGUFWriter(str(folder / FILE), sizes.arch)
    _write_sizes(writer, model, sizes, name)
    write_vocabulary(writer, vocabulary(tokenizer, config.vocab_size))
    kinds = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}
    writer.add_file_type(int(kinds.get(quant, gguf.LlamaFileType.MOSTLY_Q8_0)))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    factors = rope_factors(model)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    rounded, stored = {}, dict.fromkeys(QUANTS, 0)
    for key, target, array in _tensors(model, sizes):
        chosen = _number(array, quant)
        data, kind = _packed(array, chosen)
        writer.add_tensor(target, data, raw_dtype=kind)
        rounded[key], stored[chosen] = (
            unpermuted(gguf.quants.dequantize(data, kind), heads_of(key, sizes)),
            stored[chosen] + 1,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Written(rounded, stored, not sizes.ragged and _reader_forgets(config, factors), sizes)


def _tensors(model: PreTrainedModel, sizes: BlockSizes) -> Iterator[tuple[str, str, np.ndarray]]:
    """Every weight once: its name here, its name there, and its numbers in the order of the file."""
    names = names_in_file(model, sizes)
    tied = model.config.tie_word_embeddings
    for key, tensor in model.state_dict().items():
        if tied and key == "lm_head.weight":
            continue
        target = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise CannotExport(f"GGUF has no name for {key} of this model; export to onnx or torch")
        array, heads = tensor.detach().cpu().float().numpy(), heads_of(key, sizes)
        if array.size:  # a block may have lost all of its heads
            yield key, target, permuted(array, heads) if heads else array


def names_in_file(model: PreTrainedModel, sizes: BlockSizes) -> Any:
    """From the name of a weight in transformers to its name in a file."""
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    return gguf.get_tensor_name_map(kinds[sizes.arch], model.config.num_hidden_layers)


def permuted(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of every head from (f, f + d/2) apart to side by side."""
    return array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def unpermuted(array: np.ndarray, heads: int | None) -> Tensor:
    """Rows of every head in the order of transformers again."""
    if heads:
        array = array.reshape(heads, -1, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
    return torch.from_numpy(np.array(array, dtype=np.float32))


def heads_of(key: str, sizes: BlockSizes) -> int | None:
    """How many heads a weight holds, where its rows change places."""
    if not sizes.permuted or (match := IN_BLOCK.search(key)) is None:
        return None
    counts = {"q_proj": sizes.heads, "k_proj": sizes.kv_heads}
    return counts[match[2]][int(match[1])] or None


def _number(array: np.ndarray, quant: str) -> str:
    """Kind of number a tensor is stored in: vectors whole, rows that are no whole blocks in half precision."""
    if array.ndim < 2:
        return "f32"
    return "f16" if quant == "q8_0" and array.shape[-1] % BLOCK else quant


def _packed(array: np.ndarray, number: str) -> tuple[np.ndarray, Any]:
    import gguf

    kinds = gguf.GGMLQuantizationType
    kind = {"f32": kinds.F32, "f16": kinds.F16, "q8_0": kinds.Q8_0}[number]
    return gguf.quants.quantize(np.ascontiguousarray(array), kind), kind


def _write_sizes(writer: Any, model: PreTrainedModel, sizes: BlockSizes, name: str) -> None:
    config = model.config
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    writer.add_name(f"{name or config.model_type} (slimformer)")  # transformers takes "mistral" alone for a type
    # Within the window nothing slides, so there the outputs are those of full attention.
    writer.add_context_length(min(config.max_position_embeddings, window))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    counts = (sizes.neurons, sizes.heads, sizes.kv_heads)
    neurons, heads, kv_heads = counts if sizes.ragged else (each[0] for each in counts)
    writer.add_feed_forward_length(neurons)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def write_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    """All of a tokenizer, as metadata of a file."""
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    if vocabulary.scores is not None:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges is not None:
        writer.add_token_merges(vocabulary.merges)
    roles = {
        "bos": writer.add_bos_token_id, "eos": writer.add_eos_token_id, "unk": writer.add_unk_token_id,
        "pad": writer.add_pad_token_id,
    }  # fmt: skip
    for role, number in (vocabulary.special or {}).items():
        roles[role](number)
    writer.add_add_bos_token(vocabulary.add_bos)
    writer.add_add_space_prefix(vocabulary.space_first)
    if isinstance(vocabulary.chat_template, str):
        writer.add_chat_template(vocabulary.chat_template)


def _reader_forgets(config: Any, factors: Tensor | None) -> bool:
    """Is there something in the file that transformers does not read, so that it has to be given the config?"""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    customary = 128 if config.model_type == "qwen3" else config.hidden_size // config.num_attention_heads
    lost = config.model_type in ("qwen2", "qwen3") and head_dim != customary
    biased = getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False)
    return bool(lost or biased or factors is not None)
