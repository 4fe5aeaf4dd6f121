"""Pictures for a vision model that has none to calibrate on: dead leaves, drawn, not photographed.

A classifier of images cannot write images of its own. What stands in for them are opaque discs of random colour that
cover one another, with radii drawn from r⁻³ between bounds: edges at every scale, occlusion, and the 1/f spectrum of
photographs, but no objects. They protect edges and textures; what tells classes apart they do not show, so photographs
like those the model will see are always the better choice.

Cost: some milliseconds for a picture; kept below the user's cache.

References: Lee, Mumford and Huang, "Occlusion models for natural images" (2001); Baradad et al., "Learning to see by
looking at noise" (2021).
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimformer.calibrate.images import pillow
from slimformer.calibrate.own_text import cache_folder
from slimformer.errors import CannotWrite

DISCS = 160  # of a picture: enough to cover nearly all of it
SMALLEST, LARGEST = 0.03, 0.5  # radii, of the longer side


def own_images(count: int, *, channels: int, sides: tuple[int, int], seed: int) -> Path:
    """A folder of `count` pictures; the same seed, the same pictures. From the cache, if there."""
    folder = cache_folder().with_name("images") / f"leaves-{count}x{channels}x{sides[0]}x{sides[1]}-{seed}"
    files = [folder / f"{i:06d}.png" for i in range(count)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for i, file in enumerate(files):
            if not file.exists():
                keep_picture(file, dead_leaves(channels, sides, np.random.default_rng([seed, i])))
    except OSError as error:
        raise CannotWrite(f"pictures cannot be kept in {folder}: {error.strerror}; set XDG_CACHE_HOME") from error
    return folder


def dead_leaves(channels: int, sides: tuple[int, int], rng: np.random.Generator) -> NDArray[np.uint8]:
    """One picture, height × width × channels; discs from the back to the front."""
    longer = max(sides)
    rows, columns = np.ogrid[: sides[0], : sides[1]]
    picture = np.full((*sides, channels), rng.integers(0, 256, channels), dtype=np.uint8)
    low, high = (max(r * longer, 0.6) ** -2 for r in (SMALLEST, LARGEST))
    for u in rng.random(DISCS):
        r = (low + u * (high - low)) ** -0.5  # P(radius > r) ∝ r⁻²
        y, x = rng.uniform(-r, sides[0] + r), rng.uniform(-r, sides[1] + r)
        picture[(rows - y) ** 2 + (columns - x) ** 2 < r * r] = rng.integers(0, 256, channels)
    return picture


def keep_picture(file: Path, picture: NDArray[np.uint8]) -> None:
    """Write a picture beside its place, and then put it there."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    image = pillow().Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
    image.save(draft, format="PNG")
    os.replace(draft, file)
