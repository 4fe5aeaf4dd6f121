"""What a model costs: exact multiply-accumulates and parameters, at a stated sequence length.

MACs are those of the matrix products of the blocks, per token of a sequence of length T:

    a neuron      D (writers + 1)                                 the rows that write it, the column that reads it
    a linear path 2 r D, at most D²; as 2 r neurons without gate  beside the neurons, of rank r
    a query head  (r + d) D + T (r + d)                           q rows and o columns, scores and context (full T × T)
    a kv head     (r + d) D                                       k and v rows
    an expert     a/E of its neurons, and D                       a of E are active; and the row of the router

    scores by distance    N d + N d D / T a query head        N rows of tables, projected once per sequence (DeBERTa)

d is the width of a value, r that of a query or key; they are equal where attention was not cut by rank.

Of an encoder and a decoder T is the length of the target, and of the source as well, unless the encoder always has the
same number S of positions (Whisper): then a token carries S / T positions of the encoder, keys and values of
cross-attention are written S / T times for a token, and a query sees S of them.

Norms, activations, softmax and biases are not matrix products and are not counted. Embeddings and heads are
reported apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from slimformer.models import Architecture, Site
from slimformer.models.architecture import out_in
from slimformer.models.ranks import scores_site, values_site
from slimformer.models.sample_inputs import heard_lengths


@dataclass(frozen=True)
class Size:
    """How much of a site is kept: units (neurons or query heads) and key/value groups (equal to units elsewhere).

    `rank` is that of a linear path which is put beside neurons (`decompose.bypass`).
    """

    units: int
    groups: int
    rank: int = 0


@dataclass(frozen=True)
class Cost:
    macs: int  # of the blocks, per token
    params: int  # of the blocks' matrices and biases that depend on sizes

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.macs + other.macs, self.params + other.params)


def full_size(site: Site) -> Size:
    return Size(site.units, site.units // site.group)


def site_cost(site: Site, size: Size, seq_len: int) -> Cost:
    """MACs per token, of all runs of its block, and parameters of a site at a size."""
    if site.fixed:
        return Cost(site.fixed.macs + 2 * seq_len * site.width, site.fixed.params)
    macs = params = site.beside + (path_weights(site.outer, size.rank) if site.gated else 0)
    params += site.outer * (site.path_bias or (size.rank > 0 and site.path_brings_bias))
    units = size.units + (0 if site.gated else 2 * size.rank)
    seen = site.looks_at or site.positions or seq_len  # by a query
    source = 0  # what is written at the positions of another stack
    for n, writer in enumerate(site.writers):
        rows = writer.rows * (units if writer.shared == 1 else size.groups)
        if site.crosses and n:
            source += rows * site.outer
        else:
            macs += rows * site.outer
        params += rows * (site.outer + writer.bias)
    columns = units * site.unit
    if site.reader:  # scores are read by no matrix
        macs += columns * site.outer
        params += columns * site.outer
    if site.kind in ("attn.qk", "attn.vo"):
        macs += seen * columns
    if site.kind == "attn.heads":
        macs += seen * size.units * (site.writers[0].rows + site.unit)
        by_distance = size.units * site.unit * site.distances  # the tables are projected once per sequence
        macs += by_distance + by_distance * site.outer // max(1, seq_len)
    if site.expert:
        macs, params = site.expert.share(macs) + site.outer, params + site.outer
    here, there = (n / max(1, seq_len) if n else 1 for n in (site.positions, site.looks_at))
    return Cost(round(macs * here + source * there) * site.runs, params)


def path_weights(width: int, rank: int) -> int:
    """Weights of a linear path beside gated neurons: two thin matrices, or one square one where that is less."""
    return min(2 * rank, width) * width


def path_rank(width: int, weights: int) -> int:
    """The rank of a path with so many weights; the whole width for a square matrix."""
    return width if weights == width * width else weights // (2 * width)


def block_cost(architecture: Architecture, seq_len: int, sizes: Mapping[str, Size] | None = None) -> Cost:
    """Cost of all blocks; `sizes` replaces the sizes of the sites it names."""
    sizes = sizes or {}
    total = Cost(0, 0)
    for site in architecture:
        ways = [site]
        if site.kind == "attn.heads" and {site.rank_name(rank) for rank in ("qk", "vo")} & sizes.keys():
            ways = [scores_site(site), values_site(site)]
        for way in ways:
            total = total + site_cost(way, sizes.get(way.name, full_size(way)), seq_len)
    return total


def kv_cache_bytes(
    architecture: Architecture, seq_len: int, itemsize: int, sizes: Mapping[str, Size] | None = None
) -> int:
    """Bytes of the cache of a decoder after T positions: Σ over blocks of kv heads · (r + d) · T · itemsize.

    `sizes` replaces the sizes of the sites it names: those of a plan, for the model it was made for.

    A block without any ranks keeps one number per position, by which the cache knows its length. Encoders keep nothing.
    A sliding window caps what is kept; here it is not. Of cross-attention keys and values of the source are kept.
    """
    sizes = sizes or {}
    total = 0
    for site in architecture.heads:
        if architecture.layout(site).causal:
            ranks = scores_site(site), values_site(site)
            kept = sum(
                writer.rows * sizes.get(rank.name, full_size(rank)).units // max(1, rank.units)
                for writer, rank in zip(site.writers[1:], ranks, strict=True)
            )
            length = (site.looks_at or seq_len) if site.crosses else seq_len
            total += max(1, sizes.get(site.name, full_size(site)).groups * kept) * length
    return total * itemsize


def outside_macs(model: PreTrainedModel, architecture: Architecture, seq_len: int) -> int:
    """MACs per token of everything outside the blocks: embeddings' convolutions, language-model and task heads.

    Poolers and encoders' classifiers of whole sequences run once per sequence, so their share of a token is 1/T of it.
    """
    macs = 0.0
    outputs_of = iter(heard_lengths(model.config, seq_len)[1:] if architecture.family.sound else ())
    for name, module in model.named_modules():
        if architecture.inside(name):
            continue
        if isinstance(module, nn.Conv1d):  # of sounds; positions come from one after them (wav2vec 2.0)
            macs += module.weight.numel() * next(outputs_of, seq_len) / seq_len
        once = architecture.family.towers or _once_per_sequence(model, name, causal=architecture.family.causal)
        if isinstance(module, nn.Conv2d):
            macs += module.weight.numel() * _patches(model, architecture, seq_len) / seq_len
        elif isinstance(module, nn.Linear):
            outputs, inputs = out_in(module)
            macs += outputs * inputs / (seq_len if once else 1)
    return round(macs)


def _patches(model: PreTrainedModel, architecture: Architecture, seq_len: int) -> int:
    """Positions of an image that are patches."""
    if architecture.family.towers:
        return max(site.positions - architecture.layout(site).class_position for site in architecture)
    return seq_len - architecture.family.class_positions(model.config)


def _once_per_sequence(model: PreTrainedModel, name: str, *, causal: bool) -> bool:
    """Decoders classify at every position and take the last, so theirs count as often as a language-model head."""
    whole = type(model).__name__.endswith(("SequenceClassification", "ImageClassification")) and not causal
    return "pooler" in name or (whole and not name.startswith(model.base_model_prefix + "."))
