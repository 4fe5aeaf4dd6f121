"""Step `head`: a fresh classifier on the features of the smaller model, in closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from slimformer.evaluate.report import Report
from slimformer.heads.classify import held_out_texts, labelled, rehead, require_headroom
from slimformer.run import Run
from slimformer.steps.step import Step


class Head(Step):
    """Fit a new head on labelled rows, none of which is reported on."""

    data: str | Path = Field(description="labelled rows: a table, the name of a data set, a folder of images")
    kind: Literal["lda", "ridge", "random", "ncm", "newton"] = Field(default="lda", description="how it is solved")

    flags: ClassVar[dict[str, str]] = {"head_data": "data"}
    place: ClassVar[int] = 5

    def require_possible(self, run: Run) -> None:
        """Refuse a fresh head where there is no place for it."""
        require_headroom(run.dense)

    def run(self, run: Run) -> Run:
        """Nothing yet: the old head is measured first."""
        return run

    def finish(self, run: Run, report: Report) -> tuple[Run, Report]:
        """The model with its new head, and a report with the metrics of both."""
        assert run.data is not None
        with run.timed("head"):
            report = replace(report, other_data=[], elsewhere=None)  # of the old head, and other text has no labels
            how = run.data.reading
            kept_out = held_out_texts(
                run.source, run.loaded, columns=how["columns"], samples=how["samples"], seed=run.data.seed
            )
            rows = labelled(run.loaded, self.data, columns=how["columns"], seed=run.data.seed)
            allowed = (row for row in rows if (row.text, row.pair) not in kept_out)
            model, report = rehead(
                run.loaded, run.model, run.data, report, allowed, kind=self.kind, progress=run.progress
            )  # fmt: skip
        return replace(run, model=model), report
