"""Diagrams of four minimal transformers: what a block has, and what is no longer there.

python benchmarks/minimal_diagrams.py     docs/images/minimal.svg, from the configs themselves
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from slimformer.lab.architectures.minimal_config import MinimalConfig, parameter_count

IMAGE = Path(__file__).parents[1] / "docs" / "images" / "minimal.svg"
WIDTH, BLOCKS = 64, 6
FORMS = {
    "the standard block": {"mlp_ratio": 4},
    "no MLP": {"mlp_ratio": 0},
    "one W_qk": {"mlp_ratio": 0, "qk": "collapsed"},
    "T Tᵀ, no W_v, W_o": {"mlp_ratio": 0, "qk": "symmetric", "vo": "none"},
}
PANEL, HEIGHT, LEFT, MIDDLE, RIGHT = 224, 452, 62, 115, 170  # columns: queries, the stream, values
INK, WEIGHT, PLAIN, GONE = "#222222", "#cfe3f3", "#eeeeee", "#999999"


def config_of(form: str) -> MinimalConfig:
    """A model of images with one head, in one of the four forms."""
    same = {"hidden_size": WIDTH, "num_hidden_layers": BLOCKS, "num_attention_heads": 1, "num_labels": 10}
    return MinimalConfig(**same, image_size=28, patch_size=7, num_channels=1, **FORMS[form])


def box(x: float, y: float, width: float, text: str, fill: str = WEIGHT) -> str:
    """A step of the block; blue ones hold weights."""
    place = f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="24" rx="4" fill="{fill}" stroke="{INK}"/>'
    return place + said(x, y + 16.5, text)


def said(x: float, y: float, text: str, size: int = 12, colour: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="middle" fill="{colour}">{escape(text)}</text>'


def line(*points: tuple[float, float]) -> str:
    path = " L ".join(f"{x:g} {y:g}" for x, y in points)
    return f'<path d="M {path}" fill="none" stroke="{INK}"/>'


def added(y: float, start: float) -> str:
    """The stream that goes around a part, and the sum of both."""
    circle = f'<circle cx="{MIDDLE}" cy="{y:g}" r="8" fill="white" stroke="{INK}"/>'
    around = line((MIDDLE, start), (6, start), (6, y), (MIDDLE - 8, y))
    return around + circle + said(MIDDLE, y + 4.5, "+", 14)


def attention(config: MinimalConfig) -> str:
    """Between the first norm and the first sum: scores on the left, values on the right."""
    left = {"full": ["W_q", "W_k"], "collapsed": ["W_qk", ""], "symmetric": ["T", "T"]}[config.qk]
    parts = [line((MIDDLE, 352), (MIDDLE, 340))]
    for x, name in zip((LEFT - 20, LEFT + 34), left, strict=True):
        parts.append(line((MIDDLE, 340), (x, 340), (x, 270)))
        parts.append(box(x, 306, 46, name) if name else said(x + 16, 323, "x", colour=GONE))
    parts.append(line((MIDDLE, 340), (RIGHT + 16, 340), (RIGHT + 16, 228), (MIDDLE + 40, 228)))
    parts.append(box(RIGHT + 16, 306, 46, "W_v") if config.vo == "full" else said(RIGHT + 26, 323, "x", colour=GONE))
    parts.append(box(LEFT + 8, 258, 108, "softmax(q kᵀ / √D)", PLAIN))
    parts.append(line((LEFT + 8, 258), (LEFT + 8, 228), (MIDDLE - 40, 228)))
    parts.append(box(MIDDLE, 216, 80, "P · values", PLAIN))
    parts.append(line((MIDDLE, 216), (MIDDLE, 174)))
    if config.vo == "full":
        parts.append(box(MIDDLE, 182, 46, "W_o"))
    return "".join(parts)


def panel(form: str, offset: float) -> str:
    """One form: input at the bottom, output at the top."""
    config = config_of(form)
    parts = [said(MIDDLE, 22, form, 14), line((MIDDLE, 408), (MIDDLE, 376)), box(MIDDLE, 352, 80, "norm", PLAIN)]
    parts += [attention(config), added(166, 394), said(MIDDLE, 422, "tokens × D", colour=GONE)]
    if config.mlp_ratio:
        parts += [line((MIDDLE, 158), (MIDDLE, 62)), box(MIDDLE, 118, 80, "norm", PLAIN)]
        parts += [box(MIDDLE, 84, 116, f"MLP, D → {config.mlp_ratio:g} D → D"), added(60, 150)]
        parts.append(line((MIDDLE, 52), (MIDDLE, 36)))
    else:
        parts.append(line((MIDDLE, 158), (MIDDLE, 36)))
    parts.append(said(MIDDLE, 442, f"{parameter_count(config):,} parameters"))
    return f'<g transform="translate({offset:g} 0)">{"".join(parts)}</g>'


def drawing() -> str:
    """All four side by side."""
    width = PANEL * len(FORMS)
    panels = "\n".join(panel(form, i * PANEL) for i, form in enumerate(FORMS))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif">'
    return f'{head}\n<rect width="{width}" height="{HEIGHT}" fill="white"/>\n{panels}\n</svg>\n'


if __name__ == "__main__":
    IMAGE.write_text(drawing(), encoding="utf-8")
    print(f"written: {IMAGE}")
    sys.exit(0)
