"""What every way to a smaller model ends in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from transformers import PreTrainedModel

from slimformer.arguments import checked
from slimformer.models.load import Loaded
from slimformer.plan import Plan
from slimformer.quantize.apply import Quantized
from slimformer.report.report import Report
from slimformer.stages import save_result


@dataclass(frozen=True)
class Result:
    """A smaller model, what was decided, and what it did; `quantized` where its weights are stored in fewer bits."""

    model: PreTrainedModel
    plan: Plan
    report: Report
    loaded: Loaded = field(repr=False)
    quantized: Quantized | None = field(default=None, repr=False)

    @checked
    def save(self, folder: str | Path, *, force: bool = False, verify: bool = True) -> Path:
        """Write a checkpoint that loads like any other; it is reloaded in a fresh process before it is put in place."""
        return save_result(
            self.loaded, self.model, self.plan, self.report, Path(folder),
            force=force, verify=verify, quantized=self.quantized,
        )  # fmt: skip
