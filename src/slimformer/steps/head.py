"""Step `head`: a fresh classifier on the features of the smaller model, in closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from slimformer.evaluate.by_text import compare_pair
from slimformer.evaluate.report import Report
from slimformer.heads.classify import LabelledRows, fresh_head, held_out_texts, labelled, require_headroom
from slimformer.models.architecture import is_bare
from slimformer.rewrite.sizes import auto_class
from slimformer.run import Run
from slimformer.steps.step import Step


class Head(Step):
    """Fit a new head on labelled rows, none of which is reported on."""

    data: str | Path = Field(description="labelled rows: a table, the name of a data set, a folder of images")
    kind: Literal["lda", "ridge", "random", "ncm", "newton"] = Field(default="lda", description="how it is solved")

    flags: ClassVar[dict[str, str]] = {"head_data": "data"}
    place: ClassVar[int] = 6

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
            how, data = run.data.reading, run.data
            held_out = held_out_texts(
                run.source, run.loaded, columns=how["columns"], samples=how["samples"], seed=data.seed
            )
            rows = labelled(run.loaded, LabelledRows(self.data, how["columns"], seed=data.seed))
            allowed = (row for row in rows if (row.text, row.pair) not in held_out)
            headless, length = is_bare(run.model), min(data.seq_len, 128)
            model, head = fresh_head(
                run.loaded, run.model, allowed, kind=self.kind, seq_len=length, progress=run.progress
            )
            if headless:  # it has become a classifier; its own metrics, of states, stay what they were
                report = replace(report, head=head, load_class=auto_class(model))
            else:
                pair = run.original or run.loaded, replace(run.loaded, model=model)
                fidelity = compare_pair(*pair, data.splits["report"], data.texts.get("report", []), data.seq_len)
                metrics = [metric.to_json() for metric in fidelity]
                report = replace(report, head={**head, "old_head": report.metrics}, metrics=metrics)
        return replace(run, model=model), report
