"""A plan: for each site what is kept, and the budget it was made for. Plain JSON: readable, diffable, replayable."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from slimformer.errors import PlanDoesNotFit
from slimformer.files.reading import checked, one_of, parse_own_json, read_text
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models import Architecture, Site
from slimformer.models.ranks import scores_site, values_site
from slimformer.plan.cost import Size, block_cost
from slimformer.plan.profile import head_sizes

FORMAT = 1
LONGEST = 100_000_000  # tokens in a sequence of any model there will be for a while

Name = Annotated[str, Field(min_length=1, max_length=1000)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Fraction = Annotated[float, Field(ge=0, le=10)]  # sizes chosen by hand may be dearer than the model


@dataclass(frozen=True)
class Edit:
    """Keep `keep` of `of` units at `site`; heads also say how many key/value groups stay, neurons the rank of a linear
    path beside them."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    site: Name
    method: Name
    keep: Count
    of: Count
    groups: Count
    rank: Count = 0


@dataclass(frozen=True, repr=False)
class Plan(Short):
    """Every decision, and what it was made for: for every site what is kept of how much.

    >>> decided = slimformer.plan("stats", macs=0.6)
    >>> slimformer.Plan.from_json(decided.to_json()) == decided
    True
    """

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    recipe: Name
    budget: Annotated[float, Field(gt=0, le=1)]  # the fraction asked for
    macs: Fraction  # the fraction kept
    params: Fraction  # the fraction of the blocks' parameters kept
    seq_len: Annotated[int, Field(ge=1, le=LONGEST)]
    format: Annotated[str, one_of("ragged", "plain")]
    ridge: Annotated[float, Field(ge=0, le=10)]
    absorb_mean: bool
    fingerprint: str
    edits: tuple[Edit, ...]
    by: Annotated[str, one_of("macs", "params", "latency")] = "macs"  # of what
    metric: Annotated[str, one_of("squares", "fisher")] = "squares"  # in which units were ordered
    predicted_kl: Annotated[float, Field(ge=-1, le=10**9)] | None = None  # added up from probes; none without

    def __post_init__(self) -> None:
        sites = [edit.site for edit in self.edits]
        if twice := sorted({site for site in sites if sites.count(site) > 1}):
            raise PlanDoesNotFit(f"the plan names {twice[0][:80]} twice; leave one of them")

    @property
    def notes(self) -> list[str]:
        """What to say of a plan that keeps far less than was asked for, because its format has no sizes between."""
        if self.format != "plain" or self.by != "macs" or self.macs >= 0.95 * self.budget:
            return []
        return [
            f"{self.budget:g} of the MACs was asked for and {self.macs:.3f} is kept: a plain config can say few sizes; "
            f"{option('format', 'ragged')} comes closer"
        ]

    def facts(self) -> dict[str, str]:
        """What was asked for, what is kept of it, and what of every kind of unit."""
        kinds: dict[str, list[Edit]] = {}
        for edit in self.edits:
            kind = ".".join(part for part in edit.site.split(".")[2:] if not part.isdigit())  # without block and expert
            kinds.setdefault(kind, []).append(edit)
        units = {kind: f"{sum(e.keep for e in some):,} of {sum(e.of for e in some):,}" for kind, some in kinds.items()}
        budget = f"{self.budget:g} of {self.by}, at sequence length {self.seq_len:,}"
        return {
            "": f"{self.recipe} · {self.format}", "budget": budget,
            "keeps": f"{self.macs:.3f} of the block MACs, {self.params:.3f} of the blocks' parameters", **units,
        }  # fmt: skip

    @property
    def sizes(self) -> dict[str, Size]:
        return {edit.site: Size(edit.keep, edit.groups, edit.rank) for edit in self.edits}

    def to_json(self) -> str:
        return json.dumps({"slimformer_plan": FORMAT, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        try:
            data: Any = parse_own_json(text)
            version = data.pop("slimformer_plan", None) if isinstance(data, dict) else None
            if version != FORMAT:
                raise PlanDoesNotFit(
                    f"this is not a plan of format {FORMAT} (found {version!r}); make it with `slimformer plan`"
                )
            return checked(cls, data)
        except ValueError as error:
            raise PlanDoesNotFit(f"the plan cannot be read: {error}; make it with `slimformer plan`") from error

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        try:
            return cls.from_json(read_text(path))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise PlanDoesNotFit(f"the plan {str(path)!r} cannot be read: {why}") from error


def check_fits(plan: Plan, architecture: Architecture, fingerprint: str) -> None:
    """Refuse a plan that was made for another model, or that names widths this one does not have."""
    if plan.fingerprint and plan.fingerprint != fingerprint:
        raise PlanDoesNotFit(
            f"the plan was made for model {plan.fingerprint}, this is {fingerprint}; calibrate and plan this model anew"
        )
    sites = architecture.by_name
    ranks = rank_sites_of(architecture)
    for edit in plan.edits:
        if edit.site in ranks:
            _check_rank(edit, ranks[edit.site])
            continue
        site = sites.get(edit.site)
        if site is None:
            raise PlanDoesNotFit(f"the plan names {edit.site}, which this model does not have")
        if site.units != edit.of or not 0 <= edit.keep <= edit.of:
            raise PlanDoesNotFit(f"{edit.site}: the plan keeps {edit.keep} of {edit.of}, this model has {site.units}")
        if site.stays and edit.keep < edit.of:
            raise PlanDoesNotFit(f"{edit.site}: the plan keeps {edit.keep} of {edit.of}, but {site.stays}")
        # stock attention cannot run without heads; where there are none already, ours does
        legal = [size for size in sorted(head_sizes(site)) if size[0] or site.kind != "attn.heads" or not site.units]
        if (edit.keep, edit.groups) not in legal:
            raise PlanDoesNotFit(
                f"{edit.site}: the plan keeps {edit.keep} units in {edit.groups} groups; "
                f"legal are {', '.join(f'{units} in {groups}' for units, groups in legal)}"
            )
        _check_path(edit, site)
    alike: dict[str, int] = {}
    for edit in plan.edits:
        if edit.site in sites and alike.setdefault(sites[edit.site].alike, edit.keep) != edit.keep:
            raise PlanDoesNotFit(
                f"{edit.site}: the plan keeps {edit.keep} of {edit.of}, and {alike[sites[edit.site].alike]} of another "
                "expert of its block; all are stored in one tensor, so they keep as many"
            )
    if missing := sites.keys() - {edit.site for edit in plan.edits}:
        raise PlanDoesNotFit(f"the plan says nothing about {', '.join(sorted(missing))}")


def rank_sites_of(architecture: Architecture) -> dict[str, Site]:
    """Ranks of attention a plan may name, by name."""
    heads = [block.ranked for block in architecture.blocks if block.ranked]
    return {site.name: site for head in heads for site in (scores_site(head), values_site(head))}


def _check_rank(edit: Edit, site: Site) -> None:
    if site.units != edit.of or not 0 <= edit.keep <= edit.of or edit.groups != edit.keep:
        raise PlanDoesNotFit(
            f"{edit.site}: the plan keeps {edit.keep} of {edit.of} in {edit.groups} groups; this model has "
            f"{site.units} in as many groups"
        )


def _check_path(edit: Edit, site: Site) -> None:
    most = site.outer if site.kind == "ffn.hidden" and edit.keep < edit.of and not site.beside else 0
    if not 0 <= edit.rank <= most:
        raise PlanDoesNotFit(f"{edit.site}: a path of rank {edit.rank} cannot be put there; the most is {most}")


def recounted(plan: Plan, architecture: Architecture) -> Plan:
    """The plan with the fractions its sizes really keep: those of a plan edited by hand are out of date."""
    macs, params = kept_fractions(architecture, plan.sizes, plan.seq_len)
    return dataclasses.replace(plan, macs=macs, params=params)


def kept_fractions(architecture: Architecture, sizes: dict[str, Size], seq_len: int) -> tuple[float, float]:
    """Fractions of block MACs and of block parameters kept."""
    dense, small = block_cost(architecture, seq_len), block_cost(architecture, seq_len, sizes)
    return small.macs / dense.macs, small.params / dense.params
