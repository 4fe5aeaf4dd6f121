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
PAIRS = 1200  # sentences for matching two text encoders
MRPC_TRAIN, MNIST_TRAIN = 2000, 10_000  # rows of the training parts that are read
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
    """Frozen MiniLM on all of SST-2, held-out parts first; parts of 4,096 rows are kept, so that it can be resumed."""
    folder = cache_folder() / "sst2"
    folder.mkdir(parents=True, exist_ok=True)
    for part, file in {"dev": "dev", "test": "test-labeled", "train": "train_full"}.items():
        documents = read_documents(shared_file("data", "sst2", f"{file}.tsv"))
        for start in range(0, len(documents), 4096):
            place = folder / f"{part}-{start:05d}.safetensors"
            if not place.is_file():
                rows = documents[start : start + 4096]
                save_file(named(part, texts("demo:minilm", rows, ("cls", "mean"), 64)), place.with_suffix(".partial"))
                place.with_suffix(".partial").rename(place)
    return sst2_so_far()


def sst2_so_far() -> Features:
    """The parts of SST-2 that are there."""
    files = sorted((cache_folder() / "sst2").glob("*.safetensors"))
    parts = [load_file(file) for file in files]
    keys = sorted({key for part in parts for key in part})
    return {key: torch.cat([part[key] for part in parts if key in part]) for key in keys}


def pairs(files: dict[str, tuple[Path, int | None]]) -> Features:
    """Frozen MiniLM on sentence pairs, each sentence alone: |u − v| and u ∘ v."""
    found: Features = {}
    for part, (path, most) in files.items():
        compared = texts("demo:minilm", read_documents(path)[:most], ("mean",), 64, compare=True)
        found |= named(part, {"compare": compared["mean"], "y": compared["y"]})
    return found


def mrpc() -> Features:
    """Paraphrases; of the training part the first rows only."""
    part = "msr_paraphrase_{}.txt"
    train, test = (shared_file("data", "mrpc", part.format(name)) for name in ("train", "test"))
    return pairs({"train": (train, MRPC_TRAIN), "test": (test, None)})


def stsb() -> Features:
    """Likeness of two sentences, 0 to 5."""
    return pairs({part: (shared_file("data", "stsb", f"{part}.tsv"), None) for part in ("train", "dev")})


def cosines() -> Features:
    """STS-B without a head: cosines of the two sentences of the dev part, which is how MiniLM is meant to be used."""
    rows = read_documents(shared_file("data", "stsb", "dev.tsv"))
    u, v = (
        torch.nn.functional.normalize(texts("demo:minilm", [Document(text) for text in side], ("mean",), 64)["mean"])
        for side in ([d.text for d in rows], [d.pair or "" for d in rows])
    )
    return {"dev.cosine": (u * v).sum(1), "dev.y": torch.tensor([float(d.label or 0) for d in rows])}


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
        images, labels = (rows[:MNIST_TRAIN] for rows in mnist(split))
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
    "sst2": sst2, "mrpc": mrpc, "stsb": stsb, "cosines": cosines, "mnist": mnist_digits, "digits": digits,
    "sentences": sentences, "emoji": emoji,
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
