"""Settings of a cut: how units are chosen, errors counted, budgets spread and readers refitted."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class CutSettings(BaseModel):
    """Everything that decides what a plan keeps, besides model, data and budget."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="unnamed", description="of the recipe; filled in when one is read", exclude=True)
    selector: Literal["elimination", "interpolative"] = Field(
        default="elimination", description="how units are ordered: exact backward elimination, or pivoted QR"
    )
    allocation: Literal["uniform", "greedy", "stat-bert", "stat-opt", "stat"] = Field(
        default="greedy", description="how the budget is spread over blocks"
    )
    probes: bool = Field(
        default=True, description="let greedy allocation try each site at the outputs, or go by the metric alone"
    )
    ridge: float = Field(default=1e-3, ge=0, le=10, description="relative to the mean diagonal of the Gram matrix")
    absorb_mean: bool = Field(default=True, description="let output biases absorb the mean of what is removed")
    attention: Literal["heads", "ranks", "best"] = Field(
        default="heads", description="cut attention by whole heads, by the ranks of QK and VO, or whichever is better"
    )
    ffn: Literal["neurons", "bypass", "linear", "best"] = Field(
        default="neurons",
        description="cut feed-forward parts by neurons, always with a linear path beside those left, by replacing all "
        "of them with a linear map, or whichever is better",
    )
    metric: Literal["squares", "fisher"] = Field(
        default="squares", description="count errors of what a block writes, or what they cost at the outputs"
    )
    multiple_of: int = Field(default=8, ge=1, description="neurons are kept in multiples of this")
    columns: int = Field(
        default=1, ge=1, description="heads are kept so that they are together a multiple of this wide"
    )
    allow_empty: bool = Field(default=False, description="may a block lose all its neurons?")

    @property
    def probed(self) -> bool:
        """Does the allocation go by probes?"""
        return self.allocation == "greedy" and self.probes
