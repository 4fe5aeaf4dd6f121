"""The command line called in process, and folders and files a user might give it."""

from __future__ import annotations

import io
import json
import random
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from families import CLASSES, VOCABULARY, tiny, tiny_image_processor, tiny_tokenizer
from slimformer.cli.app import app
from slimformer.cli.terminal import run
from tokenizers_by_kind import fallback


@dataclass(frozen=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: str
    err: str


def slimformer(*arguments: object) -> Said:
    """Run a command as the shell would, without paying for another start of Python."""
    out, log = io.StringIO(), io.StringIO()
    argv = ["slimformer", *map(str, arguments)]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(log):
        code = run(app)
    return Said(code, out.getvalue(), log.getvalue())


def done(*arguments: object) -> Said:
    """Run a command that must go well."""
    said = slimformer(*arguments)
    assert said.code == 0, said.err
    return said


PROGRESS = re.compile(r" *[\w -]+ +\d+ %  \d+:\d\d:\d\d elapsed(, \d+:\d\d:\d\d left)?\n")


def without_progress(log: str) -> str:
    """What else went to standard error: nobody watches here, so how far the work is stands there in lines, and before
    it how narrow the data are."""
    lines = [line for line in log.splitlines(keepends=True) if not PROGRESS.fullmatch(line)]
    return "".join(line for line in lines if "of broad text lies in directions it hardly shows" not in line)


def refused(*arguments: object) -> str:
    """Run a command that must end with exit code 2, nothing on standard output and one line; the line."""
    said = slimformer(*arguments)
    assert said.code == 2, said
    assert said.out == ""
    line = without_progress(said.err)
    assert line.startswith("slimformer: ")
    assert line.count("\n") == 1
    assert said.err.endswith(line)
    assert line.endswith("\n")
    return line


BRIEF = ("--tokens", 600, "--no-timing")


def compress(model: Path | str, shelf: Path, out: Path | str, *more: object) -> tuple[object, ...]:
    """The arguments of a short compression; what comes later counts."""
    data = () if "--data" in more else ("--data", shelf / "text.txt")  # given twice, both would be read
    return ("compress", model, "--macs", 0.6, *data, *BRIEF, "--out", out, *more)


def files(folder: Path) -> dict[str, bytes]:
    """All files below a folder and what is in them."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def furnish(root: Path) -> Path:
    """Models and data to read."""
    save_tiny(root / "llama", "llama")
    save_tiny(root / "gpt2", "gpt2")
    save_tiny(root / "bert", "bert", "classify")
    save_tiny(root / "vit", "vit")
    write_texts(root / "text.txt")
    write_table(root / "table.tsv")
    write_images(root / "images")
    return root


def save_tiny(folder: Path, model_type: str, head: str | None = None) -> Path:
    """A tiny model with its tokenizer or image processor, as a folder."""
    tiny(model_type, head).save_pretrained(folder)
    (tiny_image_processor() if model_type == "vit" else tiny_tokenizer()).save_pretrained(folder)
    return folder


def save_subwords(folder: Path) -> Path:
    """A model whose tokenizer can lose tokens."""
    tokenizer = fallback()
    tiny("llama", vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_sentences(folder: Path) -> Path:
    """A folder of sentence-transformers."""
    save_tiny(folder, "bert", "bare")
    parts = {"": "Transformer", "1_Pooling": "Pooling"}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(parts.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def texts(n: int, seed: int = 0) -> list[str]:
    """Documents in the words of the tiny tokenizer."""
    draw = random.Random(seed)
    return [" ".join(f"w{draw.randrange(5, VOCABULARY)}" for _ in range(draw.randrange(20, 60))) for _ in range(n)]


def write_texts(path: Path, n: int = 120, seed: int = 0) -> Path:
    path.write_text("\n\n".join(texts(n, seed)))
    return path


def write_table(path: Path, n: int = 120) -> Path:
    """Sentences with labels, tab-separated."""
    rows = [f"{text}\t{i % CLASSES}" for i, text in enumerate(texts(n, seed=1))]
    path.write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    return path


def write_images(folder: Path, n: int = 12) -> Path:
    """Random pictures, a sub-folder for each class."""
    import numpy as np
    from PIL import Image

    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for i in range(n):
            pixels = np.random.default_rng(n * label + i).integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / str(label) / f"{i}.png")
    return folder
