"""What it costs that a result opens where it is to be served."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slimformer.export.serving import place_named, require_kind
from slimformer.models.load import Loaded
from slimformer.plan import Budget
from slimformer.plan.sensitivity import predicted_harm
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.calibration import profile
from slimformer.steps.make import make_plan, read_probes


def require_servable(loaded: Loaded, runtime: str) -> None:
    """Refuse a model that cannot be served there, before data are read."""
    place = loaded.companions or loaded.folder
    config: Any = loaded.model.config
    require_kind(
        runtime, config.model_type, sentences=place is not None and (place / "modules.json").is_file(),
        language=type(loaded.model).__name__.endswith("ForCausalLM"),
    )  # fmt: skip


def serving_note(run: Run, runtime: str, free: CutSettings | None) -> str:
    """What was given up, and by the probes what that costs: the plan that was made beside one of the same calibration
    and budget with settings that are `free`. Cost: an allocation, and error curves where those are not there yet."""
    place, harms = place_named(runtime), ""
    probes = read_probes(run.known) if run.statistics is not None else {}
    if free is not None and probes and run.plan is not None and run.plan.by != "latency":
        other = replace(run, curves=profile(run.dense, run.known, free), format="ragged")
        plan = make_plan(other, Budget(run.plan.budget, run.plan.by), free)  # type: ignore[arg-type]
        both = ((run.curves, run.plan), (other.curves, plan))
        ours, best = (predicted_harm(probes, curves, each.sizes) for curves, each in both)
        harms = f" (expected divergence {ours:.3g} nats, {best:.3g} with nothing given up)"
    return f"made for {runtime}, which gives up: {place.cost}{harms}; it opens there with: {place.then}"
