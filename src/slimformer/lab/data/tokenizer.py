"""Small tokenizers trained on the spot: WordPiece as of BERT, or byte-level BPE as of GPT-2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from slimformer.errors import DataNotFound
from slimformer.models.place import require_regular_texts

MARKS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}


def train_tokenizer(texts: Iterable[str], kind: str, vocabulary: int, *, causal: bool) -> PreTrainedTokenizerFast:
    """A tokenizer with at most `vocabulary` pieces. For decoders nothing is put around a text, and [SEP] ends it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    marks = list(MARKS.values())
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE(unk_token=MARKS["unk_token"]))
        tokenizer.pre_tokenizer, tokenizer.decoder = (
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            decoders.ByteLevel(),
        )
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=marks, initial_alphabet=alphabet, show_progress=False
        )
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token=MARKS["unk_token"]))
        tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=vocabulary, special_tokens=marks, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    if not causal:
        ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=ends
        )
    ending = {"eos_token": MARKS["sep_token"], "bos_token": MARKS["cls_token"]} if causal else {}
    names = ["input_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_input_names=names, **MARKS, **ending)


def open_tokenizer(name: str) -> Any:
    """A tokenizer by folder or hub id, with a mark to pad with."""
    try:
        require_regular_texts(Path(name))
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers raises several types for one fact
        reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
        raise DataNotFound(f"the tokenizer {name!r} cannot be opened: {reason}; or train one: wordpiece, bpe") from None
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    return tokenizer
