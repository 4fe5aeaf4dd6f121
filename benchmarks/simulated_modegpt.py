"""MoDeGPT: three modules of a block, each made smaller by the decomposition that fits it.

    I    feed-forward      neurons by ridge leverage, diag C (C + λI)⁻¹; down refitted by least squares (Nyström)
    II   query and key     CR: dimensions of a head by ‖q column‖ · ‖k column‖, the others dropped. With rotary
                           positions whole planes (c, c + d/2) by the norms of the plane, which rotations keep
    III  value and output  SVD of C^½ W_v W_o with C the covariance of what attention reads, before it is mixed

Under grouped queries II and III sum over the queries of a group. How much each block keeps stands in
`simulated_ranks.py`; the ε there is chosen on the select split among `SMOOTHINGS`. Widths stay as they were, with zeros
in the place of what is gone; MACs are those of the smaller ones.

Reference: Lin, Gao, Smith, Patel, Tuli, Shen, Jin, Hsu, MoDeGPT: modular decomposition for LLM compression (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import deepcopy
from functools import cache

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from simulated_evidence import Evidence, Smaller, settings
from simulated_ranks import Ranks, allocation, plane_of, ranks_cost
from slimformer.decompose import Selection, select
from slimformer.linalg.damped import damped
from slimformer.linalg.moments import Moments
from slimformer.models import Site
from slimformer.models.architecture import Writer, has_bias, weight_of

SMOOTHINGS = (0.03, 0.1, 0.3, math.inf)  # ε


def modegpt(evidence: Evidence, budget: float) -> Smaller:
    """All three modules at a budget. Cost: one forward pass for all budgets, then O(D³) a block."""

    def at(smoothing: float) -> Smaller:
        return decomposed(evidence, allocation(evidence, budget, smoothing))

    return evidence.best(settings(at, SMOOTHINGS) if budget < 1 else settings(at, [math.inf]))


# --- the three modules --------------------------------------------------------------------------------------


@torch.no_grad()
def decomposed(evidence: Evidence, ranks: Sequence[Ranks]) -> Smaller:
    """A copy of the model with every block at its ranks."""
    model = deepcopy(evidence.given.model)
    sizes: dict[str, int] = {}
    for i, rank in enumerate(ranks):
        heads, ffn = evidence.architecture.blocks[i].sites
        if rank.neurons < ffn.units:
            _nystrom(evidence, model, ffn, rank.neurons)
        if rank.qk < heads.unit:
            _column_row(evidence, model, heads, rank.qk)
        if rank.vo < heads.unit:
            _value_output(evidence, model, heads, rank.vo)
        sizes |= {f"blocks.{i}.attn.qk": rank.qk, f"blocks.{i}.attn.vo": rank.vo, f"{ffn.name}": rank.neurons}
    return evidence.smaller(model, ranks_cost(evidence, ranks), sizes)


def leverage_order(C: Tensor, ridge: float) -> list[int]:
    """Coordinates by falling ridge leverage, the diagonal of C (C + λI)⁻¹."""
    scores = torch.linalg.solve(damped(C, ridge), C).diagonal()
    return scores.argsort(descending=True, stable=True).tolist()


@cache  # the same at every budget
def _order(evidence: Evidence, ffn: Site) -> list[int]:
    width = evidence.given.width(ffn)
    return leverage_order(width.fit.second(centred=width.bias), evidence.given.recipe.ridge)


def _nystrom(evidence: Evidence, model: PreTrainedModel, ffn: Site, neurons: int) -> None:
    selection = select(evidence.given.width(ffn), _order(evidence, ffn), neurons, ridge=evidence.given.recipe.ridge)
    gone = torch.ones(ffn.units, dtype=torch.bool)
    gone[selection.J] = False
    for writer in ffn.writers:
        W, b = head_rows(model, writer)
        for part in (W, b):
            if part is not None:
                part[gone] = 0
    _read(model.get_submodule(ffn.reader), selection)


def _read(layer: nn.Module, selection: Selection) -> None:
    """W ← W E in the columns J, zero in the others; b ← b + W c."""
    W = weight_of(layer)
    old = W.double().clone()  # not a view of what is written next
    W.zero_()
    W[:, selection.J] = (old @ selection.E).to(W)
    if has_bias(layer):
        layer.bias.add_(old @ selection.c)


def _column_row(evidence: Evidence, model: PreTrainedModel, heads: Site, rank: int) -> None:
    query, key, _ = heads.writers
    moments, plane = evidence.attention_inputs[heads.block], plane_of(evidence)
    Wq, bq = head_rows(model, query)
    Wk, bk = head_rows(model, key)
    energy_q = column_energy(Wq, bq, moments).unflatten(0, (-1, heads.group)).sum(1)  # of all queries of a group
    kept = columns_to_keep(energy_q, column_energy(Wk, bk, moments), rank, plane)
    for W, b, gone in ((Wq, bq, ~kept.repeat_interleave(heads.group, 0)), (Wk, bk, ~kept)):
        W[gone] = 0
        if b is not None:
            b[gone] = 0


def column_energy(W: Tensor, b: Tensor | None, moments: Moments) -> Tensor:
    """E (w x + b)² of every row w of W (heads × d × D): heads × d."""
    W = W.double()
    energy = ((W @ moments.second(centred=False)) * W).sum(-1)
    if b is None:
        return energy
    b = b.double()
    return energy + 2 * b * (W @ moments.mean) + b.square()


def columns_to_keep(energy_q: Tensor, energy_k: Tensor, rank: int, plane: int) -> Tensor:
    """The `rank` columns of every head with the largest ‖q‖ ‖k‖, planes of 2 (c and c + d/2) together."""
    d = energy_q.shape[1]
    score = energy_q.unflatten(1, (plane, -1)).sum(1) * energy_k.unflatten(1, (plane, -1)).sum(1)
    best = score.argsort(dim=1, descending=True, stable=True)[:, : rank // plane]
    kept = torch.zeros(len(score), d // plane, dtype=torch.bool).scatter_(1, best, True)
    return kept.repeat(1, plane)


def _value_output(evidence: Evidence, model: PreTrainedModel, heads: Site, rank: int) -> None:
    value, output = heads.writers[2], model.get_submodule(heads.reader)
    C = evidence.attention_inputs[heads.block].second(centred=False)
    V, b = head_rows(model, value)
    O = weight_of(output).unflatten(1, (len(V), heads.group, heads.unit))  # D × kv heads × queries × d
    if b is not None:
        _move_bias(output, b, heads)
    for g in range(len(V)):
        W, columns = V[g].double().clone(), O[:, g].double().clone()  # not views of what is written next
        S, E = whitened_svd(damped(W @ C @ W.mT, evidence.given.recipe.ridge), columns.flatten(0, 1), rank)
        V[g], O[:, g] = 0, 0
        V[g, :rank] = (S @ W).to(V)
        O[:, g, :, :rank] = (columns @ E).to(O)


def whitened_svd(C: Tensor, W: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """S, E of the map E S of a rank that leaves least E ‖W (I − E S) v‖² for v with second moments C = L Lᵀ.

    With U the leading eigenvectors of Lᵀ Wᵀ W L: S = Uᵀ L⁻¹, E = L U.
    """
    L = torch.linalg.cholesky(C)
    U = torch.linalg.eigh(L.mT @ (W.mT @ W) @ L).eigenvectors[:, -rank:]
    return torch.linalg.solve_triangular(L, U.mT, upper=False, left=False), L @ U


def _move_bias(output: nn.Module, b: Tensor, heads: Site) -> None:
    """Attention weights sum to one, so a bias of values is a bias of the output: b_o ← b_o + W_o b_v, b_v ← 0."""
    W = weight_of(output)
    if not has_bias(output):
        output.bias = nn.Parameter(W.new_zeros(len(W)))
    output.bias.add_(W @ b.repeat_interleave(heads.group, 0).flatten())
    b.zero_()


def head_rows(model: PreTrainedModel, writer: Writer) -> tuple[Tensor, Tensor | None]:
    """Weight (units × rows × D) and bias (units × rows) of what a writer writes, as views; neurons have one row."""
    module = model.get_submodule(writer.module)
    W = weight_of(module).chunk(writer.parts)[writer.part].unflatten(0, (-1, writer.rows))
    if not writer.bias:
        return W, None
    return W, module.bias.detach().chunk(writer.parts)[writer.part].unflatten(0, (-1, writer.rows))
