"""Perplexity texts are cut as the papers cut them: against the same steps written out on a small text."""

from __future__ import annotations

import gzip
import json
import random

import pytest
import torch

from families import tiny_tokenizer
from slimformer.errors import ColumnNotFound, DataNotFound, TooFewTokens
from slimformer.evaluate.conventions import ROWS, WINDOWS, token_windows
from slimformer.evaluate.examples import text_rows
from terminal import texts


def ids(text: str) -> list[int]:
    return tiny_tokenizer()(text, verbose=False)["input_ids"]


@pytest.mark.parametrize(("task", "joint"), [("wikitext2", "\n\n"), ("ptb", "\n\n"), ("ptb-new", " ")])
def test_a_stream_is_joined_and_cut_side_by_side(task, joint):
    rows = texts(9)
    stream = ids(joint.join(rows))
    found = token_windows(task, rows, tiny_tokenizer(), 16)
    assert found.shape == (len(stream) // 16, 16)
    assert found.flatten().tolist() == stream[: found.numel()]


def test_new_c4_takes_the_first_rows_and_at_most_256_windows():
    rows = [f"w{5 + i % 50} w6" for i in range(ROWS + 100)]
    long = token_windows("c4-new", rows, tiny_tokenizer(), 64)
    assert long.flatten().tolist() == ids(" ".join(rows[:ROWS]))[: long.numel()]
    assert token_windows("c4-new", rows, tiny_tokenizer(), 4).shape == (WINDOWS, 4)


def test_c4_draws_as_the_papers_do():
    rows, seq_len = [*texts(12), "w5 w6"], 30
    random.seed(0)
    wanted = []
    while len(wanted) < WINDOWS:
        row = ids(rows[random.randint(0, len(rows) - 1)])
        if len(row) > seq_len:
            i = random.randint(0, len(row) - seq_len - 1)
            wanted.append(row[i : i + seq_len])
        elif len(row) == seq_len:
            wanted.append(row)
    assert token_windows("c4", rows, tiny_tokenizer(), seq_len).tolist() == wanted


@pytest.mark.parametrize("task", ["wikitext2", "c4", "c4-new"])
def test_a_text_shorter_than_a_window_is_refused(task):
    with pytest.raises(TooFewTokens, match="seq_len="):
        token_windows(task, ["w5 w6", "w7"], tiny_tokenizer(), 64)


def test_rows_are_those_of_the_published_data_sets(tmp_path):
    (tmp_path / "wiki.test.raw").write_text(" \n = T = \n \n Text . \n")
    assert text_rows("wikitext2", str(tmp_path)) == ["", " = T = \n", "", " Text . \n"]
    (tmp_path / "ptb.test.txt").write_text(" no it was n't black monday \n\n but while \n")
    assert text_rows("ptb-new", str(tmp_path)) == ["no it was n't black monday", "but while"]
    with gzip.open(tmp_path / "c4-validation.00000-of-00008.json.gz", "wt") as file:
        file.writelines(json.dumps({"text": text, "url": "u"}) + "\n" for text in ("one\ntwo", "three"))
    assert text_rows("c4", str(tmp_path)) == text_rows("c4-new", str(tmp_path)) == ["one\ntwo", "three"]


def test_what_is_not_there_is_said_in_one_line(tmp_path):
    with pytest.raises(DataNotFound, match=r"ptb\.valid\.txt"):
        text_rows("ptb", str(tmp_path))
    with pytest.raises(DataNotFound, match="no file or folder"):
        text_rows("ptb", str(tmp_path / "none"))
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(ColumnNotFound, match="body"):
        text_rows("c4", str(tmp_path))


def test_windows_are_integers_of_one_length():
    found = token_windows("ptb", texts(5), tiny_tokenizer(), 8)
    assert found.dtype == torch.long
    assert found.shape[1] == 8
