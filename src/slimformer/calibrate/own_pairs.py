"""Pictures with captions for two towers that have none to be calibrated on: plain shapes, and what is to be seen.

A picture shows one to three shapes of a colour and a size each on a ground of another colour, from left to right; its
caption says so in the same order ("a small red ring and a large blue square on a white ground"). Which picture belongs
to which caption can be told, so matches can be counted. They show no objects, textures or scenes: images with captions
like those the model will see are always the better choice.

Cost: some milliseconds for a picture; kept below the user's cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimformer.calibrate.own_images import keep_picture
from slimformer.calibrate.own_text import cache_folder
from slimformer.errors import CannotWrite

COLOURS = {
    "black": (0, 0, 0), "white": (255, 255, 255), "red": (220, 20, 30), "green": (20, 150, 50), "blue": (30, 60, 220),
    "yellow": (250, 220, 30), "orange": (250, 140, 20), "purple": (130, 40, 150), "pink": (250, 150, 190),
    "brown": (120, 70, 30), "grey": (128, 128, 128), "turquoise": (40, 200, 190),
}  # fmt: skip
SIZES = {"small": 0.55, "large": 0.95}  # of the room a shape has
MOST = 3  # shapes of a picture
Plane = NDArray[np.float64]
SHAPES: dict[str, Callable[[Plane, Plane], NDArray[np.bool_]]] = {  # inside, of places in [−1, 1]²
    "circle": lambda y, x: x * x + y * y < 1,
    "ring": lambda y, x: (x * x + y * y < 1) & (x * x + y * y > 0.4),
    "square": lambda y, x: np.maximum(abs(x), abs(y)) < 0.85,
    "triangle": lambda y, x: (abs(x) < (y + 1) / 2) & (abs(y) < 0.9),
    "cross": lambda y, x: np.minimum(abs(x), abs(y)) < np.where(np.maximum(abs(x), abs(y)) < 0.95, 0.3, -1.0),
    "diamond": lambda y, x: abs(x) + abs(y) < 1,
}


def own_pairs(count: int, *, sides: tuple[int, int], seed: int) -> Path:
    """A folder of `count` pictures and their captions; the same seed, the same pictures. From the cache, if there."""
    folder = cache_folder().with_name("images") / f"shapes-{count}x{sides[0]}x{sides[1]}-{seed}"
    table = folder / "captions.jsonl"
    if table.is_file():  # written last
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for i in range(count):
            picture, caption = drawn(sides, np.random.default_rng([seed, i]))
            keep_picture(folder / f"{i:06d}.png", picture)
            rows.append(json.dumps({"image": f"{i:06d}.png", "caption": caption}))
        draft = folder / f".captions.{os.getpid()}"
        draft.write_text("\n".join(rows) + "\n", encoding="utf-8")
        os.replace(draft, table)
    except OSError as error:
        raise CannotWrite(f"pictures cannot be kept in {folder}: {error.strerror}; set XDG_CACHE_HOME") from error
    return folder


def drawn(sides: tuple[int, int], rng: np.random.Generator) -> tuple[NDArray[np.uint8], str]:
    """One picture, height × width × 3, and its caption."""
    count = int(rng.integers(1, MOST + 1))
    ground, *colours = rng.choice(list(COLOURS), count + 1, replace=False).tolist()
    rows, columns = (np.linspace(-1, 1, side) for side in sides)
    picture = np.empty((*sides, 3), np.uint8)
    picture[:] = COLOURS[ground]
    seen = []
    for n, colour in enumerate(colours):
        shape, size = (str(rng.choice(list(names))) for names in (SHAPES, SIZES))
        half = SIZES[size] / count  # from left to right each shape has its share of the width
        centre = (2 * n + 1) / count - 1
        inside = SHAPES[shape](rows[:, None] / half, (columns[None] - centre) / half)
        picture[np.broadcast_to(inside, sides)] = COLOURS[colour]
        seen.append(f"a {size} {colour} {shape}")
    return picture, f"{' and '.join(seen)} on {_a(ground)} ground"


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"
