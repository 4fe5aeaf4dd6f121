"""Step `long_context`: a trained model whose attention runs over k groups of keys. The weights stay as they are.

Which layers: one pass over the select split shows what grouping does to the output of every attention on its own, with
and without the second-order term, and so an order of layers and the better of both for each. Then as many layers are
grouped, the mildest first, as keep the harm at the outputs (mean KL, or the relative squared change of states) below
a limit, found by halving and measured each time; or all but the N worst. What is reported was measured on documents
that took no part in that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import lead_only
from slimformer.calibrate.gather import Data, positions
from slimformer.calibrate.text import Batch
from slimformer.decompose.sequence_stream import Grouping
from slimformer.errors import CannotGroup, TooFewTokens
from slimformer.evaluate.compare import first_tokens
from slimformer.evaluate.fidelity import document_harms, harm_name
from slimformer.evaluate.perplexity import evaluating, pieces
from slimformer.linalg.precision import to_double
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.architecture import fingerprint
from slimformer.nn.long_context import FIELD, FORMAT, Seen, approximated, attention_modules, install, observing
from slimformer.nn.projected_keys import FIXED
from slimformer.plan import Edit, Plan
from slimformer.run import Run
from slimformer.steps.long_context_fit import fit_projections
from slimformer.steps.step import Step

KINDS = ("cluster", "mean", *FIXED)
LIMIT = 0.05  # of the harm, where none is given
TOKENS = 8192  # of the select split are looked at
SMALLEST_BLOCK = 8
RIDGE = 1e-3  # written into the plan; nothing is cut
STEPS = 200


@dataclass(frozen=True)
class Layer:
    """What grouping does to the output of one attention: ‖Y − Ŷ‖ / ‖Y‖ on the select split."""

    layer: int
    error: float
    second_order: bool
    grouped: bool = False


class LongContext(Step):
    """Let attention run over `k` groups of keys in the layers where that does least harm.

    One of `max_kl` and `keep_exact`, or neither: then the harm is kept below 0.05.
    """

    k: int = Field(default=128, description="groups of keys attention runs over")
    kind: str = Field(default="cluster", description="cluster, mean, or for encoders least-squares or learned")
    window: int = Field(default=256, description="last tokens a decoder sees exactly (half of them at least)")
    keep_exact: int | None = Field(default=None, description="leave so many layers as they are, the worst ones")
    max_kl: float | None = Field(default=None, description="or: as many as keep the harm at the outputs below this")
    steps: int = Field(default=STEPS, ge=1, description="of training, for the kind learned")

    flags: ClassVar[dict[str, str]] = {n: n for n in ("k", "kind", "window", "keep_exact", "max_kl", "steps")}
    why_no_budget: ClassVar[str] = "it keeps every weight"

    @property
    def fits(self) -> bool:
        return self.kind in FIXED

    @property
    def limit(self) -> float:
        return math.inf if self.keep_exact is not None else LIMIT if self.max_kl is None else self.max_kl

    def require_possible(self, run: Run) -> None:
        """Refuse what cannot be grouped, and texts that would be exact anyway."""
        require_groupable(run.dense, describe(run.dense), self)
        self.sequence_length(run)

    def sequence_length(self, run: Run) -> int:
        """The length to choose and measure at: where none is given, four times what would still be exact."""
        return sequence_length_for(run.dense, describe(run.dense), self, run.length)

    def run(self, run: Run) -> Run:
        """Choose the layers, and let the model run by them."""
        lead_only()
        assert run.data is not None
        with run.timed("group keys"):
            small, section = make_long_context(run.dense, run.data, self, progress=run.progress)
        edits = tuple(
            Edit(site.name, self.name, site.units, site.units, site.units // site.group) for site in describe(run.dense)
        )
        plan = Plan(
            recipe=self.name, budget=1.0, macs=1.0, params=1.0, seq_len=run.data.seq_len, format="plain", ridge=RIDGE,
            absorb_mean=True, fingerprint=fingerprint(run.dense), edits=edits,
        )  # fmt: skip
        return replace(run, model=small, plan=plan).reporting(long_context=section)


def sequence_length_for(
    model: PreTrainedModel, architecture: Architecture, settings: LongContext, asked: int | None
) -> int:
    """The length to choose and measure at: where none is given, four times what would still be exact."""
    causal = architecture.family.causal
    exact = settings.k + (settings.window if causal else 0)
    most = positions(model.config)
    length = min(4 * exact, most) if asked is None else asked
    if length <= exact:
        keys = f"k {settings.k} and a window of {settings.window}" if causal else f"k {settings.k}"
        raise CannotGroup(
            f"texts of {length:,} tokens are exact with {keys}, so there is nothing to gain; give a "
            f"smaller {option('k')} "
            f"or a longer {option('seq_len')} (the model reads {most:,} tokens)"
        )
    return length


def require_groupable(model: PreTrainedModel, architecture: Architecture, settings: LongContext) -> None:
    """Refuse what cannot be done, before any work."""
    config, family = model.config, architecture.family
    if settings.kind not in KINDS:
        raise CannotGroup(f"there is no kind {settings.kind!r} of fewer keys; choose from {', '.join(KINDS)}")
    if settings.k < 2:
        raise CannotGroup(f"k {settings.k}: attention needs two groups of keys at least; 128 is a start")
    if settings.window < 0 or (settings.keep_exact or 0) < 0:
        raise CannotGroup(f"window {settings.window} and keep_exact {settings.keep_exact} are numbers from 0 on")
    if settings.keep_exact is not None and settings.max_kl is not None:
        raise CannotGroup("keep_exact says how many layers stay, max_kl lets that follow; give one of them")
    if settings.max_kl is not None and not settings.max_kl > 0:
        raise CannotGroup(f"max_kl {settings.max_kl} is not a positive number")
    if len(architecture.stacks) > 1 or any(len(block.heads) != 1 for block in architecture.blocks):
        raise CannotGroup(f"{config.model_type}: keys are grouped in models of one stack with one attention in a block")
    if architecture.n_layers > architecture.n_blocks:
        raise CannotGroup(f"{config.model_type}: one block is run many times, and keys are grouped block by block")
    if family.image:
        raise CannotGroup(f"{config.model_type}: images have few patches, and all are looked at; this is for text")
    types = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if types or (getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)):
        raise CannotGroup(f"{config.model_type}: layers of this model slide a window over the text already")
    if getattr(config, "is_decoder", False) and not family.causal:
        raise CannotGroup(f"{config.model_type} as a decoder is not supported; give an encoder")
    if getattr(config, "slimformer", None) or getattr(config, FIELD, None):
        raise CannotGroup("this model was cut or grouped before; start from the dense model")
    if family.causal and settings.kind in FIXED:
        raise CannotGroup(
            f"{settings.kind} projections are the same for every text and mix all its tokens, so a decoder would see "
            "the future; choose cluster or mean"
        )
    if family.causal and math.gcd(settings.k, settings.window // 2) < SMALLEST_BLOCK:
        raise CannotGroup(
            f"k {settings.k} and a window of {settings.window} have no common block; give "
            f"multiples of 2·{SMALLEST_BLOCK}"
        )


def make_long_context(
    model: PreTrainedModel, data: Data, settings: LongContext, *, progress: Progress = silent
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A copy with grouped keys in the layers where they do least harm, and what was chosen and measured.

    Cost: one pass over up to 8,192 tokens of the select split, and two for each of log₂(layers) trials; for fixed
    projections a fit before.
    """
    architecture = describe(model)
    require_groupable(model, architecture, settings)
    select = first_tokens(data.splits["select"], TOKENS)
    _require_long(select, settings, causal=architecture.family.causal)
    small = deepcopy(model).eval()
    _state(small, settings, data.seq_len, [Layer(i, 0.0, False, True) for i in range(architecture.n_blocks)])
    if settings.kind in FIXED:
        fit_projections(small, settings.kind, data.splits["fit"], steps=settings.steps, progress=progress)
    layers = layer_errors(small, select, progress=progress)
    trials: list[dict[str, float]] = []

    def harm(count: int) -> float:
        _state(small, settings, data.seq_len, _mildest(layers, count))
        harms = document_harms(model, small, select)
        trials.append({"layers": count, "harm": math.fsum(harms) / len(harms)})
        progress("choose layers", len(trials), len(trials))
        return trials[-1]["harm"]

    count = (
        len(layers) - settings.keep_exact
        if settings.keep_exact is not None
        else _most(harm, len(layers), settings.limit)
    )
    if count < 1:
        least = min(trials, key=lambda trial: trial["layers"])["harm"] if trials else math.nan
        raise CannotGroup(
            f"no layer can be grouped: the mildest alone changes outputs by {least:.3g} (limit {settings.limit:g}); "
            f"give a larger {option('k')} or {option('max_kl')}"
            if trials
            else f"{option('keep_exact', settings.keep_exact)} leaves none of {len(layers)} layers to group"
        )
    if settings.keep_exact is not None:
        harm(count)
    chosen = _mildest(layers, count)
    _state(small, settings, data.seq_len, chosen)
    for module in attention_modules(small, architecture.family):
        if hasattr(module, "projected") and module.grouping is None:
            del module.projected
    return small, _told(model, small, data, settings, chosen, trials)


def layer_errors(small: PreTrainedModel, batches: Sequence[Batch], *, progress: Progress = silent) -> list[Layer]:
    """What grouping does to every attention alone, the others being exact: the better of first and second order."""
    modules: list[Any] = list(attention_modules(small, describe(small).family))
    forms = [(False, True) if not hasattr(module, "projected") else (False,) for module in modules]
    sums = [torch.zeros(len(form), 2, dtype=torch.float64) for form in forms]

    def observer(i: int) -> Callable[[Seen], None]:
        def see(seen: Seen) -> None:
            counted = seen.real[:, None, :, None]
            for j, second in enumerate(forms[i]):
                how: Grouping = replace(modules[i].grouping, second_order=second)
                left = (seen.exact - approximated(modules[i], seen, how)) * counted
                sums[i][j] += torch.stack([_squares(left), _squares(seen.exact * counted)])

        return see

    with evaluating(small), observing(small, [observer(i) for i in range(len(modules))]):
        for done, batch in enumerate(batches):
            for part in pieces(small, batch):
                small.base_model(**part.inputs, **_no_cache(small))
            progress("look at attention", done + 1, len(batches))
    errors = [(total[:, 0] / total[:, 1].clamp_min(1e-300)).sqrt() for total in sums]
    return [Layer(i, float(error.min()), bool(forms[i][int(error.argmin())])) for i, error in enumerate(errors)]


def _no_cache(model: PreTrainedModel) -> dict[str, bool]:
    return {"use_cache": False} if describe(model).family.causal else {}


def _squares(x: Tensor) -> Tensor:
    return to_double(x).square().sum().cpu()


def _state(small: PreTrainedModel, settings: LongContext, length: int, layers: Sequence[Layer]) -> None:
    """Write into the config what is grouped, and let the model run by it."""
    how = Grouping(settings.k, settings.window, settings.kind)
    table: dict[str, Any] = {"format": FORMAT, "kind": settings.kind, "k": settings.k}
    if describe(small).family.causal:
        table |= {"window": settings.window}
    if settings.kind in FIXED:
        table |= {"length": length}
    else:
        table |= {"sweeps": how.sweeps, "sinks": how.sinks}
    table["layers"] = {str(each.layer): {"second_order": each.second_order} for each in layers if each.grouped}
    setattr(small.config, FIELD, table)
    install(small)


def _mildest(layers: Sequence[Layer], count: int) -> list[Layer]:
    """The layers in their order, those `count` grouped whose errors are the smallest."""
    worst = {each.layer for each in sorted(layers, key=lambda each: each.error)[count:]}
    return [replace(each, grouped=each.layer not in worst) for each in layers]


def _most(harm: Callable[[int], float], total: int, limit: float) -> int:
    """The largest count found by halving with a harm within the limit; 0 if not even one layer is."""
    if harm(total) <= limit:
        return total
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if harm(middle) <= limit else (low, middle)
    return low


def _require_long(batches: Sequence[Batch], settings: LongContext, *, causal: bool) -> None:
    exact = settings.k + (settings.window if causal else 0)
    longest = max(
        int(batch.mask.sum(1).max()) if batch.mask is not None else next(iter(batch.inputs.values())).shape[1]
        for batch in batches
    )
    if longest <= exact:
        raise TooFewTokens(
            f"the longest text has {longest:,} tokens, and up to {exact:,} all is exact; give longer texts or a "
            f"smaller {option('k')}"
        )


def _told(
    model: PreTrainedModel, small: PreTrainedModel, data: Data, settings: LongContext, layers: Sequence[Layer],
    trials: Sequence[dict[str, float]],
) -> dict[str, Any]:  # fmt: skip
    """For the report: what was chosen on the select split, and the harm on documents that took no part in it."""
    held = first_tokens(data.splits["report"], TOKENS)
    harms = document_harms(model, small, held)
    return {
        "kind": settings.kind, "k": settings.k, "window": settings.window if describe(model).family.causal else None,
        "layers": [asdict(each) for each in layers], "harm_is": harm_name(model, held),
        "limit": None if settings.keep_exact is not None else settings.limit, "trials": list(trials),
        "harm_select": next(t["harm"] for t in reversed(trials) if t["layers"] == sum(e.grouped for e in layers)),
        "harm_report": math.fsum(harms) / len(harms), "tokens_report": sum(batch.tokens for batch in held),
    }  # fmt: skip
