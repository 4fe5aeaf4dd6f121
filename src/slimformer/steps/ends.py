"""Step `ends`: the embedding and the head of words as products of two thin matrices.

    embedding(x) = A[x] B        head(h) = A (B h) + b

Both factors in closed form, in the metric of what they are used for (`decompose.factored`): every token counts by how
often it occurs, what a head reads by its second moments, what an embedding writes by the Fisher metric. A table used at
both ends stays one, with one A and one B for both. Blocks stay as they are; all later steps start from the result, so
budgets over everything (`total_macs`, `size`) leave to the blocks what the ends no longer take.

With `end: head` a table used at both ends is not shared any longer: fewer MACs, more bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.ends import embedding_metric, read_by_head, token_shares
from slimformer.calibrate.gather import vocabulary
from slimformer.decompose.factored import Factored, factored
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.evaluate.fidelity import document_harms
from slimformer.evaluate.perplexity import evaluating
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.nn.low_rank_ends import EMBEDDING, HEAD, end_of, end_ranks
from slimformer.rewrite.low_rank_ends import is_tied, with_low_rank_ends
from slimformer.rewrite.vocabulary import table_bytes
from slimformer.run import Run
from slimformer.steps.step import Step

End = Literal["both", "embedding", "head"]


class Ends(Step):
    """Give the embedding and the head of words a low rank. Cost: two passes over the data, and V d² for V tokens."""

    rank: int | None = Field(default=None, ge=1, description="columns of the tables")
    end: End = Field(default="both", description="both, embedding or head")
    ridge: float = Field(default=1e-3, gt=0, description="of the moments, as a share of their mean")

    place: ClassVar[int] = -1
    why_no_budget: ClassVar[str] = "it gives tables a rank and cuts no widths"

    def require_complete(self) -> None:
        """A rank."""
        if self.rank is None:
            raise BudgetOutOfReach("the step ends needs a rank; give ends.rank=256, for one")

    def require_possible(self, run: Run) -> None:
        """Refuse models without a table at the end that was asked for, ranks that save nothing, and stock configs."""
        model, name = run.dense, run.loaded.name
        if run.format == "plain":
            raise UnknownMethod(
                f"a stock config has no word for an embedding or a head of low rank; use {option('format', 'ragged')}, "
                "or leave ends out"
            )
        if describe(model).family.image:
            raise UnknownMethod(f"{name} reads images, not tokens; leave ends out")
        if end_ranks(model):
            raise UnknownMethod(f"the ends of {name} have a rank already; start from the model it was made from")
        if self.end == HEAD and not _has_head(model):
            raise UnknownMethod(f"{name} has no head of words; give ends.end=embedding, or leave ends out")
        width = end_of(model, EMBEDDING).weight.shape[1]
        most = pays_below(vocabulary(model), width)
        if self.wanted_rank > most:
            raise BudgetOutOfReach(
                f"ends.rank={self.rank}: with {vocabulary(model):,} tokens of width {width} two thin matrices are "
                f"smaller up to rank {most}; give fewer"
            )

    @property
    def wanted_rank(self) -> int:
        """The rank; for what comes after `require_complete`."""
        assert self.rank is not None
        return self.rank

    def run(self, run: Run) -> Run:
        """The run with a dense model whose ends have this rank."""
        with run.timed("ends"):
            small, facts = self.shrunk(run)
        loaded = replace(run.loaded, model=small)
        shrunk = replace(run, loaded=loaded, model=small, original=run.original or run.loaded)
        return shrunk.reporting(ends=facts)

    def shrunk(self, run: Run) -> tuple[PreTrainedModel, dict[str, Any]]:
        """The model with ends of this rank, and what a report says of it."""
        model, r = run.dense, self.wanted_rank
        with evaluating(model), torch.inference_mode(False):
            errors, factors = {}, {}
            for end, (fitted, held) in self._fitted(run).items():
                left = fitted.errors(held)
                errors[end] = float(left[r] / left[0])
                factors[end] = fitted.at(_table(model, end), r)
        small = with_low_rank_ends(model, factors)
        return small, {
            "rank": r, "of": int(end_of(model, EMBEDDING).weight.shape[1]), "ends": list(factors), "error": errors,
            "tied": is_tied(small), "bytes": [table_bytes(each, run.loaded.dtype) for each in (model, small)],
            "harm": fmean(document_harms(model, small, run.splits["select"])),
        }  # fmt: skip

    def _fitted(self, run: Run) -> dict[str, tuple[Factored, Tensor]]:
        """For each end its factors of every rank, and the moments they are judged by, of text that was not fitted."""
        model = run.dense
        there = (EMBEDDING, HEAD) if _has_head(model) else (EMBEDDING,)
        ends = [end for end in there if self.end in ("both", end)]
        fit, held = ({end: _uses(run, end, split) for end in ends} for split in ("fit", "select"))
        if is_tied(model) and len(ends) == 2:
            C, kept = (uses[EMBEDDING].C + uses[HEAD].C for uses in (fit, held))
            one = factored(_table(model, HEAD), fit[HEAD].shares, C, ridge=self.ridge)
            return dict.fromkeys(ends, (one, kept))
        return {
            end: (factored(_table(model, end), fit[end].shares, fit[end].C, ridge=self.ridge), held[end].C)
            for end in ends
        }


@dataclass(frozen=True)
class Uses:
    """How often every row of a table is used, and what an error of a row then costs."""

    shares: Tensor
    C: Tensor


def pays_below(rows: int, width: int) -> int:
    """The largest rank at which (rows + width) · rank is less than rows · width."""
    return (rows * width - 1) // (rows + width)


def _uses(run: Run, end: str, split: str) -> Uses:
    """What one end is used for on a split."""
    batches = run.splits[split]
    if end == HEAD:
        moments, shares = read_by_head(run.dense, batches)
        return Uses(shares, moments.second(centred=False))
    assert run.data is not None
    shares = token_shares(batches, len(_table(run.dense, end)))
    return Uses(shares, embedding_metric(run.dense, batches, seed=run.data.seed))


def _table(model: PreTrainedModel, end: str) -> Tensor:
    weight: Tensor = end_of(model, end).weight
    return weight.detach().cpu()


def _has_head(model: PreTrainedModel) -> bool:
    head: Any = model.get_output_embeddings()
    return head is not None and len(head.weight) == vocabulary(model)
