"""What the built package says of itself: the README with links that work outside the repository.

Where `home` in pyproject.toml ([tool.hatch.metadata.hooks.custom]) names the repository, links to its files become
absolute and the package has URLs. Where it is empty nobody knows the place yet: links to files become their words, and
none is dead.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)\s#]*)(#[^)\s]*)?\)")


def outside(text: str, home: str, version: str) -> str:
    """A document whose links to files of the repository work elsewhere, or are words."""

    def link(found: re.Match[str]) -> str:
        picture, words, path, anchor = found[1], found[2], found[3], found[4] or ""
        if not path:
            return found[0]  # a heading of the same document
        if not home:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({home.rstrip('/')}/{kind}/v{version}/{path}{anchor})"

    return LINK.sub(link, text)


def urls(home: str, version: str) -> dict[str, str]:
    """The pages a registry shows beside the package."""
    base = home.rstrip("/")
    pages = {"Homepage": "", "Documentation": f"/blob/v{version}/docs", "Changes": f"/blob/v{version}/CHANGELOG.md",
             "Issues": "/issues"}  # fmt: skip
    return {name: base + page for name, page in pages.items()} if home else {}


class CustomMetadataHook(MetadataHookInterface):  # type: ignore[misc]
    """Called by hatchling, with the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        home, version = self.config.get("home", ""), metadata["version"]
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": outside(text, home, version)}
        metadata["urls"] = urls(home, version)
