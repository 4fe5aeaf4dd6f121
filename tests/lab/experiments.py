"""Experiment files that take seconds, and tiny data in every form the lab reads."""

from __future__ import annotations

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import slimformer as package

VIT = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
    "patch_size": 4, "hidden_dropout_prob": 0.1,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
DIGITS: dict[str, Any] = {
    "name": "tiny", "task": "image-classes", "model": VIT, "steps": 6, "batch_size": 16, "evaluate_every": 3,
    "datasets": {"digits": {"source": "digits", "train_examples": 200, "validation_examples": 50}},
}  # fmt: skip


def experiment(folder: Path, name: str = "experiment.yaml", **changes: Any) -> Path:
    """The digits, with changes, as a file."""
    fields = {key: value for key, value in {**DIGITS, **changes}.items() if value is not None}
    path = folder / name
    path.write_text(yaml.safe_dump(fields, sort_keys=False))
    return path


def write_idx(path: Path, array: np.ndarray) -> None:
    data = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def idx_folder(folder: Path, *, packed: bool) -> tuple[np.ndarray, np.ndarray]:
    """MNIST in small: images and labels to train on, as they were written."""
    folder.mkdir()
    end = ".gz" if packed else ""
    draw = np.random.default_rng(0)
    parts = {}
    for part, n in (("train", 12), ("t10k", 5)):
        images = draw.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = (np.arange(n) % 4).astype(np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte{end}", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte{end}", labels)
        parts[part] = (images, labels)
    return parts["train"]


def cifar_rows(n: int = 6, seed: int = 0) -> tuple[np.ndarray, list[int]]:
    """Images as n × 32 × 32 × 3 bytes, and labels."""
    return np.random.default_rng(seed).integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), [i % 10 for i in range(n)]


def cifar_binary(folder: Path) -> None:
    folder.mkdir()
    images, labels = cifar_rows()
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    rows = np.concatenate([np.array(labels, np.uint8)[:, None], planes], 1)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (folder / name).write_bytes(rows.tobytes())


def cifar_png(folder: Path) -> None:
    from PIL import Image

    folder.mkdir()
    images, labels = cifar_rows()
    for name in (*(f"data_batch_{i}.png" for i in range(1, 6)), "test_batch.png"):
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / name)
    (folder / "train_lables.json").write_text(json.dumps(labels * 5))
    (folder / "test_lables.json").write_text(json.dumps(labels))


def image_folder(folder: Path, parts: tuple[str, ...] = ("",)) -> None:
    """Two classes that differ in brightness."""
    from PIL import Image

    for part in parts:
        for level, name in ((40, "dark"), (200, "light")):
            place = folder / part / name
            place.mkdir(parents=True)
            for i in range(6):
                noise = np.random.default_rng(i + level).integers(0, 20, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(noise + np.uint8(level)).save(place / f"{i}.png")


GOOD, BAD = "a fine warm film with a lovely end", "a dull cold film with no end"


def reviews(n: int = 60) -> list[tuple[str, int]]:
    return [(f"{GOOD if i % 2 else BAD} number {i}", i % 2) for i in range(n)]


def text_file(path: Path) -> Path:
    """Reviews in the form the suffix says; `reviews.json` with t and s for text and sentiment."""
    rows = reviews()
    if path.suffix == ".tsv":
        path.write_text("\n".join(["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]) + "\n")
    elif path.suffix == ".csv":
        path.write_text("\n".join(["text,label", *(f'"{text}",{label}' for text, label in rows)]) + "\n")
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps({"text": text, "label": label}) for text, label in rows))
    elif path.suffix == ".json":
        path.write_text(json.dumps([{"t": text, "s": label} for text, label in rows]))
    else:
        path.write_text("\n\n".join(text for text, _ in rows))
    return path


LONG = {
    "steps": 60, "evaluate_every": 20, "checkpoint_every": 0.01, "batch_size": 8, "save_models": True,
    "datasets": {"d": {"source": "digits", "train_examples": 100, "validation_examples": 20}},
    "augmentation": {"shift": 1, "flip": True},
}  # fmt: skip


def start(*arguments):
    """The command in a process of its own."""
    paths = {"PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "slimformer", *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, **paths}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def kill_after_first_state(process, folder, number=signal.SIGKILL):
    state = folder / "runs" / "d-seed-0.safetensors"
    while not state.is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    return state


def lasting(found):
    """What does not depend on how long it took."""
    found = {key: value for key, value in found.items() if "seconds" not in key}
    found["history"] = [{k: v for k, v in at.items() if k != "seconds"} for at in found["history"]]
    return found
