"""`compress --vocab` from the shell: what it writes, and what it refuses."""

from __future__ import annotations

import errno
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from families import tiny
from terminal import done, refused
from tokenizers_by_kind import WORDS, word_piece

pytestmark = pytest.mark.usefixtures("trusting")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer that can lose tokens, and text."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokenizer = word_piece()
    tiny("bert", "bare", vocab_size=len(tokenizer)).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    words = WORDS.split()
    (folder / "text.txt").write_text("\n\n".join(" ".join(words[i % 30 :][: 5 + i % 4]) + f" {i}" for i in range(200)))
    return folder


def test_a_folder_is_made_measured_and_listed(place: Path, tmp_path: Path) -> None:
    text = ("--data", place / "text.txt", "--tokens", 1200)
    shown = done(
        "compress",
        place / "bert",
        "--recipe",
        "vocabulary",
        "--vocab",
        0.8,
        *text,
        "--no-timing",
        "--out",
        tmp_path / "out",
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    facts = report["vocabulary"]
    assert facts["keep"] < facts["of"] and facts["on"] == "text.txt"
    listed = json.loads((tmp_path / "out" / "slimformer.json").read_text())["files"]
    assert {"tokenizer.json", "tokenizer_config.json", "model.safetensors", "config.json"} <= set(listed)
    said = json.loads(done("eval", tmp_path / "out", "--against", place / "bert", "--no-timing", "--json").out)
    assert said["metrics"] == report["metrics"]
    assert "Vocabulary: " in " ".join(shown.out.split())
    done("bench", tmp_path / "out", "--against", place / "bert", "--repeats", 1, "--batch-sizes", 1)


@pytest.mark.parametrize("at", [1, 2], ids=["in passing", "in the result"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), Exception("(os error 28)")])
def test_a_disk_that_fills_up_under_a_tokenizer(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, error: Exception
) -> None:
    """The smaller one is written twice: to be read as everybody will read it, and beside the model. Rust says what
    went wrong in an exception of no kind."""
    save, calls = PreTrainedTokenizerFast.save_pretrained, []

    def failing(self: PreTrainedTokenizerFast, *given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == at:
            raise error
        return save(self, *given, **named)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", failing)
    text = ("--data", place / "text.txt", "--tokens", 1200, "--no-timing", "--set", "vocabulary.refit=false")
    command = ("compress", place / "bert", "--recipe", "vocabulary", "--vocab", 0.8, *text)
    line = refused(*command, "--out", tmp_path / "out")
    assert "No space left" in line or "the disk is full" in line or "os error 28" in line
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"] and not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--vocab", "many"], "--vocab 'many' is not understood"),
        (["--vocab", "0"], "--vocab '0' is not understood"),
        (["--vocab", "100.5"], "--vocab '100.5' is not understood"),
        (["--vocab", "100000"], "the vocabulary has 309 tokens; give fewer"),
        (["--vocab", "20"], "not every text could be written; give "),
        (["--vocab", "200", "--dry-run"], "leave --vocab out"),
        (["--vocab", "200", "--memory", "4GB", "--macs", "0.5"], "--vocab needs the whole model"),
        (["--vocab", "200", "--vocab-data", "nowhere.txt"], "nowhere.txt"),
        (["--set", "vocabulary.keep=200"], "give --vocab 16000 for so many"),
        (["--macs", "0.5"], "takes no --macs"),
    ],
)
def test_what_cannot_be_is_one_line(place: Path, tmp_path: Path, more: list[str], message: str) -> None:
    recipe = "balanced" if "--memory" in more else "vocabulary"
    out = ("--data", place / "text.txt", "--out", tmp_path / "out")
    assert message in refused("compress", place / "bert", "--recipe", recipe, *more, *out)
    assert not (tmp_path / "out").exists()
