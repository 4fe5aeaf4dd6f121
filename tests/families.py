"""Tiny random models of every supported type, their data, and smaller copies of them.

Weights are drawn so that activations are neither dead nor saturated, biases and norms are not at their defaults, and
everything is the same in every run. Nothing here needs a network.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    ViTImageProcessor,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Processor,
    WhisperFeatureExtractor,
    WhisperProcessor,
)

from slimformer.calibrate.collect import collect
from slimformer.calibrate.pairs import targets_of
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.reload import checksums
from slimformer.decompose import Curve
from slimformer.models import FAMILIES, Architecture, describe
from slimformer.models.architecture import weight_of
from slimformer.models.family import AttentionPart, Family, FeedForwardPart
from slimformer.models.registered import class_named
from slimformer.models.sample_inputs import samples_of, seen_or_heard, with_others
from slimformer.plan import Budget, Plan, Terms, allocate
from slimformer.plan.profile import site_curves
from slimformer.recipe import cut_settings
from slimformer.rewrite.apply import apply

VOCABULARY, LENGTH, CLASSES = 64, 16, 5
# Laws of every method run over one type of each kind; `TYPES=phi3,gemma2` runs them over others, and
# tests/test_types.py runs a few laws over all others: a tiny Mistral is a tiny LLaMA, and a RoBERTa a BERT but for its
# positions.
CORE = ("bert", "distilbert", "gpt2", "llama", "qwen2", "qwen3", "opt", "vit", "minimal")
MODEL_TYPES = tuple(os.environ["TYPES"].split(",")) if os.environ.get("TYPES") else CORE
RUN_AGAIN = ("albert",)  # one block, run many times: what it is given depends on what was cut of it
OWN_TYPES = ("minimal",)  # architectures of the package itself: nobody opens them without it
STOCK_TYPES = tuple(name for name in MODEL_TYPES if name not in OWN_TYPES)

_BERT = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "max_position_embeddings": 64, "vocab_size": VOCABULARY}
_TEXT = {"vocab_size": VOCABULARY, "max_position_embeddings": 64}
SIZES: dict[str, dict[str, Any]] = {
    "bert": {**_BERT, **_TEXT},
    "roberta": {**_BERT, **_TEXT, "pad_token_id": 1},
    "distilbert": {**_TEXT, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48},
    "opt": {
        **_TEXT, "hidden_size": 32, "word_embed_proj_dim": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
        "ffn_dim": 48,
    },
    "gpt2": {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 48},
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": {**_LLAMA, "head_dim": 8},
    "xlm-roberta": {**_BERT, **_TEXT, "pad_token_id": 1},
    "camembert": {**_BERT, **_TEXT, "pad_token_id": 1},
    "electra": {**_BERT, **_TEXT, "embedding_size": 16},
    "mpnet": {**_BERT, **_TEXT, "pad_token_id": 1},
    "modernbert": {**_BERT, **_TEXT, "local_attention": 8, "global_attn_every_n_layers": 2},
    "phi3": {**_LLAMA, "attention_dropout": 0.0},
    "granite": {**_LLAMA, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "embedding_multiplier": 3.0},
    "smollm3": {**_LLAMA, "no_rope_layer_interval": 2},
    "olmo2": _LLAMA,
    "gpt_neox": {**_BERT, **_TEXT, "rope_parameters": {"rope_theta": 1e4, "rope_type": "default",
                                                        "partial_rotary_factor": 0.5}},
    "gemma2": {**_LLAMA, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 16},
    "gemma3_text": {**_LLAMA, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 16,
                    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "deit": {**_BERT, "image_size": 16, "patch_size": 4, "num_labels": CLASSES},
    "dinov2": {**_BERT, "image_size": 16, "patch_size": 4, "num_labels": CLASSES, "mlp_ratio": 2},
    "deberta-v2": {**_BERT, **_TEXT, "intermediate_size": 64, "relative_attention": True, "position_buckets": 4,
                   "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm",
                   "hidden_dropout_prob": 0.0},
    "nomic_bert": {**_BERT, **_TEXT},
    "albert": {**_BERT, **_TEXT, "embedding_size": 16},
    "clip_text_model": {**_BERT, **_TEXT},
    "clip_vision_model": {**_BERT, "image_size": 16, "patch_size": 4},
    "siglip_vision_model": {**_BERT, "image_size": 16, "patch_size": 4},
    "vit": {**_BERT, "image_size": 16, "patch_size": 4, "num_labels": CLASSES},
    "minimal": {**_BERT, "image_size": 16, "patch_size": 4, "num_channels": 3, "num_labels": CLASSES},
    "bart": {
        **_TEXT, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "dropout": 0.0,
        "decoder_start_token_id": 2, "forced_eos_token_id": None,
    },
    "t5": {
        "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 3,
        "num_heads": 4, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
        "dropout_rate": 0.0, "pad_token_id": 1, "decoder_start_token_id": 1,
    },
}  # fmt: skip
_EXPERTS = {**_LLAMA, "num_experts": 4, "num_experts_per_tok": 2}
SIZES["mixtral"] = _EXPERTS
SIZES["qwen3_moe"] = {**_EXPERTS, "head_dim": 8, "moe_intermediate_size": 48, "norm_topk_prob": True}
_SOUND = {**_BERT, "vocab_size": VOCABULARY, "conv_dim": [8, 8], "conv_kernel": [4, 3], "conv_stride": [4, 2],
          "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16}  # fmt: skip
for _kind in ("clip", "siglip"):
    SIZES[_kind] = {
        "text_config": {**SIZES["clip_text_model"], "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
        "vision_config": SIZES["clip_vision_model"],
    }
SIZES["wav2vec2"] = {**_SOUND, "feat_extract_norm": "group"}  # as the base models: norms after, padding not masked
SIZES["hubert"] = {**_SOUND, "feat_extract_norm": "layer", "do_stable_layer_norm": True}  # as the large ones
SIZES["whisper"] = {
    **{name: value for name, value in SIZES["bart"].items() if name != "max_position_embeddings"},
    "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 64, "begin_suppress_tokens": None,
}  # fmt: skip
SIZES["mt5"] = {**SIZES["t5"], "feed_forward_proj": "gated-gelu"}
_STEM = {
    "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "opt": "OPT", "gpt2": "GPT2",
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "vit": "ViT",
    "minimal": "Minimal", "xlm-roberta": "XLMRoberta", "camembert": "Camembert", "electra": "Electra", "mpnet": "MPNet",
    "modernbert": "ModernBert", "phi3": "Phi3", "granite": "Granite", "smollm3": "SmolLM3", "olmo2": "Olmo2",
    "gpt_neox": "GPTNeoX", "gemma2": "Gemma2", "gemma3_text": "Gemma3", "deit": "DeiT", "dinov2": "Dinov2",
    "bart": "Bart", "t5": "T5", "mt5": "MT5",
    "deberta-v2": "DebertaV2", "nomic_bert": "NomicBert", "albert": "Albert",
    "clip_text_model": "CLIPText", "clip_vision_model": "CLIPVision", "siglip_vision_model": "SiglipVision",
    "clip": "CLIP", "siglip": "Siglip", "wav2vec2": "Wav2Vec2", "hubert": "Hubert", "whisper": "Whisper",
    "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe",
}  # fmt: skip
_SUFFIX = {
    "bare": "Model",
    "causal": "ForCausalLM",
    "masked": "ForMaskedLM",
    "classify": "ForSequenceClassification",
    "answer": "ForQuestionAnswering",
    "write": "ForConditionalGeneration",
    "spell": "ForCTC",
}


LACKING = {
    *((model_type, "answer") for model_type in ("phi3", "granite", "olmo2", "gemma2", "gemma3_text")),
    ("granite", "classify"),
    ("nomic_bert", "answer"),
    *(("clip_text_model", head) for head in ("masked", "classify", "answer")),
    ("clip_vision_model", "classify"),
    ("siglip_vision_model", "classify"),
}


def heads(model_type: str) -> tuple[str, ...]:
    """The heads a family has, the customary one first."""
    family = FAMILIES[model_type]
    if family.reads_pairs:
        return ("write", "bare")
    if family.towers:
        return ("bare",)
    if family.sound:
        return ("spell", "bare", "classify")
    text = ("causal" if family.causal else "masked", "bare", "classify", "answer")
    usual = ("classify", "bare") if family.image else text
    return tuple(head for head in usual if (model_type, head) not in LACKING)


# Every family once and every head it can have somewhere, for laws of what lies below the head.
HEADS = (
    *((model_type, heads(model_type)[i % len(heads(model_type))]) for i, model_type in enumerate(MODEL_TYPES)),
    ("bert", "answer"),
)


def model_class(model_type: str, head: str, family: Family | None = None) -> Any:
    """The stock class of a family and a head."""
    name = _STEM[model_type] + _SUFFIX[head]
    if (family or FAMILIES[model_type]).image:
        name = name.replace("ForSequence", "ForImage")
    return class_named(RENAMED.get(name, name))


RENAMED = {
    "GPT2ForCausalLM": "GPT2LMHeadModel",
    "Gemma3Model": "Gemma3TextModel",
    "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
}


def tiny(
    model_type: str, head: str | None = None, *, seed: int = 0, family: Family | None = None, **sizes: Any
) -> PreTrainedModel:
    """A random model of three blocks, width 32 and four heads (two key/value heads where the family groups them)."""
    kind = model_class(model_type, head or heads(model_type)[0], family)
    labels = {"num_labels": 2 if head == "answer" else CLASSES}
    special = (
        {} if (family or FAMILIES[model_type]).image else {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    )
    config = kind.config_class(**{**labels, **special, **SIZES[model_type], **sizes})
    return _filled(kind(config), seed).eval()


@torch.no_grad()
def _filled(model: PreTrainedModel, seed: int) -> PreTrainedModel:
    generator = torch.Generator().manual_seed(seed)
    norms = {id(m.weight) for m in model.modules() if "Norm" in type(m).__name__ and hasattr(m, "weight")}
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for name, parameter in ((name, each) for name, each in model.named_parameters() if each.numel()):
        noise = torch.randn(parameter.shape, generator=generator)
        if id(parameter) in norms:
            parameter.copy_(1 + 0.1 * noise)
        elif id(parameter) in tables or parameter.dim() <= 1:
            parameter.copy_(0.3 * noise)
        else:
            read = parameter.shape[-1] if ".experts." in name else parameter[0].numel()  # experts × outputs × inputs
            parameter.copy_(noise / read**0.5)
    return model


def tiny_batches(
    model: PreTrainedModel, n: int = 3, *, rows: int = 8, length: int = LENGTH, seed: int = 0
) -> list[Batch]:
    """Random data for `model`: padded rows for text encoders, full windows for decoders, images for ViT."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return [_batch(model, rows, length, generator) for _ in range(n)]


def _batch(model: PreTrainedModel, rows: int, length: int, generator: torch.Generator) -> Batch:
    family = FAMILIES[model.config.model_type]
    inputs = seen_or_heard(model, rows, length, generator)
    if family.image:
        return Batch(inputs, None)
    if family.unit == "positions":
        return _waves(model, inputs, length, generator)
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=generator)
    mask = torch.ones(rows, length, dtype=torch.bool)
    if not family.causal:
        mask = torch.arange(length) < torch.randint(length // 2, length + 1, (rows, 1), generator=generator)
        ids = ids.where(mask, torch.tensor(1 if family.towers else model.config.pad_token_id))
    inputs = inputs or {"input_ids": ids, "attention_mask": mask.long()}
    if family.towers:
        return Batch(with_others(model, inputs, generator, length), None)
    if not family.reads_pairs:
        return Batch(inputs, mask)
    lengths = torch.randint(length // 4, length // 2, (rows,), generator=generator).tolist()  # shorter than sources
    said = [torch.randint(5, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]
    decoder_ids, targets, real = targets_of(said, model.config)
    return Batch({**inputs, "decoder_input_ids": decoder_ids}, real, targets=targets)


def _waves(model: PreTrainedModel, inputs: dict[str, Tensor], length: int, generator: torch.Generator) -> Batch:
    """Sounds of many lengths where the model masks padding; else of one."""
    rows, samples = inputs["input_values"].shape
    if model.config.feat_extract_norm == "group":
        return Batch(inputs, torch.ones(rows, length, dtype=torch.bool))
    lengths = torch.randint(length // 2, length + 1, (rows, 1), generator=generator)
    heard = torch.arange(samples) < torch.tensor([[samples_of(model.config, int(n))] for n in lengths])
    return Batch(
        {"input_values": inputs["input_values"] * heard, "attention_mask": heard.long()}, torch.arange(length) < lengths
    )


def tiny_plan(
    model: PreTrainedModel,
    macs: float = 0.5,
    *,
    format: str = "ragged",
    recipe: str = "uniform",
    weights: Any = None,
    rows: int = 8,
) -> tuple[Plan, PreTrainedModel]:
    """A plan for `model` and the smaller model it leads to; the same again for the same model, without the work."""
    key = (fingerprint(model), macs, format, recipe, repr(weights), rows)
    if key not in _PLANNED:
        _PLANNED[key] = _planned(model, macs, format, recipe, weights, rows)
    plan, small = _PLANNED[key]
    return plan, copy.deepcopy(small)


_PLANNED: dict[tuple[Any, ...], tuple[Plan, PreTrainedModel]] = {}


def fingerprint(model: PreTrainedModel) -> tuple[Any, ...]:
    """What two models have in common that do the same in the same place."""
    said = (model.config._attn_implementation, model.config.to_json_string(use_diff=False))
    return type(model), model.device, *said, *checksums(model).items()


def _planned(
    model: PreTrainedModel, macs: float, format: str, recipe: str, weights: Any, rows: int
) -> tuple[Plan, PreTrainedModel]:
    how, architecture = cut_settings(recipe), describe(model)
    data = {"fit": tiny_batches(model, rows=rows), "select": tiny_batches(model, 1, rows=rows, seed=1)}
    blocks = list(collect(model, architecture, data))
    curves: dict[str, Curve] = {}
    for site in architecture:
        curves |= site_curves(
            site, weight_of(model.get_submodule(site.reader)), blocks[site.block].sites[site.name],
            selector=how.selector, ridge=how.ridge, absorb_mean=how.absorb_mean,
        )  # fmt: skip
    plan = allocate(architecture, curves, Terms(Budget(macs), how, LENGTH, weights or {}, format))
    return plan, apply(plan, model, curves, lambda i: blocks[i])


def attention_part(model_type: str) -> AttentionPart:
    """What a family with one stack and one attention says of it."""
    (part,) = [part for part in FAMILIES[model_type].stacks[0].parts if isinstance(part, AttentionPart)]
    return part


def feed_forward_part(model_type: str) -> FeedForwardPart:
    """What a family with one stack and one feed-forward part says of it."""
    (part,) = [part for part in FAMILIES[model_type].stacks[0].parts if isinstance(part, FeedForwardPart)]
    return part


def block_sizes(architecture: Architecture) -> list[dict[str, int]]:
    """Heads, key/value heads and neurons of every block."""
    return [{role: n for site in block.sites for role, n in site.sizes.items()} for block in architecture.blocks]


def tiny_compressed(
    model: PreTrainedModel, macs: float = 0.5, *, format: str = "ragged", recipe: str = "uniform"
) -> PreTrainedModel:
    """A smaller copy of `model`."""
    return tiny_plan(model, macs, format=format, recipe=recipe)[1]


def tiny_ragged(model: PreTrainedModel, macs: float = 0.5) -> PreTrainedModel:
    """A smaller copy whose blocks really differ: errors in later blocks are said to hurt more."""
    weights = {site.name: 8.0**site.block for site in describe(model)}
    return tiny_plan(model, macs, recipe="balanced", weights=weights)[1]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Words w5 … w63 and the special tokens, in the numbering of `tiny` models."""
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(5, VOCABULARY))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>", model_max_length=LENGTH,
    )  # fmt: skip


def tiny_image_processor() -> ViTImageProcessor:
    return ViTImageProcessor(size={"height": 16, "width": 16})


RATE = 400  # samples a second of the sounds tiny encoders hear: 50 positions, as in the models people use


def tiny_extractor(model: PreTrainedModel) -> Any:
    """What makes inputs of waves for a tiny model that hears."""
    config = model.config
    if config.model_type == "whisper":  # 3 seconds become 24 frames, and these 12 positions
        return WhisperFeatureExtractor(config.num_mel_bins, hop_length=2000, chunk_length=3)
    return Wav2Vec2FeatureExtractor(sampling_rate=RATE, return_attention_mask=config.feat_extract_norm == "layer")


def tiny_processor(model: PreTrainedModel) -> Any:
    """The same with the tokenizer of tiny models."""
    kind: Any = WhisperProcessor if model.config.model_type == "whisper" else Wav2Vec2Processor
    return kind(tiny_extractor(model), tiny_tokenizer())
