"""Figures of what data do inside a model: activations, attention, two data sets side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from slimformer.report.canvas import (
    COLOURS,
    ENERGIES,
    NULLS,
    OF_SHARES,
    Facts,
    block_bar,
    canvas,
    heat,
    label_pair,
    panels,
    shade,
    short,
    spectra_pair,
    whole_blocks,
)
from slimformer.report.portrait import streams_of

MARKERS = "os^D"  # one for every data set that may stand side by side
DASHES = ("-", "--", ":", "-.")


def data_figures(portrait: Facts) -> Iterator[tuple[str, Any]]:
    """Names and figures; data sets are numbered when there are two."""
    sets = portrait.get("data", [])
    for i, data in enumerate(sets):
        number = f"-{i + 1}" if len(sets) > 1 else ""
        yield f"activations{number}", activation_spectra(portrait, data)
        for attention in data["attention"]:
            if attention["blocks"]:
                yield f"attention-maps-{attention['length']}{number}", attention_maps(portrait, data, attention)
    if sets:
        yield "activations-ranks", activation_ranks(portrait, sets)
        for pair in zip(*(data["attention"] for data in sets), strict=True):
            if all(attention["blocks"] for attention in pair):
                yield f"attention-energy-{pair[0]['length']}", attention_energy(portrait, sets, pair)
                yield f"attention-layers-{pair[0]['length']}", attention_layers(portrait, sets, pair)


def activation_spectra(portrait: Facts, data: Facts) -> Any:
    """Singular values of the four streams about their mean, linear above, logarithmic below."""
    streams = streams_of([data])
    title = (
        f"{short(portrait['model'], 30)} on {short(data['name'], 40)}: singular values of activations, mean taken off"
    )
    drawing = canvas(2.7 * len(streams) + 0.8, 5.2, title)
    axes = drawing.subplots(2, len(streams), squeeze=False, sharex=True)
    for column, name in enumerate(streams):
        curves = []
        for block in (block for block in data["activations"] if name in block["streams"]):
            values = np.array(block["streams"][name]["values"], dtype=float)
            if len(values) and values[0] > 0:
                curves.append((block["block"], values / values[0]))
        spectra_pair(axes[:, column], curves, portrait["blocks"])
        axes[0, column].set_title(name, fontsize=10)
    label_pair(axes, "σ / σ₁", "index / width")
    block_bar(drawing, axes, portrait["blocks"])
    return drawing


def activation_ranks(portrait: Facts, sets: Sequence[Facts]) -> Any:
    """Share of the width that holds 99 % of the variance, by block and stream; every data set has its own dashes."""
    streams = streams_of(sets)
    drawing = canvas(8.5, 4, f"{short(portrait['model'])}: share of the width that holds 99 % of the variance")
    ax = drawing.subplots()
    for style, data in zip(map("".join, zip(MARKERS, DASHES, strict=True)), sets, strict=False):
        for colour, name in zip(COLOURS, streams, strict=False):
            blocks = [block for block in data["activations"] if name in block["streams"]]
            at = [block["block"] for block in blocks]
            shares = [block["streams"][name]["rank99"] for block in blocks]
            label = name if data is sets[0] else None
            ax.plot(at, shares, style, color=colour, markersize=3.5, label=label)
        ax.plot([], [], style, color="0.35", markersize=3.5, label=short(data["name"], 28))
    ax.set(xlabel="block", ylabel="share of the width", ylim=(0, 1))
    whole_blocks(ax, portrait["blocks"])
    drawing.legend(frameon=False, fontsize=8, loc="outside right center")
    return drawing


def attention_maps(portrait: Facts, data: Facts, attention: Facts) -> Any:
    """Mean attention over heads and sequences, block by block; queries from top to bottom, keys from left to right."""
    pictures = []
    for block in attention["blocks"]:
        picture = np.array(block["mean_map"])  # the first query of a decoder sees one key: 1 says nothing there
        most = max(float(np.quantile(picture, 0.995)), 1e-30)
        pictures.append((f"block {block['block']}", np.sqrt(np.clip(picture / most, 0, 1))))
    title = f"{short(portrait['model'], 30)} on {short(data['name'], 40)}: mean attention, {attention['length']} tokens"
    return panels(pictures, title, top=1.0, label="√(attention / 99.5th percentile)")


def attention_energy(portrait: Facts, sets: Sequence[Facts], pair: Sequence[Facts]) -> Any:
    """Cumulative energy by block with nulls, and heat maps of heads at n/4: one row for each data set."""
    n = pair[0]["length"]
    title = (
        f"{short(portrait['model'], 40)}: spectra of attention, {n} tokens (Σσ as drawn by Linformer, Σσ² the error)"
    )
    drawing = canvas(13, 3.4 * len(sets) + 0.4, title)
    axes = drawing.subplots(len(sets), 4, squeeze=False, width_ratios=(1.15, 1.15, 1, 1))
    for row, (data, attention) in enumerate(zip(sets, pair, strict=True)):
        for ax, (key, name) in zip(axes[row], ENERGIES.items(), strict=False):
            _energy_curves(ax, attention, key, portrait["blocks"])
            ax.set(xlabel="k", ylabel=f"{name} of the first k, over all", ylim=(0, 1.02), xlim=(0, n))
            ax.set_title(short(data["name"], 34), fontsize=9)
        axes[row, 0].legend(frameon=False, fontsize=7, loc="lower right")
        for ax, (key, name) in zip(axes[row, 2:], ENERGIES.items(), strict=True):
            rows = [block[f"energy_{key}"] for block in attention["blocks"]]
            heat(ax, rows, f"{name} at k = n/4 = {max(1, n // 4)}", xlabel="head", shades=OF_SHARES)
            ax.set_ylabel("block")
    return drawing


def attention_layers(portrait: Facts, sets: Sequence[Facts], pair: Sequence[Facts]) -> Any:
    """Energy at n/4 by block: means over heads with the range of heads, with the nulls of the first data set."""
    n = pair[0]["length"]
    drawing = canvas(11, 4.2, f"{short(portrait['model'], 40)}: energy of the first n/4 singular values, {n} tokens")
    for ax, (key, name) in zip(drawing.subplots(1, 2, sharey=True), ENERGIES.items(), strict=True):
        for i, (data, attention) in enumerate(zip(sets, pair, strict=True)):
            at = np.array([block["block"] for block in attention["blocks"]]) + 0.12 * i
            heads = [block[f"energy_{key}"] for block in attention["blocks"]]
            means = np.array([fmean(h) for h in heads])
            reach = [means - [min(h) for h in heads], np.array([max(h) for h in heads]) - means]
            label = f"{short(data['name'], 28)}, mean and range of heads" if key == "sum" else None
            ax.errorbar(at, means, reach, fmt=MARKERS[i] + "-", color=COLOURS[i], markersize=4, capsize=2,
                        linewidth=1.3, elinewidth=0.8, label=label)  # fmt: skip
        for null, (label, style) in NULLS.items():
            level = [fmean(block["nulls"][null][f"energy_{key}"]) for block in pair[0]["blocks"]]
            at = np.array([block["block"] for block in pair[0]["blocks"]])
            ax.plot(at, level, style, color="0.35", linewidth=1.4, label=label if key == "sum" else None)
        ax.axhline(max(1, n // 4) / n, color="0.6", linewidth=0.8, label="flat: all σ equal" if key == "sum" else None)
        ax.set(xlabel="block", ylabel=f"{name} at n/4", ylim=(0, 1.02))
        whole_blocks(ax, portrait["blocks"])
    drawing.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=3)
    return drawing


def _energy_curves(ax: Any, attention: Facts, key: str, count: int) -> None:
    blocks = attention["blocks"]
    along = np.arange(1, len(blocks[0][f"curve_{key}"]) + 1)
    for block in blocks:
        ax.plot(along, block[f"curve_{key}"], color=shade(block["block"], count), linewidth=1.1)
    for null, (label, style) in NULLS.items():
        mean = np.mean([block["nulls"][null][f"curve_{key}"] for block in blocks], axis=0)
        ax.plot(along, mean, style, color="0.35", linewidth=1.4, label=label)
    ax.plot([0, len(along)], [0, 1], color="0.7", linewidth=0.8, label="all σ equal")
    ends = {0: "first block", count - 1: "last block"}
    for block, name in ends.items():
        ax.plot([], [], color=shade(block, count), linewidth=1.6, label=name)
    ax.axvline(len(along) / 4, color="0.85", linewidth=0.8, zorder=0)
