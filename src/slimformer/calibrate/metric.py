"""The Fisher metric where blocks write into the residual stream, from one backward walk (see `decompose.metric`).

Outcomes are drawn from what the model itself predicts. Outputs without outcomes (embeddings, regression) are taken as
the mean of a Gaussian, scaled so that ½ δᵀ G δ is the relative squared change that `evaluate.fidelity.harm` measures.

A forward walk stores the state before every block. At the end stands the gradient of −log p at the last state; from the
last block to the first each runs once more, from its stored state, and hands on the gradient of its input. So one
block is needed at a time, weights and activations, and the gradients are those of one backward pass to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.distributed import world
from slimformer.calibrate.text import Batch
from slimformer.decompose.metric import metric_root
from slimformer.errors import NotFinite
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, describe
from slimformer.models.outputs import draw, has_outcomes, outcomes
from slimformer.models.residence import IN_MEMORY, Residence
from slimformer.models.walk import Trail, Visit, backward, ending_in, real_rows, record

TOKENS = 4096
ROWS = 2  # sequences that go through a block together: their activations are all kept until the way back


def fisher_metric(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    *,
    seed: int = 0,
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> dict[str, Tensor]:
    """For every site the root R of its metric (Rᵀ R = G shrunk), fitted on the first `TOKENS` real tokens.

    None where outputs are not finite, and where no way leads back from one stack to the one before (towers side by
    side), whose errors then count as squares. What a run
    that was stopped had found whole is found again. Cost: two forward passes and one backward pass over these tokens,
    without gradients of weights; memory tokens × hidden size × blocks.
    """
    model.eval()
    architecture = describe(model)
    n_blocks = architecture.n_blocks
    if len(architecture.stacks) > 1 and not architecture.family.reads_pairs:
        return {}
    if notes := residence.notes("metric"):
        return {name: residence.recall(f"metric.{name}") for name in notes[0]}
    progress("metric", 0, 2 * n_blocks)
    first = first_tokens(batches)
    trails = record(model, architecture, first, "metric", residence, lambda i: progress("metric", i + 1, 2 * n_blocks))
    outputs = _pull_back_outputs(model, architecture, trails, residence, seed)
    roots: dict[str, Tensor] = {}
    for visit in backward(model, architecture, residence) if outputs is not None else ():
        for name, G in _of_block(visit, trails).items():
            roots[name] = residence.keep(f"metric.{name}", metric_root(G / max(outputs or 0, 1)))
        progress("metric", 2 * n_blocks - visit.i, 2 * n_blocks)
    residence.forget("metric-")
    metric = {site.name: roots[site.name] for site in architecture} if roots else {}
    residence.finish("metric", list(metric))
    return metric


def _pull_back_outputs(
    model: PreTrainedModel, architecture: Architecture, trails: Sequence[Trail], residence: Residence, seed: int
) -> int | None:
    """Find the gradient of −log p at the state after the last block, batch by batch; how many outputs there are.

    None where outputs are not finite: calibration says at which site, or evaluation that the outputs are to blame.
    """
    generator = torch.Generator().manual_seed(seed)
    total = 0
    for trail in trails:
        batch = trail.batch
        with torch.enable_grad():
            state = trail.states[-1].detach().requires_grad_()
            with ending_in(model, architecture, [(batch, state)]):
                output = model(**batch.inputs)
            if not _finite(output):
                return None
            loss, count = surprise(output, batch.mask, generator)
            (gradient,) = torch.autograd.grad(loss, [state])
        trail.keep_gradient(gradient, architecture.n_blocks, residence)
        total += count
    return total


def _of_block(visit: Visit, trails: Sequence[Trail]) -> dict[str, Tensor]:
    """Σ g gᵀ for every site of a block, g being the gradients at what its reader writes."""
    readers = {site.name: site.reader for site in visit.sites}
    sums = {site.name: torch.zeros(site.outer, site.outer, dtype=torch.float64) for site in visit.sites}
    for trail in trails:
        gradients = visit.pull_back(trail, list(readers.values()))
        for name, reader in readers.items():
            g = real_rows(gradients[reader], trail.rows(visit)).float()
            sums[name] += (g.mT @ g).cpu().double()
    _require_finite(sums)
    return sums


def shared_metric(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    *,
    seed: int,
    residence: Residence = IN_MEMORY,
    progress: Progress = silent,
) -> dict[str, Tensor]:
    """As `fisher_metric`; of several processes the first finds it, and all have the same."""
    here = world()
    metric = fisher_metric(model, batches, seed=seed, residence=residence, progress=progress) if here.leads else {}
    return here.from_first(metric, {site.name: (site.outer, site.outer) for site in describe(model)})


def first_tokens(batches: Sequence[Batch]) -> list[Batch]:
    """A few sequences at a time, until there are tokens enough."""
    out: list[Batch] = []
    count = 0
    for batch in batches:
        rows = len(next(iter(batch.inputs.values())))
        for start in range(0, rows, ROWS):
            if count >= TOKENS:
                return out
            here = slice(start, start + ROWS)
            inputs = {name: tensor[here] for name, tensor in batch.inputs.items()}
            out.append(Batch(inputs, None if batch.mask is None else batch.mask[here]))
            count += out[-1].tokens
    return out


def surprise(output: Any, mask: Tensor | None, generator: torch.Generator) -> tuple[Tensor, int]:
    """−log p of an outcome drawn for every output, summed, and how many outputs there are."""
    if not has_outcomes(output):
        return _gaussian(output, mask, generator)
    scores, counted = outcomes(output, mask)
    log_p = scores[counted].float().log_softmax(-1)
    return -log_p.gather(1, draw(log_p.detach(), generator)).sum(), len(log_p)


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
