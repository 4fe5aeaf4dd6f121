"""Sources with their targets, for models of an encoder and a decoder: what is read, and what is to be written.

A source and its target come from two columns of a table. Where there is no target the model writes it: sampled at
temperature 1 from what it reads, so that the decoder is shown text like that it will write. A model without a head
cannot write, and is given its source again.

The decoder is given the start token and the target shifted by one (teacher forcing); what is measured are the places of
its target, the end of it included.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from slimformer.calibrate.document import Document
from slimformer.models.batch import Batch
from slimformer.models.outputs import draw
from slimformer.models.sample_inputs import shifted, start_token

ENCODED_AT_ONCE = 64  # documents per call of the tokenizer
CHARACTERS_PER_TOKEN = 64  # no text has longer tokens on average; what lies beyond is not even tokenized


@dataclass(frozen=True)
class _Pair:
    source: list[int]
    target: list[int] | None
    document: int


def pair_batches(
    documents: Iterable[Document], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, seq_len: int,
    tokens: int | None = None, batch_size: int = 8,
) -> list[Batch]:  # fmt: skip
    """A source and its target per row, each truncated to `seq_len`; rows of like length together.

    `tokens` limits the longer side of all rows together. Cost: where targets are missing, a forward pass of the decoder
    for every token that is written.
    """
    known = _pairs(documents, tokenizer, seq_len, tokens)
    known.sort(key=lambda pair: (pair.target is None, len(pair.source)))  # those that lack a target together
    parts = [known[start : start + batch_size] for start in range(0, len(known), batch_size)]
    random.Random(0).shuffle(parts)
    return [_batch(part, model, tokenizer) for part in parts]


def paired(batch: Batch, model: PreTrainedModel) -> Batch:
    """Token ids without targets as sources that are to be written again."""
    ids = batch.inputs["input_ids"]
    return Batch({**batch.inputs, "decoder_input_ids": shifted(ids, model.config)}, batch.mask, targets=ids)


def targets_of(sequences: Sequence[list[int]], config: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens for the decoder, its targets and which of them are real, padded on the right: no mask is needed, because
    no position looks at one after it."""
    filler = config.pad_token_id if config.pad_token_id is not None else 0
    targets = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in sequences], True, float(filler))
    mask = torch.arange(targets.shape[1]) < torch.tensor([[len(ids)] for ids in sequences])
    return shifted(targets, config), targets, mask


@torch.no_grad()
def written(model: PreTrainedModel, inputs: dict[str, Tensor], length: int, *, seed: int = 0) -> list[list[int]]:
    """What the model writes of these sources, at most `length` tokens of each, its end included."""
    whole: Any = model
    was_training, generator = model.training, torch.Generator().manual_seed(seed)
    model.eval()
    here = {name: tensor.to(model.device) for name, tensor in inputs.items()}
    encoded = whole.get_encoder()(**here)
    mask = {name: here[name] for name in ("attention_mask",) if name in here}
    rows, ends = len(next(iter(inputs.values()))), _ends(model.config)
    token = torch.full((rows, 1), start_token(model.config), device=model.device)
    sequences, alive, cache = [list[int]() for _ in range(rows)], [True] * rows, None
    while any(alive) and max(map(len, sequences)) < length:
        output = whole(
            encoder_outputs=encoded, decoder_input_ids=token, past_key_values=cache, use_cache=True, **mask
        )  # fmt: skip
        cache, token = output.past_key_values, draw(output.logits[:, -1].float().log_softmax(-1), generator)
        for i, new in enumerate(token[:, 0].tolist()):
            if alive[i]:
                sequences[i].append(new)
                alive[i] = new not in ends
    model.train(was_training)
    return sequences


def writes(model: PreTrainedModel) -> bool:
    """Has the model a head that writes targets?"""
    return bool(model.can_generate()) and model.get_output_embeddings() is not None


def _ends(config: Any) -> set[int]:
    ends = config.eos_token_id
    return set(ends) if isinstance(ends, list) else {ends}


def _pairs(
    documents: Iterable[Document], tokenizer: PreTrainedTokenizerBase, seq_len: int, tokens: int | None
) -> list[_Pair]:
    left, pairs = float("inf") if tokens is None else tokens, list[_Pair]()
    for pair in _encoded(list(documents), tokenizer, seq_len if tokens is None else min(seq_len, tokens)):
        left -= max(len(pair.source), len(pair.target or ()))
        if left < 0:
            break
        pairs.append(pair)
    return pairs


def _encoded(documents: Sequence[Document], tokenizer: PreTrainedTokenizerBase, seq_len: int) -> Iterator[_Pair]:
    most = seq_len * CHARACTERS_PER_TOKEN
    how = {"truncation": True, "max_length": seq_len, "verbose": False}
    for start in range(0, len(documents), ENCODED_AT_ONCE):
        part = documents[start : start + ENCODED_AT_ONCE]
        sources = tokenizer([each.text[:most] for each in part], **how)["input_ids"]
        targets = tokenizer(text_target=[(each.pair or "")[:most] for each in part], **how)["input_ids"]
        for i, each in enumerate(part):
            if sources[i] and (each.pair is None or targets[i]):
                number = start + i if each.number is None else each.number
                yield _Pair(sources[i], targets[i] if each.pair is not None else None, number)


def _batch(part: Sequence[_Pair], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Batch:
    config = model.config
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else config.pad_token_id or 0
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(pair.source) for pair in part], True, float(filler))
    mask = (torch.arange(ids.shape[1]) < torch.tensor([[len(pair.source)] for pair in part])).long()
    inputs, given = {"input_ids": ids, "attention_mask": mask}, [pair.target for pair in part]
    if None in given and writes(model):
        new = written(model, inputs, ids.shape[1])
        given = [ours if theirs is None else theirs for theirs, ours in zip(given, new, strict=True)]
    known = [pair.source if target is None else target for pair, target in zip(part, given, strict=True)]
    decoder_ids, targets, real = targets_of(known, config)
    numbers = torch.tensor([pair.document for pair in part])
    return Batch({**inputs, "decoder_input_ids": decoder_ids}, real, documents=numbers, targets=targets)
