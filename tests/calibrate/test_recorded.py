"""A result says on which data it was fitted and measured, and is measured there again unless others are named."""

import json
import random
from pathlib import Path

import pytest
import torch

import slimformer
from families import tiny, tiny_tokenizer
from slimformer.calibrate.documents import UNNAMED, Document, read_documents
from slimformer.calibrate.gather import Reading, gather
from slimformer.calibrate.recorded import read_again
from slimformer.calibrate.splits import split_documents
from slimformer.errors import DataNotFound
from slimformer.evaluate import assessment as assess
from slimformer.evaluate.data_notes import unnamed_data
from slimformer.models import describe
from slimformer.models.load import load_model
from slimformer.report.names import measured_line
from slimformer.report.page import html_page
from terminal import done

WORDS = random.Random(0)
LINES = [" ".join(f"w{WORDS.randrange(60)}" for _ in range(6 + i % 9)) for i in range(400)]  # no two alike


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.txt"
    file.write_text("\n".join(LINES))
    return file


def cut(model, data, **how):
    how = {"macs": 0.6, "tokens": 4000, "seq_len": 16, "timing": False, "refine": False, **how}
    return slimformer.compress(model, data, processor=tiny_tokenizer(), **how)


@torch.no_grad()
def by_hand(dense, small, texts):
    """Mean KL and agreement, one text at a time."""
    tokenizer, kl, agreed = tiny_tokenizer(), 0.0, 0
    for text in texts:
        inputs = tokenizer([text], return_tensors="pt", truncation=True, max_length=16)
        p, q = (model(**inputs).logits.double().log_softmax(-1) for model in (dense.eval(), small.eval()))
        kl += float((p.exp() * (p - q)).sum()) / len(texts)
        agreed += int(p.argmax() == q.argmax())
    return kl, agreed / len(texts)


def test_one_line_is_one_example_of_a_classifier(lines):
    dense = tiny("bert", "classify", num_labels=50)
    result = cut(dense, str(lines))
    held_out = [d.text for d in split_documents(map(Document, LINES), seed=0)["report"]]
    kl, agreement = by_hand(dense, result.model, held_out)
    metrics = {metric["name"]: metric for metric in result.report.metrics}
    assert metrics["kl"]["small"] == pytest.approx(kl, rel=1e-3)
    assert metrics["agreement"]["small"] == pytest.approx(agreement)
    for metric in metrics.values():
        change = metric["small"] - metric["dense"]
        assert metric["documents"] == len(held_out) and metric["low"] <= change <= metric["high"]
    said = measured_line(result.report.data, result.report.metrics)
    assert f"of {len(held_out)} examples" in said and "one line of lines.txt is one example" in said
    assert any(f"measured on {len(held_out)} examples, which is few" in note for note in result.report.warnings)


WRAPPED = "\n".join([*["word " * 15 + "end"] * 6, "end."])


@pytest.mark.parametrize(
    ("text", "rows", "texts"),
    [
        ("a b\nc d\ne f\n", True, ["a b", "c d", "e f"]),
        ("a b\nc d\ne f\n", False, ["a b\nc d\ne f"]),
        ("a\nb\n\nc\nd\n", True, ["a\nb", "c\nd"]),
        ("a\n<|endoftext|>\nb\nc\n", True, ["a", "b\nc"]),
        ("= A =\n\na\n\nb\n\n= B =\n\nc\n", True, ["= A =\n\na\n\nb", "= B =\n\nc"]),
        ("\n".join(["x"] * 5 + [""] + ["y"] * 5), True, ["x"] * 5 + ["y"] * 5),
        ("\n".join((["x"] * 15 + [""]) * 4), True, ["x"] * 60),
        ("\n".join(["x"] * 9 + ["<|endoftext|>"]), True, ["x"] * 9),
        ("= A =\n\n" + "\n".join(["x"] * 9), True, ["= A =", *["x"] * 9]),
        (f"{WRAPPED}\n\n{WRAPPED}\n\n{WRAPPED}", True, [WRAPPED] * 3),
        ("\n".join(["x"] * 200 + ["<|endoftext|>"] + ["y"] * 200), True, ["x"] * 200 + ["y"] * 200),
        ("\n".join(["x" * 60] * 200 + [""] + ["y" * 60] * 200), True, ["x" * 60] * 200 + ["y" * 60] * 200),
        (
            "\n".join(["", "= A =", "", *"xxxxxxxxx", "", "= B =", "", *"xxxxxxxxx"]),
            True,
            ["= A =", *["x"] * 9, "= B =", *["x"] * 9],
        ),
        ("a\n\nb\n<|endoftext|>\n", False, ["a", "b"]),
        ("<|endoftext|>\na\n\nb\n<|endoftext|>\nc", False, ["a\n\nb", "c"]),
    ],
    ids=[
        "lines",
        "running text",
        "paragraphs",
        "markers",
        "articles",
        "a stray blank line",
        "blank lines in a list",
        "a last marker",
        "one title",
        "wrapped paragraphs",
        "a stray marker in a list",
        "lines of one width",
        "two titles in a list",
        "a last marker of running text",
        "a first marker",
    ],
)
def test_what_a_text_file_holds(text, rows, texts, tmp_path):
    file = tmp_path / "x.txt"
    file.write_text(text)
    notes: list[str] = []
    assert [d.text for d in read_documents(file, rows=rows, say=notes.append)] == texts
    assert len(notes) == 1 and "x.txt" in notes[0]


def test_masked_models_read_running_text(lines):
    for head, unit in (("masked", "document"), ("bare", "example")):
        model = tiny("bert", head)
        data = gather(str(lines), model, tiny_tokenizer(), describe(model), Reading(seq_len=16, tokens=4000))
        assert data.unit == unit


# --- data that were recorded --------------------------------------------------------------------------------


def test_a_result_is_measured_again_on_what_was_held_out_of_its_own_data(lines, tmp_path, monkeypatch):
    """From another folder, without a name of data; and the place is in no page, card or pushed report."""
    monkeypatch.chdir(tmp_path)
    result = cut(tiny("llama"), "lines.txt")
    result.save(tmp_path / "small")
    dense = tiny("llama")
    dense.save_pretrained(tmp_path / "dense")
    tiny_tokenizer().save_pretrained(tmp_path / "dense")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    small, loaded = load_model("../small"), load_model("../dense")
    data = assess.data_of(small, loaded)
    report = assess.evaluate_pair(loaded, small, data, timing=False)
    first = {metric["name"]: metric["small"] for metric in result.report.metrics}
    assert {metric["name"]: metric["small"] for metric in report.metrics} == pytest.approx(first, rel=1e-4)
    other = gather(
        "../lines.txt", loaded.model, loaded.processor, describe(loaded.model), Reading(seq_len=16, samples=6)
    )
    notes = assess.evaluate_pair(loaded, small, other, timing=False).warnings
    assert any(
        "was calibrated on documents of" in note for note in notes
    )  # though it was called lines.txt in another folder
    page = html_page(json.loads(Path("../small/report.json").read_text()))
    assert str(tmp_path) not in page and str(tmp_path) not in Path("../small/README.md").read_text()


def test_data_that_cannot_be_read_again_are_refused_in_one_line(lines):
    model = tiny("llama")
    again = {"model": model, "processor": tiny_tokenizer(), "owner": "small"}
    data = gather(str(lines), model, tiny_tokenizer(), describe(model), Reading(seq_len=16, tokens=4000))
    known = assess.data_provenance(describe(model), data)
    same = read_again(known, **again)
    assert torch.equal(same.splits["report"][0].inputs["input_ids"], data.splits["report"][0].inputs["input_ids"])
    for spoilt, said in (
        ({}, "does not say what it was calibrated on"),
        ({**known, "reading": {**known["reading"], "sources": None}}, "does not say where that is"),
        ({**known, "hash": "0"}, "has changed since"),
        ({**known, "reading": {**known["reading"], "sources": [f"{lines}.gone"]}}, "is not there any longer"),
        ({**known, "reading": {**known["reading"], "tokens": "many"}}, "cannot be read now"),
    ):
        with pytest.raises(DataNotFound, match=said) as caught:
            read_again(spoilt, **again)
        assert "data=…" in str(caught.value) and "\n" not in str(caught.value)


def test_data_that_nobody_named_are_said_to_be_so():
    model = tiny("llama")
    data = gather(UNNAMED, model, tiny_tokenizer(), describe(model), Reading(seq_len=16, tokens=4000))
    named = gather("builtin", model, tiny_tokenizer(), describe(model), Reading(seq_len=16, tokens=4000))
    assert "no data were named" in unnamed_data(data.reading, data.name)[0]
    assert unnamed_data(named.reading, named.name) == []
    assert data.hash == named.hash


def test_a_list_of_files_is_recorded_as_its_files(lines, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(LINES[:200]))
    model = tiny("llama")
    data = gather([lines, str(other)], model, tiny_tokenizer(), describe(model), Reading(tokens=400, seq_len=16))
    assert data.name == f"{lines},{other}" and data.reading["sources"] == [str(lines), str(other)]


def test_weights_of_sources_are_read_again(lines, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(LINES[:200]))
    model, asked = tiny("llama"), Reading(tokens=400, seq_len=16)
    data = gather(f"{lines}*3,{other}", model, tiny_tokenizer(), describe(model), asked)
    even = gather(f"{lines},{other}", model, tiny_tokenizer(), describe(model), asked)
    assert data.reading["sources"] == [f"{lines}*3", str(other)] and data.hash != even.hash
    known = {"name": data.name, "hash": data.hash, "seed": 0, "reading": data.reading}
    assert read_again(known, model, tiny_tokenizer(), owner="it").hash == data.hash
    other.unlink()
    with pytest.raises(DataNotFound, match=r"other.txt is not there any longer"):
        read_again(known, model, tiny_tokenizer(), owner="it")


# --- data that may have been fitted are not called held out ---------------------------------------------------


@pytest.fixture
def fitted(lines, tmp_path):
    """A decoder, its statistics on lines and broad text, and a cut made from them."""
    dense = tmp_path / "dense"
    tiny("llama").save_pretrained(dense)
    tiny_tokenizer().save_pretrained(dense)
    done("calibrate", dense, "--data", lines, "--tokens", 600, "--out", tmp_path / "stats", "-q")
    done("cut", tmp_path / "stats", "--macs", 0.8, "--out", tmp_path / "small", "--no-verify", "-q")
    return tmp_path


@pytest.mark.parametrize("data", ["builtin", "builtin:code", "lines.txt"])
def test_text_that_was_fitted_perhaps_is_not_called_held_out(data, fitted):
    """Broad text is fitted beside a user's own, and a file that has grown still holds what was fitted."""
    with (fitted / "lines.txt").open("a") as file:
        file.write("\n\nw7 w8 w9 w10")
    source = fitted / data if data.endswith(".txt") else data
    asked = ("--data", source, "--tokens", 600)
    for command in (
        ("eval", fitted / "small", "--against", fitted / "dense", "--no-timing"),
        ("sweep", fitted / "stats"),
    ):
        more = ("--macs", 0.8) if command[0] == "sweep" else ()
        said = done(*command, *more, *asked)
        assert "held-out" not in said.out and "measured on" in said.out
        assert "perhaps on some of these" in " ".join((said.out + said.err).split())


def test_a_sweep_says_when_it_rests_on_few_texts(fitted):
    said = done("sweep", fitted / "stats", "--macs", 0.8)
    assert "held-out tokens" in said.out and "which is few" in said.err


def test_a_sweep_counts_images(shelf, tmp_path):
    done("calibrate", shelf / "vit", "--data", shelf / "images", "--tokens", 600, "--out", tmp_path / "stats", "-q")
    assert "held-out images" in done("sweep", tmp_path / "stats", "--macs", 0.8).out
