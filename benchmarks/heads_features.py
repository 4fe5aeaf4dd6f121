"""Features for benchmarks/heads.py and benchmarks/matching.py, extracted once and cached as safetensors.

    python benchmarks/heads_features.py               all of them (about half an hour on one core)
    python benchmarks/heads_features.py sst2 mnist    some

They lie in ~/.cache/slimformer/features ($SLIMFORMER_FEATURES). `features(name)` extracts what is missing.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from models import model_folder
from recipes import digit_loader, mnist, shared_file
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.text import Batch
from slimformer.heads.features import Reading, feature_chunks, pooled
from slimformer.models.load import Loaded, load_model

Features = dict[str, Tensor]
PAIRS = 2400  # sentences for matching two text encoders
EMOJI = "emoji-datasource-google-16.0.0.tgz"


def cache_folder() -> Path:
    """$SLIMFORMER_FEATURES, or ~/.cache/slimformer/features."""
    return Path(os.environ.get("SLIMFORMER_FEATURES") or "~/.cache/slimformer/features").expanduser()


@cache
def opened(name: str) -> Loaded:
    """A model, opened once."""
    return load_model(name)


def texts(name: str, documents: Iterable[Document], pools: Sequence[str], seq_len: int, **how: Any) -> Features:
    """Features after the last block by pooling, and labels."""
    loaded = opened(name)
    readings = [Reading(pool, loaded.model.config.num_hidden_layers) for pool in pools]
    chunks = list(feature_chunks(loaded.model, loaded.processor, documents, readings, seq_len=seq_len, **how))
    found = {r.pool: torch.cat([chunk.features[r] for chunk in chunks]) for r in readings}
    labels = [label for chunk in chunks for label in chunk.labels]
    return found if labels[0] is None else {**found, "y": torch.tensor(labels)}


def named(prefix: str, found: Features) -> Features:
    return {f"{prefix}.{key}": value.contiguous() for key, value in found.items()}


def sst2() -> Features:
    """Frozen MiniLM on all of SST-2."""
    parts = {"train": "train_full", "dev": "dev", "test": "test-labeled"}
    return {
        key: value
        for part, file in parts.items()
        for key, value in named(
            part, texts("demo:minilm", read_documents(shared_file("data", "sst2", f"{file}.tsv")), ("cls", "mean"), 64)
        ).items()
    }


def pairs(task: str, files: dict[str, Path]) -> Features:
    """Frozen MiniLM on sentence pairs: both read together, and compared one by one."""
    found: Features = {}
    for part, path in files.items():
        documents = read_documents(path)
        found |= named(part, texts("demo:minilm", documents, ("mean",), 128))
        compared = texts("demo:minilm", documents, ("mean",), 64, compare=True)
        found[f"{part}.compare"] = compared["mean"].contiguous()
    return found


def mrpc() -> Features:
    return pairs(
        "mrpc",
        {part: shared_file("data", "mrpc", f"msr_paraphrase_{part}.txt") for part in ("train", "test")},
    )


def stsb() -> Features:
    return pairs("stsb", {part: shared_file("data", "stsb", f"{part}.tsv") for part in ("train", "dev")})


def vit_states(images: Tensor) -> Tensor:
    """The class token of the small ViT after its last block, for images of 28 × 28."""
    load = digit_loader(images, torch.zeros(len(images)))
    model = opened(str(model_folder("vit-mnist"))).model
    reading = Reading("cls", model.config.num_hidden_layers)
    found = []
    for part in torch.arange(len(images)).split(256):
        batch = Batch({"pixel_values": load(part)["pixel_values"]}, None)
        found.append(pooled(model, batch, [reading])[reading])
    return torch.cat(found)


def mnist_digits() -> Features:
    """MNIST: raw pixels, and the small ViT (which was trained on the training part)."""
    found: Features = {}
    for part, split in (("train", "train"), ("test", "t10k")):
        images, labels = mnist(split)
        found |= {f"{part}.pixels": images.flatten(1).contiguous(), f"{part}.y": labels}
        found[f"{part}.vit"] = vit_states(images)
    return found


def digits() -> Features:
    """The 8 × 8 digits of scikit-learn: raw pixels, and the ViT that has seen only MNIST."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    large = torch.nn.functional.interpolate(images, size=20, mode="bilinear").clamp(0, 1)
    large = (255 * torch.nn.functional.pad(large, (4, 4, 4, 4)))[:, 0].round().to(torch.uint8)
    return {
        "all.pixels": torch.from_numpy(data.data).float().contiguous(),
        "all.vit": vit_states(large),
        "all.y": torch.from_numpy(data.target).long(),
    }


def sentences() -> Features:
    """The same sentences (STS-B, both sides, without repetitions) through MiniLM and through SmolLM2."""
    rows = [d for part in ("train", "dev") for d in read_documents(shared_file("data", "stsb", f"{part}.tsv"))]
    said = sorted({text for d in rows for text in (d.text, d.pair or "") if text})
    order = torch.randperm(len(said), generator=torch.Generator().manual_seed(0))[:PAIRS].tolist()
    documents = [Document(said[i]) for i in order]
    return {
        **named("minilm", texts("demo:minilm", documents, ("mean",), 64)),
        **named("smollm2", texts("demo:smollm2", documents, ("mean", "last"), 64)),
    }


def emoji() -> Features:
    """Emoji: images at 32 × 32 (transparent parts white), and their names through MiniLM."""
    import io

    from PIL import Image

    archive = Path(os.environ.get("SLIMFORMER_EMOJI") or f"~/.cache/slimformer/data/emoji/{EMOJI}").expanduser()
    if not archive.is_file():
        raise FileNotFoundError(f"no {archive}; run `npm pack emoji-datasource-google@16.0.0` in its folder")
    with tarfile.open(archive) as package:
        files = {member.name: member for member in package.getmembers()}
        rows = json.load(package.extractfile(files["package/emoji.json"]))  # type: ignore[arg-type]
        images, names = [], []
        for row in rows:
            member = files.get(f"package/img/google/64/{row['image']}")
            if member is None:
                continue
            picture = Image.open(io.BytesIO(package.extractfile(member).read())).convert("RGBA")  # type: ignore
            white = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
            images.append(torch.tensor(list(white.resize((32, 32)).tobytes()), dtype=torch.uint8).view(32, 32, 3))
            names.append(f"{row['name'].lower()}: {', '.join(row['short_names']).replace('_', ' ')}; {row['category']}")
    found = named("text", texts("demo:minilm", [Document(name) for name in names], ("mean",), 64))
    return {**found, "images": torch.stack(images)}


SETS: dict[str, Callable[[], Features]] = {
    "sst2": sst2, "mrpc": mrpc, "stsb": stsb, "mnist": mnist_digits, "digits": digits, "sentences": sentences,
    "emoji": emoji,
}  # fmt: skip


def features(name: str) -> Features:
    """The features of a set, from the cache or extracted now."""
    file = cache_folder() / f"{name}.safetensors"
    if not file.is_file():
        found = SETS[name]()
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(found, file.with_suffix(".partial"))
        file.with_suffix(".partial").rename(file)
    return load_file(file)


if __name__ == "__main__":
    for name in sys.argv[1:] or SETS:
        started = time.perf_counter()
        found = features(name)
        print(name, {key: tuple(value.shape) for key, value in found.items()}, end=" ")
        print(f"{time.perf_counter() - started:.0f} s", flush=True)
