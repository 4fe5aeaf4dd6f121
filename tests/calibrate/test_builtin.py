"""The text that comes with the package: whole, broad, selectable, and free of the texts kept for measuring."""

import hashlib
import json
import lzma
import re
from collections import Counter
from pathlib import Path

import pytest

from slimformer.calibrate import builtin
from slimformer.calibrate.builtin import KINDS, TEXT_KINDS, builtin_documents
from slimformer.calibrate.documents import Document, read_documents
from slimformer.errors import DataNotFound

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src/slimformer/calibrate/builtin"
HELD_OUT = ROOT.parent / "shared" / "data"
SUMMARY = json.loads((DATA / "sources.json").read_text("utf-8"))
FREE = re.compile(r"CC0-1\.0|CC-BY-SA-[34]\.0|MIT|BSD-3-Clause|Apache-2\.0|PSF-2\.0|Artistic-1\.0-Perl"
                  r"|LicenseRef-(?:public-domain|WordNet)")  # fmt: skip


KIND = {entry["source"]: entry["kind"] for entry in SUMMARY["sources"]}


def kinds_of(documents: list[Document]) -> set[str]:
    return {KIND[document.source] for document in documents}


def rows() -> list[dict[str, str]]:
    return [json.loads(line) for line in lzma.decompress((DATA / "texts.jsonl.xz").read_bytes()).decode().splitlines()]


def eight_grams(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[i : i + 8]) for i in range(len(words) - 7)}


def test_the_file_is_the_one_its_record_describes():
    raw = lzma.decompress((DATA / "texts.jsonl.xz").read_bytes())
    assert hashlib.sha256(raw).hexdigest() == SUMMARY["sha256"]
    characters: Counter[tuple[str, str]] = Counter()
    for row in rows():
        characters[row["kind"], row["source"]] += len(row["text"])
    assert characters == {(entry["kind"], entry["source"]): entry["characters"] for entry in SUMMARY["sources"]}
    assert {entry["kind"] for entry in SUMMARY["sources"]} == set(KINDS)


def test_every_licence_allows_passing_the_text_on_and_every_author_is_in_the_notice():
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for entry in SUMMARY["sources"]:
        assert FREE.fullmatch(entry["licence"]), entry
        assert entry["by"] in notice, entry


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_documents_of_natural_length_and_no_two_alike(kind):
    documents = builtin_documents([kind])
    assert len(documents) >= 100
    assert kinds_of(documents) == {kind}
    assert len({document.text for document in documents}) == len(documents)
    assert max(len(document.text) for document in documents) <= (300 if kind == "sentences" else 4_000)


def test_without_a_name_the_text_kinds_come_in_equal_shares():
    documents = read_documents("builtin")
    given = Counter[str]()
    for document in documents:
        given[KIND[document.source]] += len(document.text)
    assert set(given) == set(TEXT_KINDS)
    longest = max(len(document.text) for document in documents)
    assert max(given.values()) - min(given.values()) <= longest


def test_kinds_are_named_after_a_colon():
    assert kinds_of(read_documents("builtin:code")) == {"code"}
    assert kinds_of(read_documents("builtin:code+stories")) == {"code", "stories"}
    assert kinds_of(read_documents("builtin:code + stories")) == {"code", "stories"}
    assert kinds_of(read_documents("builtin:code,builtin:sentences")) == {"code", "sentences"}


@pytest.mark.parametrize("name", ["builtin:cod", "builtin:", "builtin:code+x"])
def test_an_unknown_kind_is_one_line_with_the_right_ones(name):
    with pytest.raises(DataNotFound, match=r"builtin:.*encyclopedia, .*sentences") as caught:
        read_documents(name)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.skipif(not HELD_OUT.exists(), reason="the texts kept for measuring are not here")
def test_no_text_kept_for_measuring_is_in_it():
    own = set[str]().union(*(eight_grams(document.text) for _, document in builtin._all_documents()))
    files = [file for file in HELD_OUT.rglob("*") if file.suffix in {".txt", ".tsv", ".json", ".jsonl"}]
    files = [file for file in files if "license" not in file.name.lower()]
    assert len(files) >= 10
    for file in files:
        shared = own & eight_grams(file.read_text("utf-8", errors="ignore"))
        assert not shared, f"{file.name}: {sorted(shared)[:3]}"


def test_the_documentation_lists_every_source():
    page = (ROOT / "docs/calibration-data.md").read_text("utf-8")
    for kind in KINDS:
        entries = [entry for entry in SUMMARY["sources"] if entry["kind"] == kind]
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{kind}` |"))
        for entry in entries:
            assert entry["package"] in line and entry["licence"].removeprefix("LicenseRef-") in line, entry
