"""Experts with modules of their own, in the place of those that are stored in one tensor for all of a block.

transformers holds the matrices of all experts of a block in two parameters, `gate_up_proj` (experts × 2 k × D) and
`down_proj` (experts × D × k). Here each is a linear map, so that it can be heard, cut and refitted as others are:

    y = Σ_e W_e (w_e a(G_e x) ∘ U_e x)        w_e the weight the router gives expert e; 0 where it does not send x there

The weight stands before W_e, so what the reader of an expert sees is a row for every token, zero where the token goes
elsewhere: its least squares are those of the tokens sent to it, weighted as they count in y. The state dict is that of
the stock module, so whatever saves or loads the model knows no difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from slimformer.errors import PlanDoesNotFit, UnknownArchitecture
from slimformer.models.family import ExpertsPart, Family

KEPT = "slimformer_experts"  # of a config: of every block the numbers its experts had in the model it was made from
STORED = ("gate_up_proj", "down_proj")


class Expert(nn.Module):
    """One gated feed-forward part."""

    def __init__(self, gate_up: Tensor, down: Tensor, activation: nn.Module) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = linear(gate_up), linear(down)
        self.act_fn = activation

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        rows = weight.nonzero()[:, 0]
        gate, up = self.gate_up_proj(x[rows]).chunk(2, -1)
        hidden = self.act_fn(gate) * up * weight[rows].to(x.dtype)
        written: Tensor = self.down_proj(hidden.new_zeros(len(x), hidden.shape[-1]).index_put((rows,), hidden))
        return written


class Experts(nn.ModuleList):
    """All experts of a block, called and stored as the stock module is."""

    def __init__(self, stock: Any) -> None:
        pairs = zip(stock.gate_up_proj, stock.down_proj, strict=True)
        super().__init__(Expert(gate_up, down, stock.act_fn) for gate_up, down in pairs)
        self.stock = (_without_parameters(stock),)  # no module of this one
        self.train(stock.training)
        self.register_load_state_dict_pre_hook(_taken_apart)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        weights = top_k_weights.new_zeros(len(hidden_states), len(self)).scatter(1, top_k_index, top_k_weights)
        out = torch.zeros_like(hidden_states)
        for expert, weight in zip(self, weights.mT[..., None], strict=True):
            out = out + expert(hidden_states, weight)
        return out

    def whole(self, name: str) -> Tensor:
        """One of the two tensors of the stock module."""
        matrices = [getattr(expert, name).weight for expert in self]
        if len({matrix.shape for matrix in matrices}) > 1:
            raise PlanDoesNotFit(f"{name} is one tensor, and experts of one block differ in width")
        return torch.stack(matrices)

    def state_dict(self, *_args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """As the stock module has it."""
        destination = {} if destination is None else destination
        for name in STORED:
            destination[f"{prefix}{name}"] = self.whole(name) if keep_vars else self.whole(name).detach()
        return destination

    def together(self) -> nn.Module:
        """A stock module of these experts."""
        stock = _without_parameters(self.stock[0])
        stock.num_experts = len(self)
        for name in STORED:
            stock.register_parameter(name, nn.Parameter(self.whole(name).detach(), requires_grad=False))
        return stock


def _without_parameters(module: Any) -> Any:
    other = copy(module)
    vars(other)["_parameters"] = {}
    return other


def _taken_apart(module: Experts, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Let the tensors of the stock module be read as those of each expert."""
    for name in STORED:
        for n, matrix in enumerate(state.pop(f"{prefix}{name}", ())):
            state[f"{prefix}{n}.{name}.weight"] = matrix


def linear(W: Tensor) -> nn.Linear:
    """A linear map without bias, of this weight."""
    layer = nn.Linear(W.shape[1], W.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(W.detach().clone(), requires_grad=W.requires_grad)
    return layer


def take_apart(model: PreTrainedModel, family: Family) -> None:
    """Give all experts of a model modules of their own, in place; what has them stays."""
    for stack in family.stacks:
        for part in (part for part in stack.parts if isinstance(part, ExpertsPart)):
            for block in model.base_model.get_submodule(stack.blocks).children():
                parent, _, name = part.experts.rpartition(".")
                owner = block.get_submodule(parent)
                if not hasattr(owner, name):
                    raise UnknownArchitecture(
                        f"{type(model).__name__}: some blocks have experts and some have none, so it is not cut"
                    )
                if not isinstance(stock := getattr(owner, name), Experts):
                    setattr(owner, name, Experts(stock))


def sharing_weights(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in modules of its own, with the weights of the one given: taken apart, it leaves that as it is."""
    return deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


@contextmanager
def as_stored(*models: nn.Module) -> Iterator[None]:
    """Models as transformers runs them, with stock modules in the place of experts: for whoever takes the time."""
    apart = [(m, name, each) for m in models for name, each in m.named_modules() if isinstance(each, Experts)]
    try:
        for model, name, experts in apart:
            model.set_submodule(name, experts.together())
        yield
    finally:
        for model, name, experts in apart:
            model.set_submodule(name, experts)


def numbers_before(config: Any, block: int, count: int) -> list[int]:
    """The numbers the experts of a block had in the model it was made from."""
    known = getattr(config, KEPT, None)
    here = known[block] if isinstance(known, list) and block < len(known) else None
    whole = isinstance(here, list) and len(here) == count == len({n for n in here if isinstance(n, int)})
    return list(here) if whole and here is not None else list(range(count))
