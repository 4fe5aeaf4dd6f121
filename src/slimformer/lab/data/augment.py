"""Augmentations on whole batches of bytes, without a loop over images."""

from __future__ import annotations

import torch
from torch import Tensor

from slimformer.lab.settings import Augmentation


def augmented(pixels: Tensor, how: Augmentation, draw: torch.Generator) -> Tensor:
    """Every image of the batch (b × c × h × w) changed by draws of its own."""
    if how.flip:
        turned = torch.rand(len(pixels), generator=draw) < 0.5
        pixels = torch.where(turned[:, None, None, None], pixels.flip(-1), pixels)
    if how.crop:
        pixels = moved(pixels, _offsets(pixels, how.crop, draw), mirror=True)
    if how.shift:
        pixels = moved(pixels, _offsets(pixels, how.shift, draw), mirror=False)
    return pixels


def moved(pixels: Tensor, offsets: Tensor, *, mirror: bool) -> Tensor:
    """Image i moved by offsets[i] = (down, right): out[y, x] = in[y − down, x − right].

    What comes in from outside is zero, or the image mirrored at its edge: a crop of the padded image. One gather.
    """
    height, width = pixels.shape[-2:]
    y = torch.arange(height)[None] - offsets[:, :1]
    x = torch.arange(width)[None] - offsets[:, 1:]
    batch = torch.arange(len(pixels))[:, None, None]
    taken = pixels.movedim(1, -1)[batch, _inside(y, height)[:, :, None], _inside(x, width)[:, None, :]].movedim(-1, 1)
    if mirror:
        return taken
    known = ((y >= 0) & (y < height))[:, :, None] & ((x >= 0) & (x < width))[:, None, :]
    return taken * known[:, None]


def _offsets(pixels: Tensor, most: int, draw: torch.Generator) -> Tensor:
    return torch.randint(-most, most + 1, (len(pixels), 2), generator=draw)


def _inside(index: Tensor, n: int) -> Tensor:
    """Indices beyond an edge mirrored at it (the edge itself is not repeated), and cut where that does not suffice."""
    index = index.abs()
    return torch.minimum(index, 2 * (n - 1) - index).clamp(0, n - 1)
