"""What cannot be scored honestly is refused in one line, or said in a note."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from families import tiny, tiny_tokenizer
from slimformer.errors import (
    ColumnNotFound,
    DataEmpty,
    DataUnreadable,
    PlanDoesNotFit,
    SequenceTooLong,
    TooFewExamples,
)
from slimformer.evaluate import glue
from slimformer.evaluate.bench import Workload, bench
from slimformer.evaluate.examples import files_read, squad_questions, training_pairs
from slimformer.evaluate.intervals import paired_scores
from slimformer.evaluate.scores import mean_score, pearson
from slimformer.evaluate.task import Options, evaluate_task
from slimformer.models.load import Loaded
from terminal import texts

FAST = {"resamples": 40, "seq_len": 32}
MSR = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def loaded(model, name: str = "dense") -> Loaded:
    return Loaded(name, model, tiny_tokenizer())


def written(path: Path, header: str, rows: list[list[object]]) -> Path:
    path.write_text("\n".join([header, *("\t".join(map(str, row)) for row in rows)]) + "\n")
    return path


def pairs(n: int, seed: int) -> list[list[object]]:
    """Rows in the layout of Microsoft, which GLUE kept; every other pair says the same twice."""
    one, other = texts(n, seed), texts(n, seed + 1)
    return [[i % 2, i, i, one[i], one[i] if i % 2 else other[i]] for i in range(n)]


def rows_file(folder: Path, *rows: object) -> str:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return str(file)


def score(task: str, model, data: object, **how) -> dict:
    return evaluate_task(task, loaded(model), loaded(model), Options(str(data), **{**FAST, **how})).to_dict()


def test_one_example_has_no_interval(tmp_path):
    file = written(tmp_path / "dev.tsv", "sentence\tlabel", [[text, i % 2] for i, text in enumerate(texts(6))])
    with pytest.raises(TooFewExamples, match="1 of the examples"):
        score("sst2", tiny("bert", "classify", num_labels=2), file, limit=1)
    golds = {"text": ["w5"]}
    one = rows_file(tmp_path, {"id": "a", "question": "w5", "context": "w5 w6 w7", "answers": golds})
    for task in ("squad", "squad_v2"):
        with pytest.raises(TooFewExamples, match="1 of the questions"):
            score(task, tiny("bert", "answer"), one)
    (tmp_path / "text.txt").write_text("\n".join(texts(9)))
    with pytest.raises(TooFewExamples, match="1 of the windows of 32"):
        score("ptb", tiny("llama"), tmp_path / "text.txt", limit=1)


@pytest.mark.parametrize(("row", "error", "why"), [
    ({"answers": ["Bob"]}, DataUnreadable, r'\["Bob"\]'),
    ({"answers": [{"text": None}]}, DataUnreadable, "give a list"),
    ({"answers": {"text": "Bob"}}, DataUnreadable, "list of them"),
    ({"answers": None}, DataUnreadable, "null"),
    ({"question": None, "answers": []}, DataUnreadable, "question in row 2 .* is null"),
    ({"context": "", "answers": []}, DataUnreadable, "context in row 2"),
    ({}, ColumnNotFound, "no answers"),
])  # fmt: skip
def test_rows_that_are_no_questions_are_refused(tmp_path, row, error, why):
    good = {"id": "a", "question": "w5", "context": "w5 w6", "answers": {"text": ["w5"]}}
    odd = {"id": "b", "question": "w5", "context": "w5 w6", **row}
    with pytest.raises(error, match=why):
        squad_questions("squad_v2", rows_file(tmp_path, good, odd))


def test_without_golds_is_not_the_same_as_without_an_answer(tmp_path):
    def nested(*answers: dict) -> str:
        qas = [{"id": str(i), "question": "w5", **each} for i, each in enumerate(answers)]
        file = tmp_path / "dev.json"
        file.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "w5 w6", "qas": qas}]}]}))
        return str(file)

    gold, silent = {"answers": [{"text": "w5", "answer_start": 0}]}, {"answers": []}
    assert [q.answers for q in squad_questions("squad_v2", nested(gold, silent))] == [("w5",), ()]
    with pytest.raises(DataUnreadable, match=r"1 of 2 questions .* row 2"):
        squad_questions("squad", nested(gold, silent))
    for task in ("squad", "squad_v2"):
        with pytest.raises(ColumnNotFound, match="no answers"):
            squad_questions(task, nested(gold, {}))
        with pytest.raises(DataUnreadable, match="Bob"):
            squad_questions(task, nested(gold, {"answers": ["Bob"]}))


def test_a_classifier_of_another_task_is_refused_and_one_without_names_noted(tmp_path):
    model = tiny("bert", "classify", num_labels=2)
    model.config.id2label = {0: "negative", 1: "positive"}
    with pytest.raises(PlanDoesNotFit, match="negative, positive apart and the task entailment, not_entailment"):
        glue.class_order(glue.GLUE["qnli"], model)
    model.config.id2label = {0: "Not-Entailment", 1: "entailment"}
    assert glue.class_order(glue.GLUE["qnli"], model) == [1, 0]
    file = written(tmp_path / "dev.tsv", "sentence\tlabel", [[text, i % 2] for i, text in enumerate(texts(6))])
    with pytest.raises(PlanDoesNotFit, match="not_entailment"):
        score("sst2", model, file)
    model.config.id2label = {0: "LABEL_0", 1: "LABEL_1"}
    assert any("taken to be negative, positive" in note for note in score("sst2", model, file)["notes"])


def test_in_a_folder_of_glue_its_own_parts_go_together(tmp_path):
    for name, seed in (("dev.tsv", 1), ("train.tsv", 3), ("msr_paraphrase_test.txt", 5)):
        written(tmp_path / name, MSR, pairs(12, seed))
    written(tmp_path / "msr_paraphrase_train.txt", MSR, [*pairs(12, 1), *pairs(12, 3)])
    model = tiny("bert", "bare")
    found = score("mrpc", model, tmp_path)
    assert found["files"] == [str(tmp_path / "dev.tsv")]
    assert found["settings"]["threshold_from"] == "train.tsv"
    (tmp_path / "train.tsv").unlink()
    scored = squashed(read(tmp_path / "dev.tsv"))
    left, part = training_pairs("mrpc", str(tmp_path), scored=read(tmp_path / "dev.tsv"))
    assert part == "msr_paraphrase_train.txt"
    assert len(left) == 12 and not squashed(left) & scored
    assert files_read("mrpc", str(tmp_path / "msr_paraphrase_test.txt"))[0].name == "msr_paraphrase_test.txt"


def read(file: Path) -> list:
    from slimformer.calibrate.documents import read_documents

    return read_documents(file)


def squashed(documents: list) -> set:
    return {(document.text, document.pair) for document in documents}


def test_no_threshold_is_chosen_on_what_is_scored(tmp_path):
    train = written(tmp_path / "train.tsv", MSR, pairs(12, 1))
    with pytest.raises(DataUnreadable, match="is what is scored"):
        score("mrpc", tiny("bert", "bare"), train)
    written(tmp_path / "dev.tsv", MSR, pairs(12, 1))
    with pytest.raises(DataEmpty, match="every pair"):
        score("mrpc", tiny("bert", "bare"), tmp_path)


@pytest.mark.parametrize(("dense", "ratio"), [
    (np.zeros(40), False), (np.eye(40)[0], False), (np.repeat([0.0, 1.0], 20), True),
])  # fmt: skip
def test_nothing_is_recovered_of_nothing(dense, ratio):
    found = paired_scores(mean_score, dense, np.repeat([1.0, 0.0], 20), np.ones(40), resamples=400)
    assert (found.ratio is not None) == ratio
    if found.ratio:
        assert found.ratio.low <= found.ratio.value <= found.ratio.high
        assert np.isfinite([found.ratio.low, found.ratio.high]).all()
    against = paired_scores(pearson, -np.arange(9.0), np.arange(9.0), np.arange(9.0), resamples=50)
    assert against.ratio is None


def test_no_recovery_has_a_reason_and_no_nan(tmp_path):
    rows = [{"id": str(i), "question": "w5", "context": text, "answers": {"text": ["w99 w98"]}}
            for i, text in enumerate(texts(6))]  # fmt: skip
    found = score("squad", tiny("bert", "answer"), rows_file(tmp_path, *rows), stride=4)
    assert [metric["recovery"] for metric in found["metrics"]] == [None, None]
    assert "no recovery of exact match: the interval of the dense score reaches 0" in found["notes"][0]
    json.dumps(found, allow_nan=False)


def test_a_stride_is_taken_or_refused_and_only_the_default_gives_way(tmp_path):
    rows = [{"id": str(i), "question": "w5", "context": text, "answers": {"text": [text.split()[2]]}}
            for i, text in enumerate(texts(4))]  # fmt: skip
    data, model = rows_file(tmp_path, *rows), tiny("bert", "answer")
    assert score("squad", model, data)["settings"]["stride"] == 10
    assert score("squad", model, data, stride=20)["settings"]["stride"] == 20
    with pytest.raises(SequenceTooLong, match="stride of 31"):
        score("squad", model, data, stride=31)


def test_words_that_were_taken_out_are_noted(tmp_path):
    (tmp_path / "wiki.test.tokens").write_text("\n".join(text.replace("w7 ", "<unk> ") for text in texts(9)))
    (tmp_path / "raw.txt").write_text("\n".join(texts(9)))
    noted = [
        any("the papers use the raw text" in note for note in score("wikitext2", tiny("llama"), data)["notes"])
        for data in (tmp_path, tmp_path / "raw.txt")
    ]
    assert noted == [True, False]


def test_more_new_tokens_than_positions_are_refused():
    model = tiny("gpt2")
    for new in (64, 1000):
        with pytest.raises(SequenceTooLong, match="new_tokens="):
            bench(model, model, Workload(new_tokens=new))
