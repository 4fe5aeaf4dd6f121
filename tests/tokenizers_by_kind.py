"""Tokenizers of every kind whose vocabulary can shrink, small, and the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from vocabularies import of_pieces

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # in the numbering of `families.tiny`
WORDS = (
    "the quick brown fox jumps over the lazy dog while seven wizards quietly examine jackdaws of quartz and beauty "
    "thinking about tokens thinking of tokenizers the tokenizer tokenized der Bär läßt grüßen naïve façade "
    "中文 ひらがな 😀"
)
TEXTS = [WORDS, " ".join(reversed(WORDS.split()))] * 4
SIZE = 480


def _fast(backend: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>", model_max_length=64,
    )  # fmt: skip


def _trained(backend: Tokenizer, trainer: Any) -> Tokenizer:
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def word_piece() -> PreTrainedTokenizerFast:
    """As BERT has it, with a template around texts. Built by hand: a trained one differs from process to process."""
    words = sorted(set(WORDS.lower().split()))
    letters = sorted(set("".join(words)) | set("0123456789"))
    inside = sorted({word[i : i + n] for word in words for i in range(1, len(word)) for n in (2, 3, 4)})
    tokens = [*SPECIAL, "[unused0]", *letters, *(f"##{each}" for each in (*letters, *inside)), *words]
    numbers = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.WordPiece(numbers, unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _fast(backend)


def byte_level() -> PreTrainedTokenizerFast:
    """As RoBERTa has it: bytes, merges, and a processor that names its tokens by number."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    _trained(backend, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return _fast(backend)


def end_of_word() -> PreTrainedTokenizerFast:
    """As CLIP has it: characters, and a mark at the end of words. Words are merged from the left, by hand."""
    words = sorted(set(WORDS.lower().split()))
    letters = sorted(set("".join(words)) | set("0123456789"))
    merges: dict[tuple[str, str], None] = {}
    for word in words:
        for i in range(1, len(word)):
            merges[word[:i], word[i] + ("</w>" if i == len(word) - 1 else "")] = None
    tokens = [*SPECIAL, *letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in merges)]
    numbers = {token: i for i, token in enumerate(dict.fromkeys(tokens))}
    backend = Tokenizer(models.BPE(numbers, list(merges), unk_token="<unk>", end_of_word_suffix="</w>"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    return _fast(backend)


def unigram() -> PreTrainedTokenizerFast:
    """As SentencePiece has it: pieces with scores, of the largest sum."""
    words = [f"▁{word}" for word in sorted(set(WORDS.split()))]
    letters = sorted(set("".join(words)) | set("0123456789"))
    inside = sorted({word[i : i + n] for word in words for i in range(len(word)) for n in (2, 3, 4)} - {"▁"})
    pieces = dict.fromkeys([*SPECIAL, *letters, *inside, *words])
    scores = [(piece, 0.0 if piece in SPECIAL else -14.0 + 0.9 * min(len(piece), 9)) for piece in pieces]
    backend = Tokenizer(models.Unigram(scores, unk_id=SPECIAL.index("<unk>")))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    return _fast(backend)


def fallback() -> PreTrainedTokenizerFast:
    """As LLaMA has it: BPE by pieces, bytes for what is unknown, and many merges that lead to the same token."""
    tokenizer = of_pieces()
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


KINDS: dict[str, Callable[[], Any]] = {
    "word_piece": word_piece,
    "byte_level": byte_level,
    "end_of_word": end_of_word,
    "fallback": fallback,
    "unigram": unigram,
}
