"""Latency of every size a site may take, measured on this machine: the prices of a --latency budget.

One block of each shape is copied and cut to a few sizes; all copies take turns on one input (see `evaluate.speed`), so
that a machine that slows down meets all of them alike. What a block costs besides its two sites (norms, residual
sums) is shared between them. Tables are kept below the user's cache, by hardware, software, kind of model and shapes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.checkpoint.atomic import replacing
from slimformer.decompose import Selection
from slimformer.decompose.reduction import coordinates, legal_sizes
from slimformer.evaluate.speed import Rounds, compare_latency
from slimformer.files.seals import read_sealed_json, sealed_json
from slimformer.messages.progress import Progress, silent
from slimformer.models import Architecture, Site, describe
from slimformer.models.sample_inputs import require_no_experts, require_one_stack, seen_or_heard
from slimformer.models.walk import Stream, rehearse, through
from slimformer.plan import Edit
from slimformer.plan.budget import LatencyTable, Point, shape
from slimformer.plan.cost import Size
from slimformer.plan.profile import Legal, site_sizes
from slimformer.rewrite.apply import cut_site
from slimformer.rewrite.sizes import keep_attributes_true

NEURONS = 9  # sizes of a feed-forward part that are measured; between them latency is taken to be straight
REPEATS, WARMUP = 9, 2


def latency_table(model: PreTrainedModel, *, seq_len: int, progress: Progress = silent) -> LatencyTable:
    """The table for this model on this machine at batch size 1: from the cache, or measured now (about a minute)."""
    require_one_stack(model.config, "a budget of latency")
    require_no_experts(model.config, "a budget of latency")
    architecture = describe(model)
    shapes = sorted({shape(site) for site in architecture})
    machine = hardware(model)
    key = hashlib.blake2b(
        json.dumps([machine, architecture.model_type, seq_len, shapes]).encode(), digest_size=8
    ).hexdigest()
    file = cache_folder() / f"{key}.json"
    try:
        known = read_sealed_json(file)
        return LatencyTable(machine, seq_len, {name: tuple(map(tuple, known["points"][name])) for name in shapes})
    except (OSError, ValueError, KeyError, TypeError):
        pass
    table = LatencyTable(machine, seq_len, _measure(model, architecture, seq_len, progress))
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as draft:
        draft.write_text(sealed_json({"machine": machine, "seq_len": seq_len, "points": dict(table.points)}))
    return table


def cache_folder() -> Path:
    """Where tables are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slimformer" / "latency"


def hardware(model: PreTrainedModel) -> str:
    """What measured times hold for."""
    device = str(model.device)
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else _processor()
    return f"{name}; {device}; {model.dtype}; {torch.get_num_threads()} threads; torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@torch.inference_mode()
def _measure(
    model: PreTrainedModel, architecture: Architecture, seq_len: int, progress: Progress
) -> dict[str, tuple[Point, ...]]:
    model.eval()
    (stream,) = rehearse(model, architecture, [_input(model, seq_len)])
    representatives = {shape(site): site.block for site in architecture}
    blocks = sorted(set(representatives.values()))
    points: dict[str, tuple[Point, ...]] = {}
    progress("measure latency", 0, len(blocks))
    for n, i in enumerate(blocks):
        points |= _block_points(model, architecture, i, stream)
        progress("measure latency", n + 1, len(blocks))
    return points


def _block_points(
    model: PreTrainedModel, architecture: Architecture, i: int, stream: Stream
) -> dict[str, tuple[Point, ...]]:
    """Prices of the sites of block i at their measured sizes."""
    here = architecture.blocks[i]
    calls = {"dense": partial(through, model.get_submodule(here.path), stream.state, stream.calls[i], here.runs)}
    sizes = {site.name: _sizes(architecture, site) for site in here.sites}
    for site in here.sites:
        for size in sizes[site.name][:-1]:
            cut = _cut(model, site, size)
            calls[f"{site.name} {size.units} {size.groups}"] = partial(
                through, cut, stream.state, stream.calls[i], here.runs
            )
    timings = compare_latency(calls, Rounds(REPEATS, WARMUP)).timings
    full = timings["dense"].median
    times = {
        site.name: [timings[f"{site.name} {s.units} {s.groups}"].median for s in sizes[site.name][:-1]] + [full]
        for site in here.sites
    }
    rest = max(0.0, full - sum(full - t[0] for t in times.values())) / len(times)
    return {
        shape(site): tuple(
            (size.units, size.groups, max(1, round(1e9 * (t - times[site.name][0] + rest))))
            # a larger size is never cheaper: where a measurement says so, it is noise
            for size, t in zip(sizes[site.name], itertools.accumulate(times[site.name], max), strict=True)
        )
        for site in here.sites
    }


def _sizes(architecture: Architecture, site: Site) -> list[Size]:
    """Sizes to measure, from small to large: of heads one chain, by which every other size is priced; a few of
    neurons."""
    chain = set(zip(*legal_sizes(site.units, site.group), strict=True))
    sizes = site_sizes(architecture, site, Legal())
    legal = [size for size in sizes if (size.units, size.groups) in chain]
    if site.kind == "attn.heads" or len(legal) <= NEURONS:
        return legal
    at = torch.linspace(0, len(legal) - 1, NEURONS).round().long().tolist()
    return [legal[j] for j in at]


def _cut(model: PreTrainedModel, site: Site, size: Size) -> nn.Module:
    """A copy of a site's block with the first units only; the model is left as it was."""
    original = model.get_submodule(site.root)
    order = tuple(_units(site, size))
    J = coordinates(order, site.unit)
    E = torch.eye(site.width, dtype=torch.float64)[:, J]
    try:
        model.set_submodule(site.root, deepcopy(original))
        edit = Edit(site.name, "first", size.units, site.units, size.groups)
        cut_site(model, site, edit, order, Selection(J, E, torch.zeros(site.width, dtype=torch.float64)))
        keep_attributes_true(model)
        return model.get_submodule(site.root)
    finally:
        model.set_submodule(site.root, original)
        keep_attributes_true(model)


def _units(site: Site, size: Size) -> Iterator[int]:
    """As many units of as many key/value groups as the size says."""
    each = size.units // max(1, size.groups)
    for group in range(size.groups):
        yield from range(group * site.group, group * site.group + each)


def _input(model: PreTrainedModel, seq_len: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    if inputs := seen_or_heard(model, 1, seq_len, generator):
        return Batch({name: x.to(model.device, model.dtype) for name, x in inputs.items()}, None)
    ids = torch.randint(2, model.config.vocab_size, (1, seq_len), generator=generator)
    return Batch({"input_ids": ids.to(model.device)}, None)
