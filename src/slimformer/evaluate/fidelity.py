"""How far a small model is from the dense one it was made of, on the same inputs and without labels.

Heads that give probabilities p (dense) and q (small):

    KL(p ‖ q) = Σ_c p_c (log p_c − log q_c) ≥ 0  in nats,     agreement = share of equal argmax

for each real position of a language model or token classifier, for each example of a classifier, and for the
start and the end of a question answerer, two distributions over the real positions of a row.

Bare models, rows x (dense) and y (small) of the last hidden state at real positions:

    cosine = xᵀy / (‖x‖ ‖y‖),     CKA = ‖C_xy‖² / (‖C_xx‖ ‖C_yy‖)     (Frobenius norms of centred covariances)

CKA does not change when either side is rotated, shifted or scaled. Its usual form needs n × n kernels; this
one, equal to it (Kornblith et al. 2019, section 3), needs the moments of the rows (x, y) only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from slimformer.calibrate.text import SEPARATOR, Batch
from slimformer.errors import NotFinite
from slimformer.evaluate.perplexity import device_of, evaluating, pieces
from slimformer.evaluate.units import Tally
from slimformer.linalg.moments import Moments
from slimformer.linalg.precision import to_double
from slimformer.models.outputs import at_once, has_outcomes, outcomes, real_positions

NEAREST = 10  # rows that count as neighbours
MOST_ROWS = 1000  # rows whose neighbours are looked at


@dataclass(frozen=True)
class Divergence:
    """Means over `positions` (distributions); the tuples hold means and numbers of positions by document."""

    kl: float
    agreement: float
    positions: int
    kl_per_document: tuple[float, ...]
    agreement_per_document: tuple[float, ...]
    positions_per_document: tuple[int, ...]


@dataclass(frozen=True)
class Similarity:
    """Cosines are None when the two widths differ; `cka` is 0 when either side is constant.

    By document: `rows` and `tokens`, mean cosines over each, and how much log CKA rises per token of the document
    (its influence function), whose mean is 0 and whose spread is the error of log CKA. `neighbours` is the share of the
    documents nearest to each that stay so; nothing where there are fewer than three.
    """

    cosine_pooled: float | None
    cosine_token: float | None
    cka: float
    tokens: int
    rows_per_document: tuple[int, ...]
    tokens_per_document: tuple[int, ...]
    pooled_per_document: tuple[float, ...]
    token_per_document: tuple[float, ...]
    influence_per_document: tuple[float, ...]
    neighbours_per_document: tuple[float, ...] = ()


def logit_divergence(dense: nn.Module, small: nn.Module, batches: Iterable[Batch]) -> Divergence:
    """Mean KL(dense ‖ small) and agreement over real positions or examples. Cost: one pass of both models."""
    by_document = Tally()
    with evaluating(dense, small):
        for part, p, q in _both(dense, small, batches):
            dense_scores, counted = outcomes(p, part.mask)
            small_scores, _ = outcomes(q, part.mask)
            documents = by_document.documents(part, counted.shape[1])
            counted = counted & (documents != SEPARATOR).to(counted.device)
            row, position, columns = compared(dense_scores, small_scores, counted)
            by_document.add(documents[row, position], columns)
    return divergence_of(by_document.table())


def divergence_of(table: Tensor) -> Divergence:
    """From Σ KL, Σ [equal argmax] and the number of positions of every document."""
    if not len(table):
        raise ValueError("there are no positions to compare: no batches, or nothing but padding")
    kl, agreed, count = table.T
    if not kl.isfinite().all():
        raise NotFinite("the divergence is not finite: the logits of one of the models hold NaN or −∞")
    n = int(count.sum())
    means = [tuple((sums / count).tolist()) for sums in (kl, agreed)]
    return Divergence(float(kl.sum()) / n, float(agreed.sum()) / n, n, means[0], means[1], tuple(count.long().tolist()))


def state_similarity(dense: nn.Module, small: nn.Module, batches: Sequence[Batch]) -> Similarity:
    """Cosines of last hidden states (pooled over a sequence, and token by token) and linear CKA of tokens.

    Cost: two passes of both models, the second for the error of CKA.
    """
    moments, width, by_document, alike = None, 0, Tally(), True
    pooled_rows: list[tuple[Tensor, Tensor, Tensor]] = []
    dense_body, small_body = headless(dense), headless(small)
    with evaluating(dense, small):
        for part, p, q in _both(dense_body, small_body, batches):
            X, Y = (_states(output, part.mask) for output in (p, q))
            real = real_positions(part.mask, X)
            rows = Moments.of(torch.cat([X[real], Y[real]], 1))
            moments, width = rows if moments is None else moments + rows, X.shape[-1]
            alike = X.shape == Y.shape
            of, some = by_document.main_documents(part), real.any(1)
            if sum(len(rows[0]) for rows in pooled_rows) < MOST_ROWS:
                pooled_rows.append((of.to(X.device)[some], X.sum(1)[some], Y.sum(1)[some]))
            by_document.add(of, _cosines_of_rows(X, Y, real))
    if moments is None or moments.count == 0:
        raise ValueError("there are no states to compare: no batches, or nothing but padding")
    if not moments.gram.isfinite().all():
        raise NotFinite("the last hidden states hold NaN or infinite values")
    C = moments.second(centred=True)
    table = by_document.table()
    table = table[table[:, 3] > 0]
    pooled, token, rows_read, tokens = table.T
    counts = [tuple(column.long().tolist()) for column in (rows_read, tokens)]
    cosines: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    means: tuple[float | None, float | None] = (None, None)
    if alike:
        cosines = (tuple((pooled / rows_read).tolist()), tuple((token / tokens).tolist()))
        means = (float(pooled.sum() / rows_read.sum()), float(token.sum() / tokens.sum()))
    influence = _cka_influence(dense_body, small_body, batches, moments, width)
    of, left, right = (torch.cat(rows)[:MOST_ROWS] for rows in zip(*pooled_rows, strict=True))
    same = tuple(neighbour_overlap(_sums(of, left), _sums(of, right)).tolist())
    return Similarity(*means, _cka(C, width), moments.count, counts[0], counts[1], *cosines, influence, same)


def _sums(of: Tensor, rows: Tensor) -> Tensor:
    """The sum of the rows of each document."""
    known, index = of.unique(return_inverse=True)
    return rows.new_zeros(len(known), rows.shape[1]).index_add_(0, index, rows)


def neighbour_overlap(X: Tensor, Y: Tensor, k: int = NEAREST) -> Tensor:
    """Of the k rows of X nearest to each (by cosine) the share that are among the k nearest in Y, too, for every row.
    By chance it is k / (n − 1). Fewer than three rows have no neighbours to speak of, so nothing is said; of few rows
    half are near. Cost O(n² d)."""
    n = len(X)
    k = min(k, (n - 1) // 2)
    if k < 1:
        return X.new_zeros(0)
    near = []
    for rows in (X, Y):
        unit = torch.nn.functional.normalize(rows, dim=1)
        near.append((unit @ unit.mT).fill_diagonal_(-torch.inf).topk(k, 1).indices)
    return (near[0][:, :, None] == near[1][:, None, :]).any(2).double().mean(1)


@torch.no_grad()
def harm_name(dense: nn.Module, batches: Sequence[Batch]) -> str:
    """What `document_harms` measures for this model, in words."""
    first = batches[0].to(device_of(dense))
    output = dense(**{name: value[:1] for name, value in first.inputs.items()})
    return "KL" if has_outcomes(output) else "relative squared change"


def document_harms(dense: nn.Module, small: nn.Module, batches: Iterable[Batch]) -> list[float]:
    """The harm of every document (row) on its own, in order; rows of nothing but padding are left out.

    Mean KL(dense ‖ small) over its distributions, in float64; where there are no scores ‖x − y‖² / ‖x‖² over its
    numbers or real last states. No row knows of another, so harms of independent documents are independent.
    Cost: one pass of both models.
    """
    harms: list[float] = []
    with evaluating(dense, small):
        for part, p, q in _both(dense, small, batches):
            sums = _kl_of_rows(p, q, part.mask) if has_outcomes(p) else _change_of_rows(p, q, part.mask)
            total, count = sums[sums[:, 1] != 0].T  # not >: NaN has to stay
            harms += (total / count).tolist()
    if not all(map(math.isfinite, harms)):
        raise NotFinite("the harm of a document is not finite: the outputs of one of the models hold NaN or −∞")
    return harms


def output_change(dense: nn.Module, small: nn.Module, batches: Iterable[Batch]) -> tuple[list[float], list[float]]:
    """‖x − y‖² and ‖x‖² of the outputs of every document, for heads that give numbers. Cost: a pass of both models."""
    by_document = Tally()
    with evaluating(dense, small):
        for part, p, q in _both(dense, small, batches):
            by_document.add(by_document.main_documents(part), _change_of_rows(p, q, part.mask))
    moved, size = by_document.table().T
    if not moved.isfinite().all():
        raise NotFinite("the change of the output is not finite: one of the models gives NaN or infinite numbers")
    return moved.tolist(), size.tolist()


def headless(model: nn.Module) -> nn.Module:
    """The model without its head; a model that has none is its own."""
    body: nn.Module = getattr(model, "base_model", model)
    return body


def _both(dense: nn.Module, small: nn.Module, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Any, Any]]:
    for batch in batches:
        for part in pieces(dense, batch):
            yield part, dense(**part.inputs), small(**part.to(device_of(small)).inputs)


def _kl_of_rows(dense: Any, small: Any, mask: Tensor | None) -> Tensor:
    """Σ KL and the number of distributions, for every row."""
    scores, counted = outcomes(dense, mask)
    row, _, columns = compared(scores, outcomes(small, mask)[0], counted)
    return torch.zeros(len(scores), 2, dtype=torch.float64).index_add_(0, row, columns[:, [0, 2]])


def _change_of_rows(dense: Any, small: Any, mask: Tensor | None) -> Tensor:
    """‖x − y‖² and ‖x‖² for every row, the latter 0 if there is nothing but padding."""
    x, y = (output.logits if "logits" in output else output.last_hidden_state for output in (dense, small))
    real = real_positions(mask if x.ndim == 3 else None, x)[..., None].cpu()
    # zeros instead of padding, because 0 · NaN is NaN
    x, y = (part.to("cpu", torch.float64).masked_fill(~real, 0.0).flatten(1) for part in (x, y))
    size = x.square().sum(1).clamp_min(1e-30)
    return torch.stack([(x - y).square().sum(1), size.where(real.flatten(1).any(1), 0.0)], 1)


def compared(p: Tensor, q: Tensor, counted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of every counted distribution its row, its position, and KL(p ‖ q), [equal argmax] and 1."""
    if p.shape != q.shape:
        raise ValueError(f"outputs of shape {tuple(p.shape)} and {tuple(q.shape)} are not of the same task")
    parts = [torch.zeros(0, 3, dtype=torch.float64)]
    row, position = counted.nonzero(as_tuple=True)
    few = at_once(p)
    for i, t in zip(row.split(few), position.split(few), strict=True):
        a, b = p[i, t], q[i.to(q.device), t.to(q.device)].to(p.device)
        (top, first), other = a.max(-1), b.amax(-1)
        agreed = b.gather(-1, first[:, None])[:, 0] == other
        kl = _kl(a, b, top, other)
        parts.append(torch.stack([kl, agreed.to(kl), torch.ones_like(kl)], 1).cpu().double())
    return row.cpu(), position.cpu(), torch.cat(parts)


def _kl(a: Tensor, b: Tensor, top: Tensor, other: Tensor) -> Tensor:
    """KL(p ‖ q) of scores a and b, the largest of which are known: Σ p (a − b) + log Σ exp b − log Σ exp a.

    In float64: in float32 the KL of near twins would drown.
    """
    a, b, top, other = (to_double(each) for each in (a, b, top, other))
    p, q = (a - top[:, None]).exp_(), (b - other[:, None]).exp_()
    # where p is 0 the term is 0, also if q is 0 there too (−∞ + ∞ would be NaN)
    gap = (a - b).masked_fill_(p == 0, 0.0)
    Z = p.sum(-1)
    return torch.linalg.vecdot(p, gap) / Z + (q.sum(-1).log() + other) - (Z.log() + top)


def _states(output: Any, mask: Tensor | None) -> Tensor:
    states: Tensor = output.last_hidden_state.to("cpu", torch.float64)
    # zeros instead of padding, because 0 · NaN is NaN in the pooled mean
    return states if mask is None else states.masked_fill(~mask[..., None].cpu(), 0.0)


def _cosines_of_rows(X: Tensor, Y: Tensor, real: Tensor) -> Tensor:
    """Of every row: cosine of its pooled states, Σ cosines of tokens, whether it has any, and how many; cosines are 0
    where widths differ."""
    counts = torch.stack([real.any(1), real.sum(1)], 1).double()
    if X.shape != Y.shape:
        return torch.cat([torch.zeros_like(counts), counts], 1)
    # cosines do not see the length of a vector, so the sum over tokens does for the mean
    pooled = cosine_similarity(X.sum(1), Y.sum(1)) * real.any(1)
    tokens = (cosine_similarity(X, Y, dim=-1) * real).sum(1)
    return torch.cat([torch.stack([pooled, tokens], 1), counts], 1)


def _cka_influence(
    dense: nn.Module, small: nn.Module, batches: Iterable[Batch], moments: Moments, d: int
) -> tuple[float, ...]:
    """How much log CKA rises per token of each document; with centred rows (x, y), the mean over tokens of

    2 xᵀ C_xy y / ‖C_xy‖² − xᵀ C_xx x / ‖C_xx‖² − yᵀ C_yy y / ‖C_yy‖².
    """
    C, mean, by_document = moments.second(centred=True), moments.mean, Tally()
    xx, yy, xy = (part / part.square().sum().clamp_min(1e-300) for part in (C[:d, :d], C[d:, d:], C[:d, d:]))
    with evaluating(dense, small):
        for part, p, q in _both(dense, small, batches):
            X, Y = (_states(output, part.mask) for output in (p, q))
            real = real_positions(part.mask, X)
            X, Y = X - mean[:d], Y - mean[d:]
            lift = 2 * (X @ xy * Y).sum(-1) - (X @ xx * X).sum(-1) - (Y @ yy * Y).sum(-1)
            columns = torch.stack([(lift * real).sum(1), real.sum(1).double()], 1)
            by_document.add(by_document.main_documents(part), columns)
    table = by_document.table()
    lifts, tokens = table[table[:, 1] > 0].T
    return tuple((lifts / tokens).tolist())


def _cka(C: Tensor, d: int) -> float:
    """Linear CKA from the covariance C of the rows (x, y), x being the first d coordinates."""
    xx, yy, xy = C[:d, :d], C[d:, d:], C[:d, d:]
    norms = float(xx.norm() * yy.norm())
    return float(xy.square().sum()) / norms if norms > 0 else 0.0
