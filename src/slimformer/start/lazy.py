"""Packages whose public names are imported when they are first asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package that knows in which file each of its public names lives.

    A file may have the name of the function it holds (`slimformer.compress`). The import system binds a file's name in
    its package once the file is loaded; here the function keeps the name, whoever loads the file first.
    """

    homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self.homes.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(home), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self.homes):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.homes})


def make_lazy(package: str, homes: Mapping[str, str]) -> None:
    """Let a package import the names in `homes` from the modules given there, each when it is first asked for."""
    module = sys.modules[package]
    vars(module)["homes"] = homes
    module.__class__ = LazyPackage
