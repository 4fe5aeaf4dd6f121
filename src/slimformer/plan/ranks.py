"""Ranks of attention: their curves, what they may be cut to, and the reductions behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve, Width
from slimformer.decompose.bilinear import ScoreRanks, score_curve, score_gauge, score_ranks
from slimformer.decompose.low_rank import Ranks, value_curve, value_ranks, whitened
from slimformer.decompose.rotary import plane_ranks, planes
from slimformer.models import Architecture, Site
from slimformer.models.ranks import heads_of, scores_site
from slimformer.plan.choice import Way
from slimformer.plan.cost import Size
from slimformer.plan.profile import Ladder, Price, rising, site_width

STEP = 4  # coordinates of a head that go together, so that widths stay even; two rotary planes


@dataclass(frozen=True)
class Attention:
    """The attention of one block as the decompositions see it."""

    width: Width
    block: BlockMoments
    kv_heads: int
    rotary: bool
    ridge: float

    @property
    def group(self) -> int:
        return self.width.units // self.kv_heads

    def curve(self, site: Site) -> Curve:
        """Error of what the block writes at every rank, measured on the select split. Cost: see the methods."""
        if site.kind == "attn.vo":
            return value_curve(self.width, whitened(self.width, ridge=self.ridge), ridge=self.ridge)
        fit, held = self.block.responses["fit"], self.block.responses["select"]
        if not self.rotary:
            gauge = score_gauge(fit.scores, group=self.group, ridge=self.ridge)
            return score_curve(gauge, fit.scores, held.scores)
        found = planes(fit.effects, held.effects, kv=self.kv_heads, ridge=self.ridge, shared=False)
        ranks = tuple(range(len(found.sizes)))  # a rank is one plane of every key head, each its own
        return replace(found, sizes=ranks, groups=ranks)

    def values(self, r: int) -> Ranks:
        """The reduction of all value heads to rank r."""
        return value_ranks(self.width, whitened(self.width, ridge=self.ridge), r, ridge=self.ridge)

    def scores(self, order: Sequence[int], r: int) -> ScoreRanks:
        """The reduction of all queries and keys to rank r, or to the first r planes of `order`."""
        fit = self.block.responses["fit"]
        if not self.rotary:
            return score_ranks(score_gauge(fit.scores, group=self.group, ridge=self.ridge), r, group=self.group)
        return plane_ranks(fit.effects, order, r * self.kv_heads, kv=self.kv_heads, ridge=self.ridge)


def attention_of(
    architecture: Architecture,
    i: int,
    W_o: Tensor,
    block: BlockMoments,
    *,
    ridge: float,
    absorb_mean: bool,
    metric: str,
) -> Attention:
    """The attention of block i, from the moments its heads have."""
    heads = heads_of(architecture, i)
    W = block.read_through(heads.name, W_o) if metric == "fisher" else W_o
    width = site_width(heads, W, block.sites[heads.name], absorb_mean=absorb_mean)
    return Attention(width, block, heads.units // max(1, heads.group), architecture.family.rotary, ridge)


def rank_ways(
    architecture: Architecture,
    heads: Sequence[Ladder],
    sites: Sequence[Site],
    curves: Mapping[str, Curve],
    *,
    attention: str,
    seq_len: int,
    weights: Mapping[str, float],
    price: Price,
) -> list[list[Way]]:
    """For every block the ways its attention may be cut: by heads, by ranks, or either."""
    known = [site for site in sites if site.name in curves]
    cut = {site.block for site in known if site.kind == "attn.qk"}
    made = {
        site.name: _ladder(site, curves[site.name], architecture, seq_len, weights, price, empty=site.block in cut)
        for site in known
    }
    parts: list[list[Way]] = []
    for ladder in heads:
        scores, values = (f"blocks.{ladder.site.block}.attn.{rank}" for rank in ("qk", "vo"))
        by_rank = None
        if values in made:
            whole = _whole(ladder.site, architecture, seq_len, price)
            by_rank = [made.get(scores, whole), made[values]]
        ways: list[Way] = [] if attention == "ranks" and by_rank else [(ladder,)]
        parts.append([*ways, *([tuple(by_rank)] if by_rank else [])])
    return parts


def _ladder(
    site: Site,
    curve: Curve,
    architecture: Architecture,
    seq_len: int,
    weights: Mapping[str, float],
    price: Price,
    *,
    empty: bool,
) -> Ladder:
    """With `empty` ranks may be 0: without scores attention is a mean, without values it has no heads, only a bias."""
    step = STEP // 2 if site.kind == "attn.qk" and architecture.family.rotary else STEP
    legal = [r for r in range(site.units + 1) if r % step == 0 or r == site.units]
    left = dict(zip(curve.sizes, curve.held, strict=True))  # without sizes that the tokens cannot serve
    sizes = tuple(Size(r, r) for r in legal if (r or empty) and r in left)
    harm = tuple(left[size.units] * weights.get(site.name, 1.0) for size in sizes)
    return Ladder(site, sizes, rising([price(site, size, seq_len) for size in sizes]), harm, curve)


def _whole(heads: Site, architecture: Architecture, seq_len: int, price: Price) -> Ladder:
    """Scores that cannot be cut (they are normed over all coordinates): one size, so that ways cost the same whole."""
    site = scores_site(heads, rotary=architecture.family.rotary)
    size, curve = Size(site.units, site.units), Curve("", (), (site.units,), (site.units,), (0.0,), (0.0,), (0.0,))
    return Ladder(site, (size,), (price(site, size, seq_len),), (0.0,), curve)
