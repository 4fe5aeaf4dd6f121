"""Adapt the head of a language model to a domain without training, and say what it costs elsewhere.

Everything under the head stays as it is, so the states of the domain are computed once. Settings are chosen on the
*select* split of the domain, perplexities are measured with the finished model on its *report* split, and on text of
the source domain where that is given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.errors import HeadDoesNotFit, TooFewTokens
from slimformer.evaluate.compare import is_language_model
from slimformer.evaluate.intervals import paired_difference
from slimformer.evaluate.perplexity import Perplexity, evaluating, perplexity
from slimformer.heads.asked import require_adaptation
from slimformer.heads.lm_head import (
    TokenMoments,
    bohning_step,
    constant,
    discriminant_head,
    least_squares_head,
    mean_loss,
    mean_losses,
)
from slimformer.messages.progress import Progress, silent
from slimformer.models.sample_inputs import require_one_stack

RIDGES = (1e-3, 1e-2, 1e-1)
BETAS = (1.0, 3.0, 10.0, 20.0, 40.0)
TAUS = (10.0, 100.0, 1e3, 1e4, 1e5)
PRIORS = (1e3, 1e5, 1e7)
PENALTIES = (1e-3, 1e-2, 1e-1)
SWEEPS = 10


@dataclass(frozen=True)
class States:
    """States after the final norm and the tokens that followed them."""

    H: Tensor  # n × d, float32
    t: Tensor


@dataclass(frozen=True)
class Adapted:
    """A head for the domain: weights V × d in float32, what was chosen, and the loss on the select split."""

    method: str
    W: Tensor
    chosen: dict[str, Any]
    select_loss: float


def states_of(model: PreTrainedModel, batches: Sequence[Batch]) -> States:
    """One forward pass without the head; every position but the last of a row predicts the next."""
    base: Any = model.base_model
    H, t = [], []
    with evaluating(model):
        for batch in batches:
            here = batch.to(model.device)
            states = base(**here.inputs).last_hidden_state[:, :-1]
            ids, mask = here.inputs["input_ids"], here.mask
            real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
            both = real[:, :-1] & real[:, 1:]
            H.append(states[both].float().cpu())
            t.append(ids[:, 1:][both].cpu())
    if not H or not sum(map(len, H)):
        raise TooFewTokens("there is no token to predict; give more text")
    return States(torch.cat(H).clone(), torch.cat(t).clone())


def require_language_model(model: PreTrainedModel) -> None:
    """Refuse a model without a head that predicts the next token."""
    if not is_language_model(model):
        raise HeadDoesNotFit(f"{type(model).__name__} has no language-model head to adapt")
    require_one_stack(model.config, "a head for another domain")


def adapt_head(
    model: PreTrainedModel, fit: States, select: States, method: str = "bohning", *, progress: Progress = silent
) -> Adapted:
    """The head of `model` for the domain of `fit`; what has to be chosen is chosen on `select`."""
    require_language_model(model)
    require_adaptation(method)
    layer: Any = model.get_output_embeddings()
    if getattr(layer, "bias", None) is not None and bool((layer.bias != 0).any()):
        raise HeadDoesNotFit("heads with a bias of their own are not adapted")
    if layer.weight.shape[1] != fit.H.shape[1]:
        raise HeadDoesNotFit("heads of low rank (the step ends) are not adapted; adapt the head first")
    W0 = layer.weight.detach().float().cpu()
    moments = TokenMoments.of(fit.H, fit.t, len(W0))
    return {"least-squares": _least_squares, "discriminant": _discriminant, "bohning": _bohning}[method](
        W0, moments, fit, select, progress
    )


def _least_squares(W0: Tensor, moments: TokenMoments, fit: States, select: States, progress: Progress) -> Adapted:
    tried: dict[tuple[float, float], float] = {}
    for i, ridge in enumerate(RIDGES):
        progress("least squares", i, len(RIDGES))
        losses = mean_losses(least_squares_head(moments, ridge).float(), select.H, select.t, BETAS)
        tried |= {(ridge, beta): loss for beta, loss in zip(BETAS, losses, strict=True)}
    ridge, beta = min(tried, key=lambda key: tried[key])
    W = beta * least_squares_head(moments, ridge).float()
    return Adapted("least-squares", W, {"ridge": ridge, "beta": beta}, tried[ridge, beta])


def _discriminant(W0: Tensor, moments: TokenMoments, fit: States, select: States, progress: Progress) -> Adapted:
    v = constant(moments.gram, moments.sums.sum(0))

    def head(tau: float, prior: float) -> Tensor:
        W, b = discriminant_head(moments, W0, tau=tau, prior=prior)
        return (W + torch.outer(b - b.mean(), v)).float()  # stock heads have no bias

    best: tuple[float, dict[str, float]] = (float("inf"), {})
    settings = [(tau, prior) for tau in TAUS for prior in PRIORS]
    for i, (tau, prior) in enumerate(settings):
        progress("discriminant", i, len(settings))
        loss = mean_loss(head(tau, prior), select.H, select.t)
        best = min(best, (loss, {"tau": tau, "prior": prior}), key=lambda pair: pair[0])
    loss, chosen = best
    return Adapted("discriminant", head(chosen["tau"], chosen["prior"]), chosen, loss)


def _bohning(W0: Tensor, moments: TokenMoments, fit: States, select: States, progress: Progress) -> Adapted:
    """The penalty by its first sweep, then sweeps until the select split gains nothing more."""

    def sweep(W: Tensor, penalty: float) -> Tensor:
        return bohning_step(W, W0, moments.gram, lambda: [(fit.H, fit.t)], penalty)

    first = {penalty: sweep(W0, penalty) for penalty in PENALTIES}
    losses = {penalty: mean_loss(W, select.H, select.t) for penalty, W in first.items()}
    penalty = min(losses, key=lambda key: losses[key])
    best = Adapted("bohning", W0, {"penalty": penalty, "sweeps": 0}, mean_loss(W0, select.H, select.t))
    W, n = first[penalty], 1
    while (loss := mean_loss(W, select.H, select.t)) < best.select_loss:
        best = Adapted("bohning", W, {"penalty": penalty, "sweeps": n}, loss)
        progress("bohning", n, SWEEPS)
        if n == SWEEPS:
            break
        W, n = sweep(W, penalty), n + 1
    return best


def with_head(model: PreTrainedModel, W: Tensor) -> tuple[PreTrainedModel, str | None]:
    """A copy of the model with another head. Tied embeddings are untied, which is said: the inputs stay as before."""
    out: Any = copy.deepcopy(model)
    layer = out.get_output_embeddings()
    tied = layer.weight is out.get_input_embeddings().weight
    new = nn.Linear(W.shape[1], W.shape[0], bias=False, dtype=layer.weight.dtype, device=layer.weight.device)
    with torch.no_grad():
        new.weight.copy_(W)
    out.set_output_embeddings(new)
    if not tied:
        return out.eval(), None
    out.config.tie_word_embeddings = False
    more = W.numel()
    return out.eval(), f"input and output embeddings were tied and are not any longer: {more:,} parameters more"


def before_and_after(
    dense: PreTrainedModel,
    adapted: PreTrainedModel,
    texts: Mapping[str, Sequence[Batch]],
    *,
    before: dict[str, Perplexity] | None = None,
) -> dict[str, Any]:
    """Perplexity of both models on each text, and the difference in nats per token with its interval.

    `before` is what is known of the dense model already.
    """
    out: dict[str, Any] = {}
    for name, batches in texts.items():
        old = before[name] if before else perplexity(dense, batches)
        new = perplexity(adapted, batches)
        documents = len(old.nll_per_document)
        sizes, nats = {"tokens": old.tokens, "documents": documents}, new.nll - old.nll
        out[name] = {**sizes, "before": old.ppl, "after": new.ppl, "nats": nats}
        if documents > 1:
            gap = paired_difference(old.nll_per_document, new.nll_per_document, weights=old.tokens_per_document)
            out[name] |= {"nats": gap.value, "low": gap.low, "high": gap.high}
    return out


def worse_elsewhere(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A note where text that is not the domain's has lost, beyond doubt."""
    lost = {name: loss["nats"] for name, loss in measured.items() if name != "domain" and loss.get("low", 0) > 0}
    if not lost:
        return []
    worst = max(lost, key=lambda name: lost[name])
    most = f"most on {worst}, by {lost[worst]:.3g} nats per token"
    return [f"the head has got worse on {len(lost)} of {len(measured) - 1} other texts; {most}"]
