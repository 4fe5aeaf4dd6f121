"""The competing methods of `quality.py`, one function each.

A method is an order of the units of every width (best first), a way to spread a budget over the widths, and a
correction of what reads the units that are left. Everything else is the same for all of them, and this is what
makes the comparison fair:

* the same calibration tokens, hence the same moments; the held-out moments never choose units;
* the same legal sizes (neurons in multiples, one query head of every group at a time) and the same exact MACs;
* for the methods with least squares (leverage scores, STAT) the ridge and the use of the mean of our recipe,
  which is more than their papers do.

What rounding leaves of a budget is spent by each method where its own scores see most to gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.collect import BlockMoments
from slimformer.decompose import Curve, Selection, Width
from slimformer.decompose.interpolative import interpolative
from slimformer.decompose.reduction import coordinates, curve, legal_sizes, may_join
from slimformer.linalg.damped import damped
from slimformer.models import Architecture, Site
from slimformer.models.architecture import weight_of
from slimformer.plan import Budget, Edit, Plan, check_budget
from slimformer.plan.allocate import Sizes, uniform
from slimformer.plan.plan import kept_fractions
from slimformer.plan.profile import Ladder, Legal, Prices, ladders, site_width
from slimformer.plan.settings import CutSettings
from slimformer.plan.stat import stat_bert, stat_opt
from slimformer.rewrite.apply import apply, cut_site
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes

Curves = dict[str, Curve]
Correction = Literal["none", "mean", "least squares"]


@dataclass(frozen=True)
class Given:
    """What every method gets: a model and its widths, moments of one calibration pass, and our recipe."""

    model: PreTrainedModel
    architecture: Architecture
    moments: Callable[[int], BlockMoments]
    weights: Mapping[str, float]  # what an error at each site counts for in our allocation
    seq_len: int
    recipe: CutSettings

    def width(self, site: Site) -> Width:
        """A site as the decompositions see it."""
        W = weight_of(self.model.get_submodule(site.reader))
        moments = self.moments(site.block).sites[site.name]
        return site_width(site, W, moments, absorb_mean=self.recipe.absorb_mean)


@dataclass(frozen=True)
class Method:
    """How a baseline orders units, spreads a budget, and corrects."""

    curve: Callable[[Given, Site], Curve]
    allocation: Callable[..., Sizes]
    correction: Correction

    def curves(self, given: Given) -> Curves:
        """The order of units, and what is expected to be lost at every size, for every site."""
        return {site.name: self.curve(given, site) for site in given.architecture}


# --- magnitude ----------------------------------------------------------------------------------------------


def magnitude(given: Given, site: Site) -> Curve:
    """Units by the norm of their weights, ‖rows that write it‖² + ‖columns that read it‖²; sees no data.

    A key/value head shared by several queries counts for each of them in part.
    """
    score = _per_unit(_reader(given, site).square().sum(0), site)
    for writer in site.writers:
        norms = weight_of(given.model.get_submodule(writer.module)).double().square().sum(1)
        part = norms.chunk(writer.parts)[writer.part].reshape(-1, writer.rows).sum(1)
        score = score + part.repeat_interleave(writer.shared) / writer.shared
    return scored(site, "magnitude", score)


# --- Wanda-sp -----------------------------------------------------------------------------------------------


def wanda_sp(given: Given, site: Site) -> Curve:
    """Units by Σ_i |W_ij| ‖x_j‖, the score of Wanda summed over a column (a head: over its columns).

    References: Sun, Liu, Bair, Kolter, A simple and effective pruning approach for LLMs (2023); the structured
    form is the baseline of An et al. (2023).
    """
    norms = given.moments(site.block).sites[site.name]["fit"].gram.diagonal().sqrt()
    return scored(site, "wanda-sp", _per_unit(_reader(given, site).abs().sum(0) * norms, site))


# --- FLAP ---------------------------------------------------------------------------------------------------


def flap(given: Given, site: Site) -> Curve:
    """Columns by their fluctuation var(x_j) ‖w_j‖², standardised in each site; a head is the mean of its columns.

    One threshold holds for all heads and neurons of the model (`one_threshold`), and what a removed unit wrote on
    average is added to the bias of the reader, also in models that have none. FLAP counts a head as 512/3
    neurons, the ratio of their sizes in LLaMA; here it is the ratio of the MACs.

    Reference: An, Zhao, Yu, Tang, Wang, Fluctuation-based adaptive structured pruning (2023).
    """
    moments = given.moments(site.block).sites[site.name]["fit"]
    fluctuation = moments.second(centred=True).diagonal() * _reader(given, site).square().sum(0)
    standard = (fluctuation - fluctuation.mean()) / fluctuation.std().clamp_min(1e-300)
    return scored(site, "flap", _per_unit(standard, site) / site.unit)


def one_threshold(rungs: Sequence[Ladder], *, budget: int) -> Sizes:
    """Take the rungs of all sites by falling score until the budget is spent; every site keeps its smallest."""
    at = {rung.site.name: 0 for rung in rungs}
    left = budget - sum(rung.cost[0] for rung in rungs)
    steps = [step for rung in rungs for step in _steps(rung)]
    shut: set[str] = set()
    for _, name, i, macs in sorted(steps, key=lambda step: (-step[0], step[2])):
        if name in shut or macs > left:
            shut.add(name)  # sizes are nested, so nothing above this rung can be had either
            continue
        at[name], left = i, left - macs
    return {rung.site.name: rung.sizes[at[rung.site.name]] for rung in rungs}


def _steps(rung: Ladder) -> list[tuple[float, str, int, int]]:
    """(score, site, rung reached, MACs): the mean score of the units added, never above that of a step before."""
    out, least = [], math.inf
    for i in range(1, len(rung.sizes)):
        added = rung.curve.pivots[rung.sizes[i - 1].units : rung.sizes[i].units]
        least = min(least, sum(added) / len(added))
        out.append((least, rung.site.name, i, rung.cost[i] - rung.cost[i - 1]))
    return out


# --- leverage scores ----------------------------------------------------------------------------------------


def leverage(given: Given, site: Site) -> Curve:
    """Units by ridge leverage, the diagonal of C (C + λI)⁻¹ (a head: their sum); does not see what reads them.

    This is the MLP of MoDeGPT: Lin, Gao, Smith, Patel, Tuli, Shen, Jin, Hsu, MoDeGPT (2024).
    """
    width = given.width(site)
    C = width.fit.second(centred=width.bias)
    scores = torch.linalg.solve(damped(C, given.recipe.ridge), C).diagonal()
    order = _order(_per_unit(scores, site), site)
    return curve(width, "leverage", order, ridge=given.recipe.ridge)


# --- STAT ---------------------------------------------------------------------------------------------------


def stat(given: Given, site: Site) -> Curve:
    """Units in the order of column-pivoted QR of the activations.

    Reference: Flynn, Wang, Alvarez, De Sa, Damle, STAT: Shrinking transformers after training (2024).
    """
    return interpolative(given.width(site), ridge=given.recipe.ridge)


def stat_allocation(rungs: Sequence[Ladder], *, budget: int, causal: bool) -> Sizes:
    """STAT's own thresholds: with an exponential fit over depth for decoders, with root weights for encoders."""
    return (stat_opt if causal else stat_bert)(rungs, budget=budget)


BASELINES: dict[str, Method] = {
    "magnitude": Method(magnitude, uniform, "none"),
    "wanda-sp": Method(wanda_sp, uniform, "none"),
    "flap": Method(flap, one_threshold, "mean"),
    "leverage": Method(leverage, uniform, "least squares"),
    "stat-uniform": Method(stat, uniform, "least squares"),
    "stat": Method(stat, stat_allocation, "least squares"),
}


# --- what they share ----------------------------------------------------------------------------------------


def _reader(given: Given, site: Site) -> Tensor:
    return weight_of(given.model.get_submodule(site.reader)).double()


def _per_unit(columns: Tensor, site: Site) -> Tensor:
    """Scores of columns summed over the columns of each unit."""
    return columns.reshape(site.units, site.unit).sum(1)


def _order(score: Tensor, site: Site) -> list[int]:
    """Units by falling score; under grouped queries every group gets its next query before any gets two."""
    if site.group == 1:
        return torch.argsort(score, descending=True, stable=True).tolist()
    order: list[int] = []
    while candidates := may_join(order, site.units, site.group):
        order.append(max(candidates, key=lambda unit: float(score[unit])))
    return order


def scored(site: Site, name: str, score: Tensor) -> Curve:
    """A curve for a method that estimates no error: what is lost is the sum of the scores dropped.

    `pivots` holds the scores themselves, in order, which is what a threshold needs.
    """
    order = _order(score, site)
    ordered = score[torch.tensor(order)]
    positive = (ordered - ordered.min()).clamp_min(0)  # standardised scores are negative for the lesser half
    left = torch.cat([positive.flip(0).cumsum(0).flip(0), positive.new_zeros(1)])
    sizes, groups = legal_sizes(site.units, site.group)
    lost = tuple(left[torch.tensor(sizes)].tolist())
    return Curve(name, tuple(order), sizes, groups, lost, lost, lost, tuple(ordered.tolist()))


def baseline_plan(name: str, given: Given, curves: Curves, macs: float) -> Plan:
    """The sizes a baseline gives every site at a budget, as a plan."""
    method, recipe, architecture = BASELINES[name], given.recipe, given.architecture
    weights = given.weights if method.correction == "least squares" else {}
    rungs = ladders(architecture, curves, Prices(given.seq_len, weights), Legal(recipe.multiple_of))
    budget = check_budget(architecture, Budget(macs), seq_len=given.seq_len, settings=recipe, format="ragged")
    allocation = method.allocation
    if allocation is stat_allocation:
        allocation = partial(stat_allocation, causal=architecture.family.causal)
    sizes = allocation(rungs, budget=budget)
    edits = tuple(
        Edit(site.name, name, sizes[site.name].units, site.units, sizes[site.name].groups) for site in architecture
    )
    kept_macs, kept_params = kept_fractions(architecture, sizes, given.seq_len)
    return Plan(
        recipe=name, budget=macs, macs=kept_macs, params=kept_params, seq_len=given.seq_len, format="ragged",
        ridge=recipe.ridge, absorb_mean=recipe.absorb_mean, fingerprint="", edits=edits,
    )  # fmt: skip


def baseline_model(name: str, given: Given, curves: Curves, plan: Plan) -> PreTrainedModel:
    """The smaller model a baseline ends with: truly cut, corrected its own way."""
    correction = BASELINES[name].correction
    if correction == "least squares":
        return apply(plan, given.model, curves, given.moments)
    return _without_refit(given, curves, plan, mean=correction == "mean")


@torch.no_grad()
def _without_refit(given: Given, curves: Curves, plan: Plan, *, mean: bool) -> PreTrainedModel:
    """Units are dropped and the readers of the others left as they are; with `mean`, biases take the mean."""
    small = deepcopy(given.model)
    for edit in plan.edits:
        site = given.architecture[edit.site]
        if edit.keep < site.units:
            reader = small.get_submodule(site.reader)
            if mean and reader.bias is None:
                reader.bias = nn.Parameter(torch.zeros(site.outer, dtype=reader.weight.dtype))
            order = curves[site.name].order
            cut_site(small, site, edit, order, _dropping(given, site, sorted(order[: edit.keep]), mean=mean))
    keep_attributes_true(small)
    state_sizes(small, plan.format)
    return small


def _dropping(given: Given, site: Site, kept: Sequence[int], *, mean: bool) -> Selection:
    """x ≈ x_J on the kept coordinates, and zero or the mean on the others."""
    J = coordinates(kept, site.unit)
    E = torch.zeros(site.width, len(J), dtype=torch.float64)
    E[J, torch.arange(len(J))] = 1
    average = given.moments(site.block).sites[site.name]["fit"].mean.clone()
    average[J] = 0
    return Selection(J, E, average if mean else torch.zeros_like(average))
