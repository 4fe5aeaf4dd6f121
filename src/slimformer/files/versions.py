"""Versions of the packages that decide the numbers, for whatever is written down."""

from __future__ import annotations

from importlib.metadata import version

PACKAGES = ("slimformer", "torch", "transformers", "scipy")


def versions() -> dict[str, str]:
    """Name and version of each."""
    return {name: version(name) for name in PACKAGES}
