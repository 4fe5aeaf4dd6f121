"""A finished smaller model on its way to `heal`: the run it starts from, and the folder the work is kept in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slimformer.errors import PlanDoesNotFit, WrongArgument
from slimformer.evaluate.assessment import require_relatives
from slimformer.evaluate.by_text import reads_alike, reads_tokens
from slimformer.heal.work import work_for
from slimformer.messages.words import option
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded
from slimformer.run import Run
from slimformer.steps.heal import require_healable
from slimformer.steps.result import plan_of
from slimformer.steps.step import Step


def healing_run(small: Loaded, dense: Loaded, *, length: int | None) -> Run:
    """The run of a model that was cut before; refused where it cannot learn, or not from this teacher."""
    require_healable(small)
    if small.model is dense.model:
        raise WrongArgument(f"the model and its {option('teacher')} are the same, so there is nothing to learn")
    require_relatives(dense, small, asked="teacher")
    if reads_tokens(dense) and not reads_alike(dense, small):
        raise PlanDoesNotFit(
            f"{small.name} reads other tokens than {dense.name}, so it cannot learn from it token by token; give "
            f"{option('heal', '10m')} to the run that takes tokens away"
        )
    run = Run(replace(dense, dtype=small.dtype), small.model, length=length)
    plan = plan_of(small, "unknown", run.seq_len)
    return replace(run, plan=plan, format=plan.format)


@contextmanager
def healing_work(run: Run, step: Step, out: str | Path | None) -> Iterator[Path]:
    """Where notes and checkpoints are kept: next to the result until it is there, or nowhere that lasts."""
    if out is None:
        with tempfile.TemporaryDirectory(prefix="slimformer-") as scratch:
            yield Path(scratch)
        return
    assert run.data is not None
    facts = {
        "settings": step.model_dump(mode="json"), "model": fingerprint(run.model), "teacher": fingerprint(run.dense),
        "data": run.data.hash, "seed": run.data.seed, "seq_len": run.data.seq_len, "mixed": run.data.mixed,
    }  # fmt: skip
    with work_for(Path(out), facts) as work:
        yield work.folder


def belonging_to(small: Loaded, dense: Loaded) -> Loaded:
    """What the healed model is saved with: tokenizer and companions of the model that was given."""
    return replace(
        dense, dtype=small.dtype, processor=small.processor or dense.processor,
        companions=small.companions or dense.companions,
    )  # fmt: skip
