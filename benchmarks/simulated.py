"""The competing methods of `quality.py` that change other things than the sizes of sites.

Each is a function (evidence, budget) → a model, the MACs and parameters it really keeps, and its sizes. MACs are those
of `slimformer.plan.cost`: block matmuls per token with scores and context. Models are simulated at their old shapes
where that says the same (zeros, projections), and truly smaller in depth.

    modegpt      feed-forward by Nyström, queries and keys by CR, values and outputs by SVD       every family
    slicegpt     the residual stream in its principal directions, skip matrices counted           pre-norm families
    shortgpt     blocks of least influence dropped                                                every family
    replaceme    a run of blocks replaced by a linear map in the down projection before it        pre-norm families

Post-norm encoders (BERT, DistilBERT) cannot have two of them: their skip connections carry what a norm has made, so the
stream has no directions of its own to slice, and nothing linear stands between a down projection and the next block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from transformers import PreTrainedModel

from simulated_depth import replaceme, shortgpt
from simulated_evidence import Evidence, Smaller
from simulated_modegpt import modegpt
from simulated_slice import slicegpt
from slimformer.models import describe

Refusal = Callable[[PreTrainedModel], str | None]


def post_norm(model: PreTrainedModel) -> str | None:
    """Why a method that needs norms before the halves of a block cannot be had, if it cannot."""
    return None if all(site.norm for site in describe(model)) else "norms come after the skip connections"


def normed_queries(model: PreTrainedModel) -> str | None:
    """Why queries and keys cannot lose dimensions one head at a time, if they cannot."""
    return "queries and keys are normed over all their dimensions" if model.config.model_type == "qwen3" else None


@dataclass(frozen=True)
class Simulation:
    """A method, whether it moves in steps of a block, and why it cannot be had for a model (None if it can)."""

    make: Callable[[Evidence, float], Smaller]
    refuses: Refusal = lambda _model: None
    whole_blocks: bool = False


SIMULATED: dict[str, Simulation] = {
    "modegpt": Simulation(modegpt, normed_queries),
    "slicegpt": Simulation(slicegpt, post_norm),
    "shortgpt": Simulation(shortgpt, whole_blocks=True),
    "replaceme": Simulation(replaceme, post_norm, whole_blocks=True),
}
