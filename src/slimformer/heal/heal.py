"""Local phase and global phase; what is not better on held-out text, and nowhere worse, is taken back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.heal.held_out import HeldOut, score
from slimformer.heal.local import HealedBlock, LocalPlan, Walk, heal_blocks, local_plan
from slimformer.heal.remembered import Remembered
from slimformer.heal.sampled import words_of
from slimformer.heal.settings import HealSettings
from slimformer.heal.trained import keep_part, make_own, put_back, snapshot, trained_parameters, training_only
from slimformer.heal.work import Work, agreed
from slimformer.messages.progress import Progress, silent
from slimformer.models import describe
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.rewrite.surgery import round_weights

log = logging.getLogger("slimformer")


@dataclass(frozen=True)
class Student:
    """The student, its teacher, how many dense blocks each of its blocks stands for, and how it will be stored."""

    small: PreTrainedModel
    dense: PreTrainedModel
    spans: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    residence: Residence = IN_MEMORY


@dataclass(frozen=True)
class Text:
    """What is learned from, and what decides."""

    fit: Sequence[Batch]
    held_out: HeldOut
    seed: int = 0

    @property
    def select(self) -> list[Batch]:
        """All of what decides, in one list."""
        return [batch for part in self.held_out.parts.values() for batch in part]


@dataclass(frozen=True)
class Healed:
    """What was done: held-out losses before and after, by text; plans of both phases; blocks of the local one."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    kept: bool
    local: dict[str, Any] | None = None
    distilled: dict[str, Any] | None = None
    blocks: list[HealedBlock] = field(default_factory=list)


def heal(student: Student, text: Text, settings: HealSettings, work: Work, progress: Progress = silent) -> Healed:
    """Let `student.small` learn from the dense model in place. Where that does not help it has the same bits as before.

    What counts are the weights as they will be stored. Cost: that of the budget.
    """
    small, dense = student.small.eval(), student.dense.eval()
    make_own(small, dense)
    own = trained_parameters(small)
    original = snapshot(own)
    before = text.held_out.losses(dense, small)
    local = distilled = None
    blocks: list[HealedBlock] = []
    if settings.share("local") and max(before.values()) > 0:
        plan, blocks = _local(student, text, settings, work, progress)
        now = text.held_out.losses(dense, small)
        part, _ = keep_part(own, original, lambda: score(text.held_out.losses(dense, small), before))
        local = {**asdict(plan), "part": part, "losses": now}
    if settings.share("global") and max(before.values()) > 0:
        distilled = _global(student, text, settings, before, work, progress)
    round_weights(small, student.dtype, but=dense.parameters())
    after = text.held_out.losses(dense, small)
    better = score(after, before) < 1
    if not better:
        put_back(own, original)
        after = before
    return Healed(before, after, better, local, distilled, blocks)


def _local(
    student: Student, text: Text, settings: HealSettings, work: Work, progress: Progress
) -> tuple[LocalPlan, list[HealedBlock]]:
    """The local phase with as many tokens as its share of the budget allows."""
    kind = "norms" if settings.train == "norms" else "all"
    walk = Walk(student.small, student.dense, student.spans, kind, text.seed, student.residence)
    known = agreed(None if (note := work.recall("local")) is None else note[0])
    if known is None:
        unit, amount = settings.budget
        plan = local_plan(walk, text.fit, (unit, amount if unit == "epochs" else amount * settings.share("local")))
        work.keep("local", asdict(plan))
    else:
        plan = LocalPlan(**known)
    n_blocks = describe(student.small).n_blocks
    progress("heal blocks", 0, n_blocks)

    def say(i: int, healed: HealedBlock) -> None:
        progress("heal blocks", i + 1, n_blocks)
        log.info(f"heal: block {i + 1} of {n_blocks}, error of its stream {healed.before:.4g} → {healed.after:.4g}")

    return heal_blocks(walk, {"fit": text.fit, "select": text.select}, plan, work, say)


def _global(
    student: Student, text: Text, settings: HealSettings, start: Mapping[str, float], work: Work, progress: Progress
) -> dict[str, Any]:
    """The global phase on what is trained; what was done, and the score relative to the start of everything."""
    from slimformer.heal.distil import Teaching, distil  # the Trainer takes seconds to import

    small, known, words = student.small, None, None
    if settings.top is not None:
        known = Remembered(work.teacher, settings.top)
    elif settings.words:
        words = words_of(student.dense, small, text.fit, settings.words)
    teaching = Teaching(student.dense, text.fit, text.held_out, start, settings, text.seed, known, words)
    if settings.train == "lora":
        from slimformer.heal.lora import adapters_of, with_adapters, without_adapters

        adapted = with_adapters(small, seed=text.seed)
        done = distil(adapted, adapters_of(adapted), teaching, work, progress)
        without_adapters(adapted, merged=done.part > 0)
    else:
        trained = trained_parameters(small, settings.train)
        with training_only(small, trained):
            done = distil(small, trained, teaching, work, progress)
    small.eval()
    return {**asdict(done.plan), "train": settings.train, "part": done.part, "score": done.score}
