"""Whether statistics are those of a model: its weights, its blocks, a length it can read, and rows of its widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.calibrate.gather import sequence_length
from slimformer.calibrate.store import Provenance, Statistics
from slimformer.decompose.response import Response
from slimformer.errors import PlanDoesNotFit, SequenceTooLong
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import HEADS, fingerprint

SPLITS = ("fit", "select")  # what moments are taken of


def require_same_model(model: PreTrainedModel, statistics: Statistics, known: str | None = None) -> None:
    """Refuse statistics of another model, and those that say what this model cannot be.

    The fingerprint of a model that is not in memory must be `known`.
    """
    provenance, current = statistics.provenance, known or fingerprint(model)
    if current != provenance.fingerprint:
        raise PlanDoesNotFit(
            f"the statistics were made for {provenance.model} ({provenance.fingerprint}), this model is "
            f"{current}; calibrate it anew"
        )
    architecture = describe(model)
    try:
        _require_facts(provenance, model, architecture)
    except (ValueError, SequenceTooLong) as error:
        raise PlanDoesNotFit(
            f"{statistics.folder / 'stats.json'}: {error}; make it with `slimformer calibrate`"
        ) from None


def _require_facts(provenance: Provenance, model: PreTrainedModel, architecture: Architecture) -> None:
    for name in ("model_type", "n_blocks"):
        stated, true = getattr(provenance, name), getattr(architecture, name)
        if stated != true:
            raise ValueError(f"{name} is said to be {stated}, and is {true}")
    if missing := [split for split in SPLITS if split not in provenance.tokens]:
        raise ValueError(f"tokens says nothing of {missing[0]}")
    sequence_length(model, architecture, provenance.seq_len)


def moments_of(statistics: Statistics, architecture: Architecture, i: int) -> BlockMoments:
    """The moments of block i, if they are those of block i of this model."""
    block, provenance = statistics.block(i), statistics.provenance
    # of texts every token is a row, of images every position; once for every run of the block
    counts = {
        split: provenance.tokens[split] * architecture.blocks[i].runs for split in SPLITS if split in provenance.tokens
    }
    rows = {split: {count, count * provenance.seq_len} for split, count in counts.items()}
    if (
        i < architecture.stacks[-1].blocks[0].index or architecture.family.towers
    ):  # tokens are those of targets; of sources all sites saw as many
        first = next(iter(block.sites.values()), {})
        rows = {split: {moments.count} for split, moments in first.items()}
    try:
        require_of_model(block, architecture, rows, provenance.joint)
    except ValueError as error:
        raise PlanDoesNotFit(
            f"the statistics in {str(statistics.folder)!r} are not those of block {i} of this model: {error}; "
            "run `slimformer calibrate` again"
        ) from None
    return block


@contextmanager
def factorising(statistics: Statistics) -> Iterator[None]:
    """Say in one line that moments cannot be factorised: they are then of no data, whatever each number says."""
    try:
        yield
    except torch.linalg.LinAlgError as error:
        raise PlanDoesNotFit(
            f"the moments in {str(statistics.folder)!r} cannot be those of any data ({' '.join(str(error).split())}); "
            "run `slimformer calibrate` again"
        ) from error


def require_of_model(
    block: BlockMoments, architecture: Architecture, rows: Mapping[str, set[int]], joint: bool
) -> None:
    """A ValueError where a block's moments are not those of these sites, over as many rows of every split as `rows`
    allows; `joint` says whether there must be moments of neurons with their input."""
    here = architecture.blocks[block.block]
    sites = here.sites
    if block.sites.keys() != {site.name for site in sites}:
        raise ValueError(f"they are of {', '.join(block.sites)}, not of {', '.join(site.name for site in sites)}")
    for site in sites:
        _require_rows(site.name, block.sites[site.name], site.width, rows)
        root = block.metric.get(site.name)
        if root is not None and root.shape != (site.outer, site.outer):
            raise ValueError(f"the metric of {site.name} is of width {len(root)}, and what is read has {site.outer}")
    if joint and len(here.neurons) == 1:
        (neurons,) = here.neurons
        _require_rows("neurons with their input", block.joint, neurons.width + neurons.outer, rows)
    for response in block.responses.values():
        _require_heads(response, here.one(HEADS))


def _require_rows(name: str, moments: Mapping[str, Moments], width: int, rows: Mapping[str, set[int]]) -> None:
    for split, allowed in rows.items():
        if split not in moments or moments[split].width != width:
            raise ValueError(f"there are none of {name}, {split}, of width {width}")
        if moments[split].count not in allowed:
            raise ValueError(
                f"those of {name}, {split}, are over {moments[split].count} rows, and stats.json speaks of "
                f"{min(allowed)} tokens"
            )


def _require_heads(response: Response, heads: Site) -> None:
    if len(response.queries) != heads.units:
        raise ValueError(f"the response of attention has {len(response.queries)} heads, the model {heads.units}")
