"""What the benchmarks measure on: a model, tokens to calibrate with, and held-out sets to report on.

Calibration (`fit` for moments, `select` for choices) and reports never share a document. Windows of a report are
taken evenly over the whole held-out text, so that few long articles do not decide.

    smollm2        WikiText-2, valid to calibrate, test to report; C4 as text of another kind
    stories15M     TinyStories, disjoint documents
    stories260K    the same; a toy that takes seconds, to see that everything runs
    opt-stories, gpt2-stories      TinyStories: the part they were trained on, and the part they were not
    minilm-sst2    SST-2: train; dev and labelled test
    vit-mnist      MNIST: train; test
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from models import model_folder
from recipes import END_OF_STORY, digit_loader, mnist, shared_file, stories_split
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.splits import split_documents
from slimformer.calibrate.text import Batch, packed_batches, padded_batches, token_batches
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.fidelity import logit_divergence
from slimformer.evaluate.perplexity import perplexity
from slimformer.models.load import Loaded, load_model

SEED = 0
ROWS = 8  # sequences to a batch


@dataclass(frozen=True)
class Amount:
    """How much of everything: tokens to calibrate with, windows or examples to report on."""

    fit: int = 32_768
    select: int = 8_192
    windows: int = 32
    other_windows: int = 16  # out of domain
    examples: int = 4_000


FULL = Amount()
QUICK = Amount(fit=8_192, select=4_096, windows=8, other_windows=4, examples=500)


@dataclass(frozen=True)
class Score:
    """One number for each example of a report, lower is better, and how many tokens it stands for."""

    values: tuple[float, ...]
    weights: tuple[float, ...]


Scores = dict[str, Score]
Batches = Sequence[Batch]


@dataclass(frozen=True)
class Subject:
    """A model with its data. `reports` are held-out sets by name; `language` tells perplexity from accuracy."""

    name: str
    loaded: Loaded
    seq_len: int  # at which MACs are counted
    calibration: Mapping[str, Batches]
    reports: Mapping[str, Batches]
    language: bool
    data: str

    @property
    def model(self) -> PreTrainedModel:
        return self.loaded.model

    def measure(self, small: PreTrainedModel, report: str) -> Scores:
        """Scores of a model on one report: nll of windows; or errors and KL to the dense model, by example."""
        batches = self.reports[report]
        if self.language:
            found = perplexity(small, batches)
            return {report: Score(found.nll_per_window, tuple(map(float, found.tokens_per_window)))}
        wrong = tuple(float(not right) for right in accuracy(small, batches).correct)
        divergence = logit_divergence(self.model, small, batches)
        ones = (1.0,) * len(wrong)
        return {f"{report} error": Score(wrong, ones), f"{report} KL": Score(divergence.kl_per_document, ones)}

    def settings(self) -> dict[str, Any]:
        """What the numbers depend on besides the method; part of every result file."""
        sets = {**self.calibration, **self.reports}
        return {
            "model": self.name,
            "data": self.data,
            "seed": SEED,
            "seq_len": self.seq_len,
            "tokens": {name: sum(batch.tokens for batch in batches) for name, batches in sets.items()},
            "examples": {name: sum(map(_rows, batches)) for name, batches in sets.items()},
            "digest": {name: digest(batches) for name, batches in sets.items()},
        }


def digest(batches: Batches) -> str:
    """A short hash of the inputs themselves."""
    total = hashlib.blake2b(digest_size=8)
    for batch in batches:
        for name, value in sorted(batch.inputs.items()):
            total.update(f"{name}{tuple(value.shape)}".encode())
            total.update(value.contiguous().numpy().tobytes())
    return total.hexdigest()


def _rows(batch: Batch) -> int:
    return len(next(iter(batch.inputs.values())))


# --- language models ----------------------------------------------------------------------------------------


def smollm2(amount: Amount) -> Subject:
    """SmolLM2-135M: 30 blocks, grouped queries."""
    loaded = load_model("demo:smollm2")
    wiki = {part: read_documents(shared_file("data", "wikitext2", f"{part}.txt")) for part in ("valid", "test")}
    web = read_documents(shared_file("data", "c4_sample", "c4_sample.jsonl"))
    reports = {
        "wikitext2": windows(loaded, wiki["test"], seq_len=512, count=amount.windows),
        "c4": windows(loaded, web, seq_len=512, count=amount.other_windows),
    }
    data = "WikiText-2 valid (calibration), test (report); C4 sample (report)"
    return _language("smollm2", loaded, wiki["valid"], reports, 512, amount, data)


def stories(name: str, amount: Amount) -> Subject:
    """stories15M (6 blocks, as many key/value heads as queries) or stories260K (5 blocks, grouped queries)."""
    loaded = load_model(shared_file("models", name, "config.json").parent)
    known = read_documents(shared_file("data", "tinystories_sample", "tinystories_sample.txt"))
    parts = split_documents(known, seed=SEED)
    # report was looked at while the allocation was being designed; certify was opened after that
    reports = {"tinystories": windows(loaded, parts["certify"], seq_len=256, count=2 * amount.windows)}
    rest = parts["fit"] + parts["select"]
    return _language(name, loaded, rest, reports, 256, amount, "TinyStories, disjoint documents")


def trained_on_stories(name: str, amount: Amount) -> Subject:
    """A small OPT or GPT-2 made by `models.py`: calibrated on its training stories, reported on the others."""
    loaded = load_model(model_folder(name))
    known, unknown = ([Document(text) for text in part.split(END_OF_STORY)] for part in stories_split())
    reports = {"tinystories": windows(loaded, unknown, seq_len=256, count=2 * amount.windows)}
    return _language(name, loaded, known, reports, 256, amount, "TinyStories, first 90 % / last 10 %")


def windows(loaded: Loaded, documents: Sequence[Document], *, seq_len: int, count: int) -> list[Batch]:
    """`count` windows, evenly spread over the documents laid end to end."""
    packed = packed_batches(documents, loaded.processor, seq_len=seq_len)
    rows = torch.cat([batch.inputs["input_ids"] for batch in packed])
    chosen = torch.linspace(0, len(rows) - 1, min(count, len(rows))).round().long()
    return token_batches(rows[chosen], ROWS)


def _language(
    name: str, loaded: Loaded, known: Sequence[Document], reports: Mapping[str, Batches],
    seq_len: int, amount: Amount, data: str,
) -> Subject:  # fmt: skip
    shares = (0.7, 0.28, 0.01, 0.01)  # reports come from elsewhere, so nearly all of it may calibrate
    parts = split_documents(known, seed=SEED, shares=shares)
    calibration = {
        split: packed_batches(parts[split], loaded.processor, seq_len=seq_len, tokens=tokens, batch_size=ROWS)
        for split, tokens in (("fit", amount.fit), ("select", amount.select))
    }
    return Subject(name, loaded, seq_len, calibration, reports, True, data)


# --- classifiers --------------------------------------------------------------------------------------------


def minilm_sst2(amount: Amount) -> Subject:
    """MiniLM with 6 post-norm blocks, fine-tuned for sentiment. MACs at 32 tokens, about a sentence."""
    loaded = load_model(model_folder("minilm-sst2"))
    known = read_documents(shared_file("data", "sst2", "train_full.tsv"))
    held_out = [
        document
        for part in ("dev", "test-labeled")
        for document in read_documents(shared_file("data", "sst2", f"{part}.tsv"))
    ]
    parts = split_documents(known, seed=SEED)
    wanted = {"fit": (parts["fit"], amount.fit), "select": (parts["select"], amount.select)}
    calibration = {
        split: padded_batches(documents, loaded.processor, seq_len=64, tokens=tokens, batch_size=32)
        for split, (documents, tokens) in wanted.items()
    }
    reports = {"sst2": padded_batches(held_out[: amount.examples], loaded.processor, seq_len=64, batch_size=32)}
    return Subject("minilm-sst2", loaded, 32, calibration, reports, False, "SST-2 train; dev + labelled test")


def vit_mnist(amount: Amount) -> Subject:
    """A small ViT for digits: 16 patches and a class token."""
    loaded = load_model(model_folder("vit-mnist"))
    length = 17
    images, labels = mnist("train")
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED))
    n_fit, n_select = amount.fit // length, amount.select // length
    calibration = {
        "fit": _digits(images, labels, shuffled[:n_fit]),
        "select": _digits(images, labels, shuffled[n_fit : n_fit + n_select]),
    }
    test_images, test_labels = mnist("t10k")
    # the first half of the test digits was written by other people, more neatly, than the second
    chosen = torch.linspace(0, len(test_labels) - 1, amount.examples).round().long()
    reports = {"mnist": _digits(test_images, test_labels, chosen)}
    return Subject("vit-mnist", loaded, length, calibration, reports, False, "MNIST train; test")


def _digits(images: Tensor, labels: Tensor, index: Tensor) -> list[Batch]:
    load = digit_loader(images, labels)
    batches = []
    for part in index.split(100):
        fields = load(part)
        batches.append(Batch({"pixel_values": fields["pixel_values"]}, None, fields["labels"]))
    return batches


SUBJECTS: dict[str, Callable[[Amount], Subject]] = {
    "smollm2": smollm2,
    "stories15M": lambda amount: stories("stories15M", amount),
    "stories260K": lambda amount: stories("stories260K", amount),
    "minilm-sst2": minilm_sst2,
    "vit-mnist": vit_mnist,
    "opt-stories": lambda amount: trained_on_stories("opt-stories", amount),
    "gpt2-stories": lambda amount: trained_on_stories("gpt2-stories", amount),
}


def subject(name: str, *, quick: bool) -> Subject:
    """The subject called `name`, with few tokens when `quick`."""
    made = SUBJECTS[name](QUICK if quick else FULL)
    return replace(made, name=f"{name}-quick") if quick else made
