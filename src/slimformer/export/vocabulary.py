"""A tokenizer in the words of GGUF: pieces with scores and kinds (SentencePiece), or bytes with merges (GPT-2)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from slimformer.errors import CannotExport

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # kinds of tokens, as GGUF numbers them
SPACES = ("▁", "Ġ")  # how pieces and bytes write a space
UNMERGED = -1e6  # score of pieces no merge makes: below all others


@dataclass(frozen=True)
class Vocabulary:
    """Pieces in the order of their numbers; `pre` names how bytes are split first, where they are bytes."""

    model: str  # llama, gpt2
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    pre: str = "default"
    special: dict[str, int] | None = None
    add_bos: bool = False
    space_first: bool = False  # is a space put before a text that begins with none?
    chat_template: str | None = None


def vocabulary(tokenizer: Any, size: int) -> Vocabulary:
    """What GGUF holds of a tokenizer, padded to the `size` rows the embeddings have. Refuses all but BPE."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    description = json.loads(backend.to_str()) if backend is not None else {}
    model = description.get("model") or {}
    if model.get("type") != "BPE":
        kind = model.get("type") or type(tokenizer).__name__
        raise CannotExport(f"GGUF holds tokenizers by BPE, and this one is of kind {kind}; export to onnx or torch")
    tokens, kinds = _tokens(description, size)
    bos = tokenizer.bos_token_id
    common: dict[str, Any] = {
        "tokens": tokens, "kinds": kinds, "special": _special(tokenizer),
        "add_bos": bos is not None and tokenizer("a").input_ids[:1] == [bos],
        "space_first": "".join(tokenizer.tokenize("a")).startswith(SPACES),
        "chat_template": getattr(tokenizer, "chat_template", None),
    }  # fmt: skip
    pairs = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    if model.get("byte_fallback"):
        return Vocabulary("llama", scores=_scores(tokens, pairs), **common)
    return Vocabulary("gpt2", merges=pairs, pre=_split_name(description.get("pre_tokenizer")), **common)


def _tokens(description: dict[str, Any], size: int) -> tuple[list[str], list[int]]:
    model = description["model"]
    by_number = {number: token for token, number in model["vocab"].items()}
    added = {each["id"]: each for each in description.get("added_tokens", [])}
    by_number |= {number: each["content"] for number, each in added.items()}
    if max(by_number) >= size:
        raise CannotExport(
            f"the tokenizer has {max(by_number) + 1} tokens and the model {size}; correct the checkpoint"
        )
    kinds = [_kind(by_number.get(i), added.get(i), model) for i in range(size)]
    return [by_number.get(i, f"[PAD{i}]") for i in range(size)], kinds


def _kind(token: str | None, added: dict[str, Any] | None, model: dict[str, Any]) -> int:
    if token is None:
        return UNUSED
    if token == model.get("unk_token"):
        return UNKNOWN
    if added is not None:
        return CONTROL if added["special"] else USER_DEFINED
    byte = model.get("byte_fallback") and len(token) == 6 and token.startswith("<0x") and token.endswith(">")
    return BYTE if byte else NORMAL


def _scores(tokens: list[str], pairs: list[str]) -> list[float]:
    """What is merged first scores highest; only the order counts."""
    first: dict[str, int] = {}
    for i, pair in enumerate(pairs):
        first.setdefault("".join(pair.split(" ")), i)
    return [-float(first[token]) if token in first else UNMERGED for token in tokens]


def _special(tokenizer: Any) -> dict[str, int]:
    roles = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unk_token_id", "pad": "pad_token_id"}
    numbers = {role: getattr(tokenizer, attribute, None) for role, attribute in roles.items()}
    return {role: int(number) for role, number in numbers.items() if number is not None}


def _split_name(pre: dict[str, Any] | None) -> str:
    """The name GGUF has for the way a text is split before bytes are merged."""
    steps = [] if pre is None else pre.get("pretokenizers", [pre])
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"]:
        pattern = next(iter(steps[0]["pattern"].values()))
        known = next((name for name, split in _known_splits().items() if split == pattern), None)
        if known:
            return known
    raise CannotExport("the tokenizer splits text in a way GGUF has no name for; export to onnx or torch")


def _known_splits() -> dict[str, str]:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    except ImportError:  # older transformers have no such table
        return {}
    return dict(GGUF_PRE_TOKENIZER_SPLITS)
