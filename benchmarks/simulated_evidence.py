"""What the methods of `simulated.py` are given beyond stored moments, and what they hand back.

They change other things than the sizes of sites (ranks, the residual stream, depth), so stored moments are not
enough: evidence is gathered from the same tokens everyone calibrates with, in one pass per question, and kept in
memory for all budgets. What a paper leaves to be tuned is chosen on the `select` split and never on a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import normalize
from transformers import PreTrainedModel

from baselines import Given
from slimformer.calibrate.text import Batch
from slimformer.evaluate.fidelity import logit_divergence
from slimformer.evaluate.perplexity import perplexity
from slimformer.linalg.moments import Moments
from slimformer.models import Architecture
from slimformer.models.architecture import reads_windows
from slimformer.models.family import Family
from slimformer.models.walk import real_rows, record
from slimformer.plan.cost import Cost, block_cost


class NotOffered(Exception):
    """A method cannot be had for this model, or not at this budget."""


@dataclass(frozen=True, eq=False)
class Smaller:
    """A model at a budget: the fractions of block MACs and parameters really kept, and the sizes behind them."""

    model: PreTrainedModel
    macs: float
    params: float
    sizes: dict[str, int]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What every method gets (`given`), and the batches to look at more closely."""

    given: Given
    fit: Sequence[Batch]
    select: Sequence[Batch]

    @property
    def architecture(self) -> Architecture:
        return self.given.architecture

    @property
    def family(self) -> Family:
        return self.given.architecture.family

    @cached_property
    def dense(self) -> Cost:
        """What all blocks cost as they are."""
        return block_cost(self.architecture, self.given.seq_len)

    @property
    def cosines(self) -> Tensor:
        """Mean cosine of the residual stream before block i and before block j, (n_blocks + 1)²; the end counts too."""
        return self._seen[0]

    @property
    def influence(self) -> Tensor:
        """Block Influence, 1 − E cos(x_i, x_{i+1}): how much each block turns the stream (ShortGPT)."""
        return 1 - self.cosines.diagonal(1)

    @property
    def attention_inputs(self) -> list[Moments]:
        """Moments of what the query projection of every block reads."""
        return self._seen[1]

    @cached_property
    def _seen(self) -> tuple[Tensor, list[Moments]]:
        queries = [block.heads[0].writers[0].module for block in self.architecture.blocks]
        cosines, moments = torch.zeros(()), [Moments.zero(self.architecture.hidden) for _ in queries]
        with listening(self.given.model, queries) as heard:
            for batch, states in self.walks():
                flat = torch.stack([normalize(real_rows(x, batch.mask).float(), dim=-1) for x in states]).flatten(1)
                cosines = cosines + (flat @ flat.mT).double()
                for i, name in enumerate(queries):
                    moments[i] += Moments.of(real_rows(heard[name][0], batch.mask))
        return cosines / moments[0].count, moments

    @torch.no_grad()
    def walks(self) -> Iterator[tuple[Batch, list[Tensor]]]:
        """Every batch to fit on with its stream before every block and after the last. Cost: one forward pass."""
        self.given.model.eval()
        for batch in self.fit:
            (trail,) = record(self.given.model, self.architecture, [batch], "fit")
            yield batch, trail.states

    def harm(self, small: PreTrainedModel) -> float:
        """How bad a model is on the select split: nats per token, or the divergence from the dense model."""
        if reads_windows(self.given.model, self.family):
            return perplexity(small, self.select).nll
        return logit_divergence(self.given.model, small, self.select).kl

    def smaller(self, model: PreTrainedModel, cost: Cost, sizes: dict[str, int]) -> Smaller:
        """A model with its cost as fractions of the dense one."""
        return Smaller(model, cost.macs / self.dense.macs, cost.params / self.dense.params, sizes)

    def best(self, candidates: Sequence[Callable[[], Smaller]]) -> Smaller:
        """Of several settings the one that does least harm on the select split; two models in memory at most."""
        found, least = candidates[0](), None
        for make in candidates[1:]:
            least = self.harm(found.model) if least is None else least
            other = make()
            if (harm := self.harm(other.model)) < least:
                found, least = other, harm
        return found


@contextmanager
def listening(model: PreTrainedModel, names: Iterable[str]) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """The last input and output of each of the modules named."""
    heard: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _module, args, output, name=name: heard.update({name: (args[0], output)})
        )
        for name in set(names)
    ]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def settings(make: Callable[..., Smaller], values: Iterable[object]) -> list[Callable[[], Smaller]]:
    """`make` with each of several values, for `Evidence.best`."""
    return [partial(make, value) for value in values]
