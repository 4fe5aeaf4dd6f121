"""What the site of the documentation adds to docs/: the README as its first page, and no link that leads out of it.

Links to files of the repository that are no page (code, examples) become their words.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, *, config: Any) -> Any:
    """The README is the first page."""
    from mkdocs.structure.files import File

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=first_page(text)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Links of a page, as the site has them."""
    return inside(markdown, page.file.src_uri)


def first_page(text: str) -> str:
    """The README with links as a page in docs/ would write them."""
    return LINK.sub(lambda found: _moved(found, _from_readme(found[3])), text)


def inside(text: str, page: str) -> str:
    """A page of docs/ whose links out of docs/ are words."""
    above = posixpath.dirname(page)

    def link(found: re.Match[str]) -> str:
        there = posixpath.normpath(posixpath.join(above, found[3]))
        known = there == "index.md" or (not there.startswith("..") and (ROOT / "docs" / there).is_file())
        return found[0] if known else found[2]

    return LINK.sub(link, text)


def _from_readme(target: str) -> str:
    return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def _moved(found: re.Match[str], target: str) -> str:
    return f"{found[1]}[{found[2]}]({target}{found[4] or ''})"
