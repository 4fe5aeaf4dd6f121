"""Tokenizers GGUF can hold, made from a few sentences: bytes with merges, and pieces with scores."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = ["Once upon a time there was a little girl.", "She said: it was so, indeed! (yes) didn't you know?"] * 3
SPECIAL = ["<unk>", "<s>", "</s>"]
SIZE = 384


def of_bytes() -> PreTrainedTokenizerFast:
    """Byte-level BPE as GPT-2 has it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="</s>")


def of_pieces(*, space_first: bool = True) -> PreTrainedTokenizerFast:
    """BPE as SentencePiece has it: every pair that makes a piece may be merged, what came first first."""
    spaced = ["▁" + text.replace(" ", "▁") for text in TEXTS]
    trained = Tokenizer(models.BPE())
    trained.train_from_iterator(spaced, trainers.BpeTrainer(vocab_size=90, show_progress=False))
    made = sorted(trained.get_vocab(), key=trained.get_vocab().get)
    single, longer = [t for t in made if len(t) == 1], [t for t in made if len(t) > 1]
    vocabulary = {t: i for i, t in enumerate([*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *longer, *single])}
    merges = [
        (token[:i], token[i:])
        for token in longer for i in range(1, len(token)) if token[:i] in vocabulary and token[i:] in vocabulary
    ]  # fmt: skip
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    before = [normalizers.Prepend("▁")] if space_first else []
    backend.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
