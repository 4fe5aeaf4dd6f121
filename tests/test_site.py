"""The site of the documentation: it is built from docs/ and the README, and every link in it leads to a page."""

from __future__ import annotations

import html.parser
import importlib.util
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from conftest import skip_or_fail

ROOT = Path(__file__).parents[1]
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mkdocs_hooks", ROOT / "mkdocs_hooks.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(entries: list[object]) -> list[str]:
    """All pages of the menu."""
    found: list[str] = []
    for entry in entries:
        parts = next(iter(entry.values())) if isinstance(entry, dict) else [entry]
        found += [parts] if isinstance(parts, str) else [str(part) for part in parts]
    return found


def test_every_page_is_in_the_menu_once():
    menu = named(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(menu) == sorted({*PAGES, "index.md"})


@pytest.mark.parametrize("page", sorted({*PAGES, "index.md"}))
def test_no_link_leads_out_of_the_site(page):
    made = hooks()
    readme = made.first_page((ROOT / "README.md").read_text(encoding="utf-8"))
    text = readme if page == "index.md" else (ROOT / "docs" / page).read_text(encoding="utf-8")
    for _, _, target, _ in made.LINK.findall(made.inside(text, page)):
        there = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        assert (ROOT / "docs" / there).is_file() or there == "index.md", target
    if page == "index.md":
        assert len(made.LINK.findall(made.inside(text, page))) > 20, "links of the README stay links"


class Links(html.parser.HTMLParser):
    """What a page links to, and what in it can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {given[key] or "" for key in ("id", "name") if key in given}
        self.targets += [given[key] or "" for key in ("href", "src") if key in given]


@pytest.mark.slow
def test_the_built_site_links_to_itself_alone(tmp_path):
    if importlib.util.find_spec("material") is None:
        skip_or_fail("mkdocs-material is not installed (extra docs)")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(ROOT / "mkdocs.yml"), "-d", str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True)
    assert child.returncode == 0, child.stdout[-3000:] + child.stderr[-3000:]
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in tmp_path.rglob("*.html")}
    assert len(pages) > len(PAGES)
    for path, links in pages.items():
        if path.name == "404.html":  # whose links begin at the place the site is put
            continue
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                assert not re.search(r"\.(js|css|woff2?)$", parts.path), f"{path.name} fetches {target}"
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            assert there.is_file(), f"{path.relative_to(tmp_path)}: {target}"
            if parts.fragment and there in pages:
                assert unquote(parts.fragment) in pages[there].names, f"{path.relative_to(tmp_path)}: {target}"
