"""The Fisher metric where blocks write into the residual stream, from one backward pass (see `decompose.metric`).

Outcomes are drawn from what the model itself predicts. Outputs without outcomes (embeddings, regression) are taken as
the mean of a Gaussian, scaled so that ½ δᵀ G δ is the relative squared change that `evaluate.fidelity.harm` measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.collect import nudged, real_rows
from slimformer.calibrate.distributed import world
from slimformer.calibrate.text import Batch
from slimformer.decompose.metric import metric_root
from slimformer.errors import NotFinite
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.outputs import has_outcomes, outcomes

TOKENS = 4096
ROWS = 2  # sequences that go through the model together: their activations are all kept until the way back


def fisher_metric(
    model: PreTrainedModel, batches: Sequence[Batch], *, seed: int = 0, progress: Progress = silent
) -> dict[str, Tensor]:
    """For every site the root R of its metric (Rᵀ R = G shrunk), fitted on the first `TOKENS` real tokens.

    None where outputs are not finite. Cost: one forward and one backward pass over these tokens, without gradients
    of weights.
    """
    model.eval()
    sites = list(describe(model))
    generator = torch.Generator().manual_seed(seed)
    sums = {site.name: torch.zeros(site.outer, site.outer, dtype=torch.float64) for site in sites}
    parts = _parts(batches)
    outputs = 0
    progress("metric", 0, len(parts))
    for n, part in enumerate(parts):
        here = part.to(model.device)
        with torch.enable_grad(), nudged(model, [site.reader for site in sites]) as nudges:
            output = model(**here.inputs)
            if not _finite(output):
                return {}  # calibration says at which site, or evaluation that the outputs are to blame
            loss, count = _surprise(output, here.mask, generator)
            gradients = torch.autograd.grad(loss, [nudges[site.reader] for site in sites])
        for site, gradient in zip(sites, gradients, strict=True):
            g = real_rows(gradient, here.mask).float()
            sums[site.name] += (g.mT @ g).cpu().double()
        outputs += count
        progress("metric", n + 1, len(parts))
    _require_finite(sums)
    return {name: metric_root(G / max(outputs, 1)) for name, G in sums.items()}


def shared_metric(
    model: PreTrainedModel, batches: Sequence[Batch], *, seed: int, progress: Progress = silent
) -> dict[str, Tensor]:
    """As `fisher_metric`; of several processes the first finds it, and all have the same."""
    here = world()
    found = fisher_metric(model, batches, seed=seed, progress=progress) if here.leads else {}
    return here.from_first(found, {site.name: (site.outer, site.outer) for site in describe(model)})


def _parts(batches: Sequence[Batch]) -> list[Batch]:
    """A few sequences at a time, until there are tokens enough."""
    out: list[Batch] = []
    found = 0
    for batch in batches:
        rows = len(next(iter(batch.inputs.values())))
        for start in range(0, rows, ROWS):
            if found >= TOKENS:
                return out
            here = slice(start, start + ROWS)
            inputs = {name: tensor[here] for name, tensor in batch.inputs.items()}
            out.append(Batch(inputs, None if batch.mask is None else batch.mask[here]))
            found += out[-1].tokens
    return out


def _surprise(output: Any, mask: Tensor | None, generator: torch.Generator) -> tuple[Tensor, int]:
    """−log p of an outcome drawn for every output, summed, and how many outputs there are."""
    if not has_outcomes(output):
        return _gaussian(output, mask, generator)
    scores, counted = outcomes(output, mask)
    log_p = scores[counted].float().log_softmax(-1)
    drawn = torch.multinomial(log_p.detach().exp().cpu(), 1, generator=generator).to(log_p.device)
    return -log_p.gather(1, drawn).sum(), len(log_p)


def _gaussian(output: Any, mask: Tensor | None, generator: torch.Generator) -> tuple[Tensor, int]:
    """Σ √2 ⟨ε, x⟩ / √E‖x‖² over numbers or last states x, ε standard normal draws."""
    x = output.logits if "logits" in output else output.last_hidden_state
    rows = real_rows(x, mask if x.ndim == 3 else None).float()
    noise = torch.randn(rows.shape, generator=generator).to(rows.device)
    energy = rows.detach().square().sum(-1).mean().clamp_min(1e-30)
    return (2 / energy).sqrt() * (noise * rows).sum(), len(rows)


def _finite(output: Any) -> bool:
    tensors = [value for value in output.values() if isinstance(value, Tensor) and value.is_floating_point()]
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _require_finite(sums: dict[str, Tensor]) -> None:
    for name, G in sums.items():
        if not bool(torch.isfinite(G.diagonal()).all()):
            raise NotFinite(
                f"{name}: NaN or infinite gradients during calibration; check the weights, "
                f"or calibrate with {option('dtype', torch.float32)}"
            )
