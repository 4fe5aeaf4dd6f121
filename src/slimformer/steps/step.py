"""What a step is: settings, what it needs, what it refuses, and what it does to a run."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from slimformer.errors import UnknownMethod
from slimformer.evaluate.report import Report
from slimformer.messages.words import option
from slimformer.plan import Plan
from slimformer.run import Run


class Step(BaseModel):
    """One step of a recipe. Its fields are its settings, each with a description and a default.

    `flags` are arguments of `compress` (options of the shell) that are short for settings, by the field they set.
    `place` orders steps in a recipe: a step may only follow one of a lower place.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(default="unnamed", description="of the recipe; filled in when one is read", exclude=True)

    flags: ClassVar[dict[str, str]] = {}
    place: ClassVar[int] = 0
    reads_data: ClassVar[bool] = True  # where any step of a recipe does, data are read before the first
    why_no_budget: ClassVar[str] = "it cuts nothing"

    @property
    def fits(self) -> bool:
        """Is anything fitted on the data, so that few of them are worth a word?"""
        return self.reads_data

    def require_complete(self) -> None:
        """Refuse, before a model is opened, settings that are incomplete or impossible."""

    def require_possible(self, run: Run) -> None:
        """Refuse, before data are read, what this model cannot have."""

    def sequence_length(self, run: Run) -> int | None:
        """The length to read data at; none where the usual one does."""
        return run.length

    def preview(self, run: Run) -> Plan | list[dict[str, Any]]:
        """What it would do, said without data: sizes, or what each rewrite would save; refused where unknown."""
        raise UnknownMethod(
            f"{option('dry_run', True)} shows sizes for a budget, and the recipe {self.name!r} has none to show"
        )

    def run(self, run: Run) -> Run:
        """Do it."""
        raise NotImplementedError

    def finish(self, run: Run, report: Report) -> tuple[Run, Report]:
        """What is left to do once the model was measured; most steps have nothing."""
        return run, report
