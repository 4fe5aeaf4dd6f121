"""Files too large to read whole are read in evenly spaced pieces of whole lines, the same ones every time."""

import json
from itertools import pairwise

import pytest

from slimformer.calibrate import documents, excerpt
from slimformer.calibrate.documents import read_documents


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setattr(excerpt, "READ_WHOLE", 64_000)
    monkeypatch.setattr(excerpt, "PIECES", 16)


def test_whole_records_from_everywhere_and_no_more_than_the_limit(tmp_path, small_limit):
    file = tmp_path / "large.jsonl"
    file.write_text("".join(json.dumps({"text": f"{i} " + "wörter " * (i % 7)}) + "\n" for i in range(20_000)))
    told = []
    found = read_documents(file, say=told.append)
    numbers = [int(document.text.split()[0]) for document in found]
    assert numbers == sorted(set(numbers)), "nothing torn, nothing twice"
    assert numbers[0] == 0 and numbers[-1] > 19_000 and len(numbers) < 4_000
    assert max(b - a for a, b in pairwise(numbers)) < 2_000
    assert found == read_documents(file) and "large.jsonl is large" in told[0]


def test_stories_of_two_places_are_not_glued(tmp_path, small_limit):
    file = tmp_path / "large.txt"
    file.write_text("\n\n".join(f"Story {i}.\nIt is the {i}th of many, and {'very ' * 9}long." for i in range(5_000)))
    for document in read_documents(file):
        assert document.text.count("Story") <= 1


def test_a_header_stays_and_small_files_are_read_whole(tmp_path, small_limit):
    file = tmp_path / "large.tsv"
    file.write_text("text\tlabel\n" + "".join(f"row {i} of many\t{i % 2}\n" for i in range(10_000)))
    assert {document.label for document in read_documents(file, label="label")} == {0, 1}
    file.write_text("text\tlabel\n" + "".join(f"row {i}\t0\n" for i in range(100)))
    assert len(read_documents(file, label="label")) == 100
    assert documents.READ_WHOLE == 256 << 20
