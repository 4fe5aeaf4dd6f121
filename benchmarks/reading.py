"""How the model that marks answers is trained: MiniLM on three quarters of the articles of English XQuAD."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertForQuestionAnswering,
    PreTrainedTokenizerBase,
)

from recipes import Loader, Recipe, Trained, fit, minilm_folder, shared_file

MAX_READ, READ_STRIDE = 128, 48  # tokens of a question with a part of its paragraph, and how far parts overlap
HELD_OUT_ARTICLES = 4  # every fourth article of XQuAD is never trained on


def xquad_split() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(training articles, held-out articles) of English XQuAD in the form of SQuAD: 36 and 12 of them."""
    file = shared_file("data", "xquad_en", "xquad.en.json")
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    held_out = articles[HELD_OUT_ARTICLES - 1 :: HELD_OUT_ARTICLES]
    return [article for article in articles if article not in held_out], held_out


@dataclass(frozen=True)
class Reading:
    """A question with a part of its paragraph that holds the answer: tokens, and where the answer starts and ends."""

    tokens: dict[str, list[int]]
    start: int
    end: int


def readings(articles: Sequence[dict[str, Any]], tokenizer: PreTrainedTokenizerBase) -> list[Reading]:
    """For every question the first part of its paragraph that holds the whole answer."""
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [(qa, paragraph["context"]) for paragraph in paragraphs for qa in paragraph["qas"]]
    encoding = tokenizer(
        [qa["question"] for qa, _ in asked], [context for _, context in asked], truncation="only_second",
        max_length=MAX_READ, stride=READ_STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
    )  # fmt: skip
    found: dict[int, Reading] = {}
    for i, question in enumerate(encoding["overflow_to_sample_mapping"]):
        answer = asked[question][0]["answers"][0]
        first, last = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        places = list(zip(encoding["offset_mapping"][i], encoding.sequence_ids(i), strict=True))
        starts = [t for t, ((a, b), part) in enumerate(places) if part == 1 and a <= first < b]
        ends = [t for t, ((a, b), part) in enumerate(places) if part == 1 and a < last <= b]
        if starts and ends and question not in found:
            names = ("input_ids", "token_type_ids", "attention_mask")
            found[question] = Reading({name: encoding[name][i] for name in names}, starts[0], ends[0])
    return list(found.values())


def reading_loader(tokenizer: PreTrainedTokenizerBase, rows: Sequence[Reading]) -> Loader:
    """Pads the readings of a batch to the longest of them."""

    def load(index: Tensor) -> dict[str, Tensor]:
        chosen = [rows[i] for i in index.tolist()]
        tokens = tokenizer.pad([row.tokens for row in chosen], return_tensors="pt")
        starts, ends = (torch.tensor([getattr(row, end) for row in chosen]) for end in ("start", "end"))
        return {**tokens, "start_positions": starts, "end_positions": ends}

    return load


def train_minilm_xquad(n_epochs: int = 3, size: int = 16) -> Trained:
    """Fine-tune all of MiniLM to mark answers, on three quarters of the articles."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = BertForQuestionAnswering.from_pretrained(minilm_folder(), dtype=torch.float32)
    rows = readings(xquad_split()[0], tokenizer)
    order = [index for _ in range(n_epochs) for index in torch.randperm(len(rows)).split(size)]
    return Trained(model, tokenizer, fit(model, order, reading_loader(tokenizer, rows), rate=2e-4))


def xquad_spans(folder: Path, size: int = 32) -> float:
    """Share of the held-out readings whose likeliest start and likeliest end are both right: a first look only."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForQuestionAnswering.from_pretrained(folder)
    rows = readings(xquad_split()[1], tokenizer)
    load, right = reading_loader(tokenizer, rows), 0
    with torch.inference_mode():
        for index in torch.arange(len(rows)).split(size):
            batch = load(index)
            found = model(**batch)
            starts = found.start_logits.argmax(-1) == batch["start_positions"]
            right += int((starts & (found.end_logits.argmax(-1) == batch["end_positions"])).sum())
    return right / len(rows)


READING = {"minilm-xquad": Recipe("BERT, answers", train_minilm_xquad, "held-out spans, exact", xquad_spans)}
