"""Work that waits until somebody imports a module, so that it is not imported for the work alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_WAITING: dict[str, list[Callable[[], None]]] = {}


def after_import(module: str, work: Callable[[], None]) -> None:
    """Do `work` right after `module` has been imported; at once where it has been already."""
    if module in sys.modules:
        work()
        return
    waiting = _WAITING.setdefault(module, [])
    if work not in waiting:
        waiting.append(work)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds what the other finders find; what is loaded from it is followed by the work that waits."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _WAITING:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Followed(spec.loader, name)
        return spec


class _Followed(Loader):
    """A loader with work after it. Everything else is asked of the loader itself."""

    def __init__(self, loader: Any, name: str) -> None:
        self.loader, self.name = loader, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        # From here on the module is as if nobody had waited for it: resources and sources are read by its own loader.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        for work in _WAITING.pop(self.name, []):
            work()
