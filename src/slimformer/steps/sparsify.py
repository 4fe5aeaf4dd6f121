"""Step `sparsify`: weights of the linear layers of all blocks set to zero, two of four or a share anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from slimformer.decompose.sparse import Pattern
from slimformer.errors import AlreadyRounded, BudgetOutOfReach
from slimformer.evaluate.assessment import is_stored_packed
from slimformer.models import describe
from slimformer.nn.long_context import keys_are_grouped
from slimformer.rewrite.quantize import sparsified
from slimformer.rewrite.surgery import round_weights
from slimformer.run import Run
from slimformer.steps.step import Step


class Sparsify(Step):
    """Set weights to zero and refit the others.

    The checkpoint holds the zeros as zeros: it is no smaller, and no faster on hardware that does not look for them.
    """

    pattern: str = Field(default="2:4", description="2:4, or the share of zeros, e.g. 0.5")
    method: Literal["sparsegpt", "magnitude"] = Field(default="sparsegpt", description="how weights are chosen")

    place: ClassVar[int] = 3

    @property
    def fits(self) -> bool:
        return self.method != "magnitude"

    def require_complete(self) -> None:
        """A pattern that is understood."""
        pattern_of(self.pattern)

    def require_possible(self, run: Run) -> None:
        """Refuse weights that are in fewer bits already."""
        if is_stored_packed(run.loaded):
            raise AlreadyRounded(
                f"{run.loaded.name}: its weights are in fewer bits already; sparsify first, then quantize: zeros are "
                "kept"
            )

    def run(self, run: Run) -> Run:
        """Block by block, each layer on what reaches it."""
        chosen, blocks = pattern_of(self.pattern), describe(run.model).n_blocks
        with run.timed("sparsify"):
            sparse = sparsified(
                run.model, chosen, run.splits["fit"], method=self.method,
                progress=lambda i: run.progress("sparsify", i + 1, blocks),
            )  # fmt: skip
            round_weights(sparse.model, run.loaded.dtype)
        facts: dict[str, Any] = {
            "pattern": chosen.name, "method": self.method, "layers": len(sparse.zeros), "zeros": sparse.share,
            "errors": dict(sparse.errors), "grouped_keys": keys_are_grouped(sparse.model),
        }  # fmt: skip
        return replace(run, model=sparse.model).reporting(quantization=facts)


def pattern_of(text: str) -> Pattern:
    """2:4 as two of four, 0.5 as half of everything."""
    keep, colon, of = text.partition(":")
    try:
        if colon:
            pattern = Pattern(1 - int(keep) / int(of), int(keep), int(of))
            known = 0 < pattern.keep <= pattern.of <= 64
        else:
            pattern = Pattern(float(text))
            known = 0 <= pattern.zeros < 1
    except (ValueError, ZeroDivisionError):
        known = False
    if known and not pattern.zeros:
        raise BudgetOutOfReach(f"the pattern {text!r} sets nothing to zero; give 2:4, or the share of zeros, e.g. 0.5")
    if known:
        return pattern
    raise BudgetOutOfReach(f"the pattern {text!r} is not understood; give 2:4, or the share of zeros, e.g. 0.5")
