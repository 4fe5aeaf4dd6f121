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
from slimformer.models import Site
from slimformer.models.ranks import scores_site
from slimformer.plan.choice import Way
from slimformer.plan.cost import Size
from slimformer.plan.fitting import Fitting
from slimformer.plan.profile import Ladder, Prices, rising, site_width

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
        curve_of_planes = planes(fit.effects, held.effects, kv=self.kv_heads, ridge=self.ridge, shared=False)
        ranks = tuple(range(len(curve_of_planes.sizes)))  # a rank is one plane of every key head, each its own
        return replace(curve_of_planes, sizes=ranks, groups=ranks)

    def values(self, r: int) -> Ranks:
        """The reduction of all value heads to rank r."""
        return value_ranks(self.width, whitened(self.width, ridge=self.ridge), r, ridge=self.ridge)

    def scores(self, order: Sequence[int], r: int) -> ScoreRanks:
        """The reduction of all queries and keys to rank r, or to the first r planes of `order`."""
        fit = self.block.responses["fit"]
        if not self.rotary:
            return score_ranks(score_gauge(fit.scores, group=self.group, ridge=self.ridge), r, group=self.group)
        return plane_ranks(fit.effects, order, r * self.kv_heads, kv=self.kv_heads, ridge=self.ridge)


def attention_of(heads: Site, W_o: Tensor, block: BlockMoments, how: Fitting) -> Attention:
    """An attention, from the moments its heads have."""
    W = block.read_through(heads.name, W_o) if how.metric == "fisher" else W_o
    width = site_width(heads, W, block.sites[heads.name], absorb_mean=how.absorb_mean)
    return Attention(width, block, heads.kv_heads, bool(heads.attention.rotary), how.ridge)


def rank_ways(
    heads: Sequence[Ladder], sites: Sequence[Site], curves: Mapping[str, Curve], prices: Prices, *, attention: str
) -> list[list[Way]]:
    """For every attention the ways it may be cut: by heads, by ranks, or either."""
    known = [site for site in sites if site.name in curves]
    cut = {site.block for site in known if site.kind == "attn.qk"}
    ladders = {site.name: _ladder(site, curves[site.name], prices, empty=site.block in cut) for site in known}
    parts: list[list[Way]] = []
    for ladder in heads:
        scores, values = (ladder.site.rank_name(rank) for rank in ("qk", "vo"))
        by_rank = [ladders.get(scores, _whole(ladder.site, prices)), ladders[values]] if values in ladders else None
        ways: list[Way] = [] if attention == "ranks" and by_rank else [(ladder,)]
        parts.append([*ways, *([tuple(by_rank)] if by_rank else [])])
    return parts


def _ladder(site: Site, curve: Curve, prices: Prices, *, empty: bool) -> Ladder:
    """With `empty` ranks may be 0: without scores attention is a mean, without values it has no heads, only a bias."""
    step = STEP // 2 if site.kind == "attn.qk" and site.attention.rotary else STEP
    legal = [r for r in range(site.units + 1) if r % step == 0 or r == site.units]
    left = dict(zip(curve.sizes, curve.held, strict=True))  # without sizes that the tokens cannot serve
    sizes = tuple(Size(r, r) for r in legal if (r or empty) and r in left)
    harm = tuple(left[size.units] * prices.weight(site) for size in sizes)
    return Ladder(site, sizes, rising([prices.of(site, size) for size in sizes]), harm, curve)


def _whole(heads: Site, prices: Prices) -> Ladder:
    """Scores that cannot be cut (they are normed over all coordinates): one size, so that ways cost the same whole."""
    site = scores_site(heads)
    size, curve = Size(site.units, site.units), Curve("", (), (site.units,), (site.units,), (0.0,), (0.0,), (0.0,))
    return Ladder(site, (size,), (prices.of(site, size),), (0.0,), curve)
