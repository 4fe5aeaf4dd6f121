"""Step `refine`: at the chosen budget, sequential correction of every reader, then of the gain of the final norm.

It needs the calibration data again and serves one budget only, so the command `cut` does without it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from slimformer.rewrite.apply import Cut
from slimformer.rewrite.refine import refine
from slimformer.run import Run
from slimformer.steps.step import Step


class Refine(Step):
    """Correct every reader on what the cut model sends it, then the gain of the last norm."""

    flags: ClassVar[dict[str, str]] = {}
    place: ClassVar[int] = 1

    def run(self, run: Run) -> Run:
        """Where nothing was cut, there is nothing to correct."""
        if run.plan is None or run.plan.macs >= 1:
            return run
        cut = Cut(run.plan, run.curves, run.known.block)
        with run.timed("refine"):
            done = refine(
                run.model, run.dense, cut, run.splits, residence=run.residence, progress=run.progress
            )  # fmt: skip
        return replace(run, corrections=(*run.corrections, *done))
