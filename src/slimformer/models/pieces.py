"""The tokens of a tokenizer: which must stay, and what each is made of.

Three kinds can lose tokens and still write every text (`tokenizers` names them so):

* **WordPiece** takes the longest piece that fits, from the left;
* **BPE** begins with characters, or bytes, and merges pairs in the order of their ranks;
* **Unigram** takes the pieces of the largest sum of scores.

Take away tokens, and a text all of whose tokens stay is still cut the same way: the longest piece is still the longest,
the best sum still the best. For BPE the tokens that are met on the way must stay, too. A token that stands in a word is
merged as if it stood alone (no merge crosses its edges, else it would not be there), so the way is that of the token
alone: `parts` says which two tokens it is merged from last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from slimformer.errors import UnknownMethod

KINDS = ("WordPiece", "BPE", "Unigram")
Pair = tuple[str, str]


@dataclass(frozen=True)
class Pieces:
    """Tokens by number, as `tokenizers` describes them in JSON; `always` are the numbers of those that must stay."""

    description: dict[str, Any]
    numbers: dict[str, int]
    added: frozenset[int]  # special and added tokens
    unwritten: frozenset[int] = frozenset()  # tokens that no text is cut into, such as BERT's [unused0]
    _parts: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kind(self) -> str:
        return str(self.description["model"]["type"])

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def always(self) -> frozenset[int]:
        """Special and added tokens, bytes, characters, and whatever holds a character that does not stand alone."""
        model, numbers = self.description["model"], self.numbers
        named = {model.get("unk_token"), _least_probable(model)}
        tokens = {token for token in numbers if token in named or self._is_single(token)}
        if model.get("byte_fallback"):
            tokens |= {f"<0x{byte:02X}>" for byte in range(256)} & numbers.keys()
        if self.kind != "BPE":
            tokens |= {token for token in numbers if not self._writable(token)}
        return self.added | {numbers[token] for token in tokens}

    @property
    def by_use(self) -> list[int]:
        """All numbers, first those that texts are cut into; tokenizers give the lower ones to the more frequent."""
        return sorted(self.numbers.values(), key=lambda number: (number in self.unwritten, number))

    def parts(self, number: int) -> tuple[int, ...]:
        """The two tokens one is merged from last; none where it is not merged."""
        if self.kind != "BPE":
            return ()
        if number not in self._parts:
            pair = self._last_merge(self._tokens[number])
            self._parts[number] = () if pair is None else (self.numbers[pair[0]], self.numbers[pair[1]])
        return self._parts[number]

    @cached_property
    def _tokens(self) -> dict[int, str]:
        return {number: token for token, number in self.numbers.items()}

    @cached_property
    def _affixes(self) -> Pair:
        model = self.description["model"]
        return model.get("continuing_subword_prefix") or "", model.get("end_of_word_suffix") or ""

    def _is_single(self, token: str) -> bool:
        """Is it one character, with or without what marks the inside or the end of a word?"""
        prefix, suffix = self._affixes
        stripped = [token, token.removeprefix(prefix), token.removesuffix(suffix)]
        return any(len(each) == 1 for each in (*stripped, stripped[1].removesuffix(suffix)))

    def _writable(self, token: str) -> bool:
        """Could its characters be written without it?"""
        prefix, inside = self._affixes[0], False
        if prefix and token.startswith(prefix):
            token, inside = token.removeprefix(prefix), True
        forms = [f"{prefix if inside or i else ''}{character}" for i, character in enumerate(token)]
        return all(form in self.numbers for form in forms)

    @cached_property
    def _ranks(self) -> dict[Pair, int]:
        return {pair: i for i, pair in reversed(list(enumerate(merges_of(self.description["model"]))))}

    @cached_property
    def _merged_from(self) -> dict[str, list[Pair]]:
        pairs: dict[str, list[Pair]] = {}
        for pair in self._ranks:
            pairs.setdefault(self.merged(pair), []).append(pair)
        return pairs

    def merged(self, pair: Pair) -> str:
        """What two neighbours become."""
        return pair[0] + pair[1].removeprefix(self._affixes[0])

    def _last_merge(self, token: str) -> Pair | None:
        pairs = self._merged_from.get(token, [])
        if len(pairs) < 2:
            return pairs[0] if pairs else None
        last = None
        for last in self._merges(token):  # noqa: B007
            pass
        return last if last is not None and self.merged(last) == token else None

    def _merges(self, token: str) -> Iterator[Pair]:
        """The merges of a token that stands alone, in their order."""
        prefix, suffix = self._affixes
        inside = bool(prefix) and token.startswith(prefix)
        ends = bool(suffix) and token.endswith(suffix)
        letters = list(token.removeprefix(prefix if inside else "").removesuffix(suffix if ends else ""))
        word = [f"{prefix if inside or i else ''}{letter}" for i, letter in enumerate(letters)]
        if ends and word:
            word[-1] += suffix
        while len(word) > 1:
            known = [
                (self._ranks[pair], i) for i in range(len(word) - 1) if (pair := (word[i], word[i + 1])) in self._ranks
            ]
            if not known:
                return
            _, i = min(known)
            yield (word[i], word[i + 1])
            word[i : i + 2] = [self.merged((word[i], word[i + 1]))]


def pieces_of(tokenizer: Any) -> Pieces:
    """What a tokenizer is made of; refused where it cannot lose tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if tokenizer is None or backend is None:
        kind = "none" if tokenizer is None else type(tokenizer).__name__
        raise UnknownMethod(
            f"the vocabulary can only shrink with a tokenizer that has a tokenizer.json (here: {kind}); convert it to "
            "a fast tokenizer first, or leave the vocabulary as it is"
        )
    description: dict[str, Any] = json.loads(backend.to_str())
    kind = description["model"].get("type")
    if kind not in KINDS:
        raise UnknownMethod(
            f"the tokenizer is of kind {kind}, which cannot write a word it has no token for; the vocabulary of "
            f"{', '.join(KINDS)} can shrink"
        )
    added = {token["content"]: token["id"] for token in description.get("added_tokens") or []}
    named = {int(number) for number in tokenizer.all_special_ids} | set(processor_numbers(description))
    numbers = {**vocabulary_of(description["model"]), **added}
    prefix = description["model"].get("continuing_subword_prefix")
    unwritten = _unwritten(tokenizer, numbers, prefix) if kind == "WordPiece" else frozenset[int]()
    return Pieces(description, numbers, frozenset(added.values()) | named, unwritten)


def _unwritten(tokenizer: Any, numbers: dict[str, int], prefix: str) -> frozenset[int]:
    """Whole words that are cut into others: they have rows that nothing reads."""
    whole = [token for token in numbers if not token.startswith(prefix)]
    found = tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
    return frozenset(numbers[token] for token, ids in zip(whole, found, strict=True) if ids != [numbers[token]])


def vocabulary_of(model: dict[str, Any]) -> dict[str, int]:
    """Numbers by token, of the model alone."""
    vocab = model["vocab"]
    return dict(vocab) if isinstance(vocab, dict) else {piece: i for i, (piece, _) in enumerate(vocab)}


def merges_of(model: dict[str, Any]) -> list[Pair]:
    """The pairs that are merged, first those that come first; older files write them with a space."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or []]
    return [(first, second) for first, second in pairs]


def processor_numbers(description: dict[str, Any]) -> list[int]:
    """The numbers of tokens that are put around texts, or pad them."""
    padding = description.get("padding") or {}
    return [*_numbers_in(description.get("post_processor")), *([padding["pad_id"]] if "pad_id" in padding else [])]


def _numbers_in(processor: dict[str, Any] | None) -> list[int]:
    if not processor:
        return []
    inside = [number for each in processor.get("processors", ()) for number in _numbers_in(each)]
    framed = [processor[name][1] for name in ("sep", "cls") if name in processor]
    special = [number for each in (processor.get("special_tokens") or {}).values() for number in each["ids"]]
    return [*inside, *framed, *special]


def _least_probable(model: dict[str, Any]) -> str | None:
    """The score of what is unknown is set below the smallest one, so the smallest one stays."""
    if model["type"] != "Unigram":
        return None
    return str(min(model["vocab"], key=lambda scored: scored[1])[0])
