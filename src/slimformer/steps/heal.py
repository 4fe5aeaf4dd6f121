"""Step `heal`: a short distillation from the dense model, never worse than before it.

It reads more text than calibration does, of the same documents: what calibration held out stays held out.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.documents import SELF, named_sources
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.calibrate.text import Batch
from slimformer.errors import AlreadyRounded, ExtraNotInstalled, PlanDoesNotFit, UnknownMethod
from slimformer.evaluate.assessment import dropped_blocks, is_stored_packed
from slimformer.evaluate.fidelity import harm_name
from slimformer.evaluate.won import losses_by_text, won
from slimformer.heal.heal import Student, Text, heal
from slimformer.heal.held_out import held_out
from slimformer.heal.local import spans_of
from slimformer.heal.settings import HealSettings
from slimformer.heal.trained import has_zeros
from slimformer.heal.work import Work
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.architecture import reads_windows
from slimformer.models.load import Loaded
from slimformer.nn.long_context import require_every_key
from slimformer.run import Run
from slimformer.steps.step import Step

POSITIONS = 2048  # of a batch: one step of training
FEW_POSITIONS = 512  # the same where each of them has a loss, and a processor takes as long for four as for one batch
MOST_ROWS = 32
ENOUGH = 0.9  # of the text asked for


class Heal(HealSettings, Step):
    """Win back what was lost: distil the dense model, block by block and then as a whole; kept only where it helps."""

    rounds: int = Field(default=1, ge=1, le=10, description="cut and heal in so many turns, which share the budget")

    flags: ClassVar[dict[str, str]] = {"heal": "minutes"}
    place: ClassVar[int] = 4
    why_no_budget: ClassVar[str] = "it cuts nothing"

    def require_complete(self) -> None:
        """One budget, and the packages that train."""
        assert self.budget
        wanted = (("accelerate",) if self.share("global") else ()) + (("peft",) if self.train == "lora" else ())
        if missing := [name for name in wanted if find_spec(name) is None]:
            raise ExtraNotInstalled(f"heal needs {' and '.join(missing)}; run: pip install 'slimformer[heal]'")
        if self.train == "lora" and self.phases == "local":
            raise UnknownMethod("lora is for the global phase of heal; give heal.phases=global, or train=all")

    def require_possible(self, run: Run) -> None:
        """Refuse weights in fewer bits, and what several processes cannot do after a cut."""
        require_healable(run.loaded)
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UnknownMethod(
                "after a cut one process goes on alone; leave heal out, and give the result to `torchrun … slimformer "
                "heal`"
            )

    def require_one_turn(self) -> None:
        """Refuse turns where nothing is cut between them."""
        if self.rounds > 1:
            raise UnknownMethod(
                "heal.rounds is for a recipe with a cut, and nothing is cut between two turns here; leave it out, or "
                f"give it to `slimformer compress` with {option('heal', '10m')}"
            )

    def of_one_turn(self) -> Heal:
        """What one of several turns may spend."""
        name, amount = self.budget
        share = amount / self.rounds if name == "minutes" else max(1, round(amount / self.rounds))
        return self.model_copy(update={name: share, "rounds": 1})

    def run(self, run: Run) -> Run:
        """Train, and say what was won on the report split, which decided nothing."""
        assert run.data is not None and run.folder is not None
        self.require_one_turn()
        if self.train == "lora" and has_zeros(run.model):
            raise UnknownMethod("lora would fill the zeros of this model; give heal.train=all, which keeps them")
        if self.top and harm_name(run.dense, run.splits["select"]) != "KL":
            raise UnknownMethod("heal.top keeps likely words or classes, and this model gives none; leave it out")
        with run.timed("heal"):
            data, splits = run.data, run.splits
            before = losses_by_text(run.dense, run.model, splits["report"], data.other)
            student = Student(run.model, run.dense, spans(run), run.loaded.dtype, run.residence)
            text = Text(text_to_learn(run, self), held_out(data), data.seed)
            done = heal(student, text, self, Work(Path(run.folder)), run.progress)
            after = losses_by_text(run.dense, run.model, splits["report"], data.other)
        name, amount = self.budget
        section: dict[str, Any] = {
            "budget": {name: amount}, "train": self.train, "kept": done.kept, "won": won(before, after),
            "select": {"before": dict(done.before), "after": dict(done.after)}, "local": done.local,
            "global": done.distilled, "blocks": [asdict(block) for block in done.blocks],
            "tokens": sum(batch.tokens for batch in text.fit),
        }  # fmt: skip
        return run.reporting(healing=section)


def require_healable(loaded: Loaded) -> None:
    """Refuse models whose weights lie on a grid that training would leave, and attention over groups of keys."""
    require_every_key(loaded.model)
    if is_stored_packed(loaded):
        raise AlreadyRounded(
            f"{loaded.name}: its weights are in fewer bits already, and training would leave them; heal first, then "
            "quantize"
        )


def spans(run: Run) -> tuple[int, ...]:
    """How many dense blocks each block stands for; told by the plan where some are gone."""
    dense, small = describe(run.dense).n_blocks, describe(run.model).n_blocks
    gone = dropped_blocks(run.decided.sizes) if run.plan is not None and small < dense else set()
    left = [i for i in range(dense) if i not in gone]
    if len(left) != small:
        raise PlanDoesNotFit(
            f"the model has {small} blocks and its teacher {dense}, and its plan does not say which are gone; give the "
            f"model it came from with {option('teacher')}, or heal.phases=global"
        )
    return spans_of(left, dense)


def text_to_learn(run: Run, settings: HealSettings) -> list[Batch]:
    """The fit split, with as much text as was asked for where the source has it, in batches for one step each.

    Documents are dealt by the seed, whatever is read of them, so none of the other splits is among them. Text that a
    model writes, or that is in memory as tokens, is not read again.
    """
    data, source = run.data, run.source
    assert data is not None
    names = [] if isinstance(source, Tensor) else named_sources(source) or []
    if isinstance(source, Tensor) or SELF in names or data.reading.get("sources") is None:
        return data.splits["fit"]
    gathered = _gathered(run, data, settings.text)
    own = sum(batch.tokens for batch in gathered.own.get("fit", gathered.splits["fit"]))
    if gathered.mixed and own < ENOUGH * settings.text:  # of broad text no more than is in proportion
        gathered = _gathered(run, data, own)
    return gathered.splits["fit"]


def _gathered(run: Run, data: Data, tokens: int) -> Data:
    model: PreTrainedModel = run.dense
    how = {name: data.reading[name] for name in ("samples", "columns", "purpose", "broad")}
    few = reads_windows(model, describe(model).family) and model.device.type == "cpu"
    rows = max(1, min(MOST_ROWS, (FEW_POSITIONS if few else POSITIONS) // data.seq_len))
    request = Reading(seq_len=_length(run, data), tokens=tokens, seed=data.seed, batch_size=rows, **how)
    return gather(run.source, model, run.loaded.processor, describe(model), request)


def _length(run: Run, data: Data) -> int | None:
    return None if describe(run.dense).family.image else data.seq_len
