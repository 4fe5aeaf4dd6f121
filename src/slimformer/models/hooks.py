"""Hooks on modules: look at what they are given or give, find gradients there, answer in their place.

Everything here is undone when its context ends, also after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Hook = Callable[[Tensor], None]  # what is called with the input or the output of a module


@contextmanager
def listening(
    model: nn.Module, *, inputs: Mapping[str, Hook] | None = None, outputs: Mapping[str, Hook] | None = None
) -> Iterator[None]:
    """Call a hook with the first input, or with the output, of each of the modules named."""

    def before(hook: Hook) -> Any:
        return lambda _module, args, kwargs: hook(args[0] if args else next(iter(kwargs.values())))

    def after(hook: Hook) -> Any:
        return lambda _module, _args, output: hook(output)

    handles = [
        model.get_submodule(name).register_forward_pre_hook(before(hook), with_kwargs=True)
        for name, hook in (inputs or {}).items()
    ]
    handles += [model.get_submodule(name).register_forward_hook(after(hook)) for name, hook in (outputs or {}).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def nudged(model: nn.Module, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Add a zero to every output of each of the modules named; what the loss says of that zero is its gradient there.

    So nothing depends on whether the weights want gradients.
    """
    zeros: dict[str, list[Tensor]] = {name: [] for name in names}

    def nudge(name: str) -> Any:
        def after(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            zeros[name].append(torch.zeros_like(output, requires_grad=True))
            return output + zeros[name][-1]

        return after

    handles = [model.get_submodule(name).register_forward_hook(nudge(name)) for name in names]
    try:
        yield zeros
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def answering(modules: Sequence[nn.Module], answer: Callable[[nn.Module], Any]) -> Iterator[None]:
    """Let every module run `answer(module)` in place of its forward pass."""
    own = [vars(module).get("forward") for module in modules]  # of the module itself, not of its class
    try:
        for module in modules:
            module.forward = answer(module)  # type: ignore[method-assign]
        yield
    finally:
        for module, forward in zip(modules, own, strict=True):
            del module.forward
            if forward is not None:
                module.forward = forward
