"""Text a model writes itself, to calibrate on when nothing else is at hand, or beside a user's own text.

A language model is sampled at temperature 1 from start tokens drawn evenly from its vocabulary, so that the text is as
broad as what it was trained on; the texts it finds least likely itself are left out, because one odd start can send a
small model astray. A masked language model fills masks: all positions of a row are masked at first and filled a few
at a time, in random order, each with a draw from what the model predicts there (Gibbs sampling).

Cost: one forward pass for every token of a row, for all rows of a batch together; kept below the user's cache.

References: Ji et al., "Beware of Calibration Data for Pruning Large Language Models" (2024); Wang and Cho, "BERT has a
mouth, and it must speak" (2019).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slimformer.calibrate.documents import SELF as SELF
from slimformer.calibrate.documents import Document
from slimformer.errors import DataNotFound
from slimformer.files.reading import checked
from slimformer.files.seals import read_sealed_json, sealed_json
from slimformer.messages.words import option
from slimformer.models.architecture import fingerprint
from slimformer.models.outputs import draw

WAY = 2  # what is written has changed so often; older texts are not read
ROWS = 48  # written together: a step of one token costs little more for many rows than for one
LENGTH = 256  # tokens of a row
LEFT_OUT = 0.1  # share of the rows that the model finds least likely
STEPS = 16  # in which a masked model fills a row


def own_documents(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, tokens: int, seed: int
) -> list[Document]:
    """At least `tokens` tokens of text by the model itself; the same seed, the same text. From the cache, if there."""
    require_writer(model)
    key = hashlib.blake2b(
        json.dumps([WAY, fingerprint(model), _words(tokenizer), tokens, seed, ROWS, LENGTH, LEFT_OUT, STEPS]).encode(),
        digest_size=12,
    ).hexdigest()
    file = cache_folder() / f"{key}.json"
    texts = _cached(file)
    if texts is None:
        texts = [text for rows in _written(model, tokenizer, tokens, seed) for text in rows]
        with suppress(OSError):  # where nothing can be kept, it is written again the next time
            _keep(file, texts)
    return [Document(text, source=SELF) for text in texts]


def require_writer(model: PreTrainedModel) -> None:
    """Refuse a model without a head that writes tokens, and one whose weights are read block by block."""
    if any(weights.is_meta for weights in model.parameters()):
        raise DataNotFound(
            f"to write its own text a model must be in memory whole; leave {option('data', SELF)} or "
            f"{option('memory')} out"
        )
    if not (_samples(model) or _fills_masks(model)):
        raise DataNotFound(
            f"{type(model).__name__} has no head that writes text, so it cannot be calibrated on its own; "
            f"use {option('data', 'builtin')}, or a file"
        )


def cache_folder() -> Path:
    """Where texts are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slimformer" / "text"


def _keep(file: Path, texts: list[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(sealed_json({"texts": texts}), encoding="utf-8")
    os.replace(draft, file)


def _words(tokenizer: PreTrainedTokenizerBase) -> str:
    """What decides how tokens are drawn and decoded: the vocabulary and the special tokens."""
    known = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), sorted(tokenizer.all_special_ids)]
    return hashlib.blake2b(json.dumps(known).encode(errors="surrogatepass"), digest_size=12).hexdigest()


def _cached(file: Path) -> list[str] | None:
    try:
        texts = checked(dict[str, list[str]], read_sealed_json(file))["texts"]
    except (OSError, ValueError, KeyError):
        return None
    return texts or None


def _samples(model: PreTrainedModel) -> bool:
    return bool(model.can_generate()) and model.get_output_embeddings() is not None


def _fills_masks(model: PreTrainedModel) -> bool:
    return type(model).__name__.endswith("ForMaskedLM")


@torch.no_grad()
def _written(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tokens: int, seed: int) -> Iterator[list[str]]:
    """Texts, a batch at a time, until there are tokens enough."""
    was_training = model.training
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    write = _sample_rows if _samples(model) else _fill_rows
    length = min(LENGTH, _positions(model))
    left = tokens
    try:
        while left > 0:
            rows = write(model, tokenizer, min(ROWS, -(-left // length) + 1), length, generator)
            left -= sum(len(row) for row in rows)
            texts = [str(tokenizer.decode(row, skip_special_tokens=True)).strip() for row in rows]
            yield [text for text in texts if text]
    finally:
        model.train(was_training)


def _positions(model: PreTrainedModel) -> int:
    return int(getattr(model.config, "max_position_embeddings", None) or LENGTH)


def _start_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """What a text may begin with: every token but the special ones."""
    table: Any = model.get_input_embeddings()
    special = set(tokenizer.all_special_ids)
    return torch.tensor([i for i in range(min(len(tokenizer), table.weight.shape[0])) if i not in special])


def _sample_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: int, length: int, generator: torch.Generator
) -> list[Tensor]:
    """Rows drawn from p(x_t | x_<t), less those of the lowest mean log p."""
    starts = _start_tokens(model, tokenizer)
    first = starts[torch.randint(len(starts), (rows, 1), generator=generator)]
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = first if begin is None else torch.cat([torch.full_like(first, begin), first], 1)
    ids, prefix = ids.to(model.device), ids.shape[1]
    end = tokenizer.eos_token_id
    alive = torch.ones(rows, dtype=torch.bool, device=ids.device)
    log_p, drawn, cache = torch.zeros(rows, device=ids.device), torch.zeros(rows, device=ids.device), None
    inputs = ids
    while ids.shape[1] < length and bool(alive.any()):
        output = model(input_ids=inputs, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        scores = output.logits[:, -1].float().log_softmax(-1)
        inputs = draw(scores, generator)
        log_p += scores.gather(1, inputs)[:, 0] * alive
        drawn += alive
        ids = torch.cat([ids, inputs], 1)
        if end is not None:
            alive &= inputs[:, 0] != end
    likely = (log_p / drawn.clamp_min(1)).argsort(descending=True)[: max(1, round(rows * (1 - LEFT_OUT)))]
    return [_until_end(ids[i, prefix - 1 :].cpu(), end) for i in sorted(likely.tolist())]


def _until_end(ids: Tensor, end: int | None) -> Tensor:
    places = (ids == end).nonzero() if end is not None else ids.new_zeros(0, 1)
    return ids[: int(places[0])] if len(places) else ids


def _fill_rows(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: int, length: int, generator: torch.Generator
) -> list[Tensor]:
    """Rows of masks between the special tokens, filled in `STEPS` parts."""
    masks = " ".join([str(tokenizer.mask_token)] * (length - tokenizer.num_special_tokens_to_add()))
    ids = torch.tensor([tokenizer(masks)["input_ids"]] * rows)
    special = torch.tensor(sorted(set(tokenizer.all_special_ids)))
    places = (ids[0] == tokenizer.mask_token_id).nonzero()[:, 0]
    order = torch.stack([places[torch.randperm(len(places), generator=generator)] for _ in range(rows)])
    for part in order.tensor_split(min(STEPS, len(places)), 1):
        scores = model(input_ids=ids.to(model.device)).logits.float().cpu()
        scores = scores.gather(1, part[..., None].expand(-1, -1, scores.shape[-1]))
        scores[..., special] = -torch.inf
        draws = draw(scores.flatten(0, 1).log_softmax(-1), generator)
        ids.scatter_(1, part, draws.view(part.shape))
    return list(ids)
