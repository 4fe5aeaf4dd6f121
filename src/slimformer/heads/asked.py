"""Names of what a solved head can do, checked without a model."""

from __future__ import annotations

from pathlib import Path

from slimformer.errors import HeadDoesNotFit, UnknownMethod
from slimformer.messages.words import option

POOLS = ("cls", "mean", "last")
TARGETS = ("auto", "classes", "numbers")
ADAPTATIONS = ("least-squares", "discriminant", "bohning")  # of the head of a language model
SUFFIXES = (".safetensors", ".npy")  # of files with rows of numbers
MAPS = ("ridge", "procrustes", "cca", "scale-free", "relative")  # from one model to another


def require_pools(pools: tuple[str, ...]) -> None:
    """Refuse ways of reading states that are not known."""
    for name in pools:
        if name not in POOLS:
            raise HeadDoesNotFit(f"{option('pool')} {name!r} is not known; choose from {', '.join(POOLS)} or auto")


def require_target(target: str) -> None:
    """Refuse a kind of labels that is not known."""
    if target not in TARGETS:
        raise HeadDoesNotFit(
            f"{option('target')} is auto, classes or numbers, not {target!r}; several labels a row need Python"
        )


def require_maps(methods: tuple[str, ...]) -> None:
    """Refuse ways of matching that are not known."""
    for name in methods:
        if name not in MAPS:
            raise UnknownMethod(f"{option('method')} {name!r} is not known; choose from {', '.join(MAPS)} or all")


def require_adaptation(method: str) -> None:
    """Refuse a way of adapting a head that is not known."""
    if method not in ADAPTATIONS:
        raise HeadDoesNotFit(f"there is no method {method!r}; choose from {', '.join(ADAPTATIONS)}")


def is_features(name: str) -> bool:
    """A file with one row of numbers for each input, not a model?"""
    return Path(name).suffix.lower() in SUFFIXES
