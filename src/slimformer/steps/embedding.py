"""Step `embedding`: shorter embeddings of sentences, by a rotation that keeps inner products, in closed form.

The model stays as it is. A linear module after the pooling maps its embedding to the directions that matter most on the
fit split (`decompose.directions`); the first numbers of the result matter most, so it may be cut shorter still.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.checkpoint.sentence import Pooling, kinds_of, pooled, pooling_of, sentence_modules, with_dense
from slimformer.decompose.directions import directions
from slimformer.errors import BudgetOutOfReach, UnknownMethod
from slimformer.evaluate.fidelity import headless
from slimformer.evaluate.perplexity import evaluating, pieces
from slimformer.evaluate.report import Report
from slimformer.linalg.moments import Moments
from slimformer.models import describe
from slimformer.run import Run
from slimformer.steps.step import Step

PAIRED = 512  # held-out texts whose cosines are compared, each with each


class Embedding(Step):
    """Map the embeddings of a sentence-transformers model to fewer numbers, the first of which matter most."""

    dim: int = Field(default=128, ge=1, description="numbers in an embedding")

    place: ClassVar[int] = 6
    why_no_budget: ClassVar[str] = "it shortens embeddings and cuts no widths"

    def require_possible(self, run: Run) -> None:
        """Refuse what is no sentence-transformers folder, other ways to pool, and dimensions that are not fewer."""
        source = run.loaded.companions
        modules = sentence_modules(source) if source is not None else []
        if "Dense" in kinds_of(modules):
            raise UnknownMethod(f"{run.loaded.name} has a Dense module already; the step embedding would add another")
        if not modules or pooling_of(source) is None:
            raise UnknownMethod(
                f"{run.loaded.name}: the step embedding is for sentence-transformers folders (modules.json) that pool "
                "by mean or cls; leave it out"
            )
        hidden = describe(run.dense).hidden
        if self.dim >= hidden:
            raise BudgetOutOfReach(f"embedding.dim={self.dim}: embeddings have {hidden} numbers; give fewer")

    def run(self, run: Run) -> Run:
        """Nothing yet: directions are those of the finished model."""
        return run

    def finish(self, run: Run, report: Report) -> tuple[Run, Report]:
        """The run with the files of one more module, and a report on what it keeps of held-out texts."""
        source = run.loaded.companions
        how = pooling_of(source)
        assert source is not None and how is not None
        with run.timed("embedding"):
            fit, held = (embeddings(run.model, run.splits[split], how) for split in ("fit", "report"))
            V, _ = directions(Moments.of(fit).second(centred=False), self.dim)
            facts = {"dim": self.dim, "of": fit.shape[1], **kept(held, V)}
        parts = with_dense(sentence_modules(source), V.to(run.loaded.dtype))
        return replace(run, parts=parts), replace(report, embedding=facts)


def embeddings(model: PreTrainedModel, batches: Sequence[Batch], how: Pooling) -> Tensor:
    """The pooled states of every row, of length one where the folder says so, in double precision."""
    tables = []
    with evaluating(model):
        for batch in batches:
            for part in pieces(model, batch):
                assert part.mask is not None
                states = headless(model)(**part.inputs).last_hidden_state.cpu().double()
                tables.append(pooled(states, part.mask.cpu(), how))
    return torch.cat(tables)


def kept(X: Tensor, V: Tensor) -> dict[str, Any]:
    """Of held-out embeddings: the share of their squares that V keeps, and how far cosines of pairs moved."""
    Y = X @ V.mT
    before, after = (normalize(Z[:PAIRED], dim=-1) for Z in (X, Y))
    pairs = torch.triu_indices(len(before), len(before), 1)
    moved = ((before @ before.mT) - (after @ after.mT))[pairs[0], pairs[1]]
    return {
        "energy": float(Y.square().sum() / X.square().sum()), "texts": len(X),
        "cosine_change": float(moved.square().mean().sqrt()) if len(moved) else 0.0,
    }  # fmt: skip
