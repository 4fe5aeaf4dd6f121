"""What every way to a smaller model ends in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from slimformer.evaluate.report import Report
from slimformer.messages.arguments import check_arguments
from slimformer.messages.short import Short
from slimformer.models.load import Loaded
from slimformer.plan import Plan
from slimformer.rewrite.quantize import Quantized
from slimformer.steps.stages import save_result


@dataclass(frozen=True, repr=False)
class Result(Short):
    """A smaller model, what was decided, and what it did; `quantized` where its weights are stored in fewer bits."""

    model: PreTrainedModel
    plan: Plan
    report: Report
    loaded: Loaded
    quantized: Quantized | None = None

    def facts(self) -> dict[str, str]:
        """What its report says."""
        return self.report.facts()

    @check_arguments
    def save(self, folder: str | Path, *, force: bool = False, verify: bool = True) -> Path:
        """Write a checkpoint that loads like any other; it is reloaded in a fresh process before it is put in place."""
        return save_result(
            self.loaded, self.model, self.plan, self.report, Path(folder),
            force=force, verify=verify, quantized=self.quantized,
        )  # fmt: skip
