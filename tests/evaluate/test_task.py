"""Both models on a task, from files in their usual layouts to scores."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from families import tiny, tiny_compressed, tiny_tokenizer
from slimformer.calibrate.documents import Document
from slimformer.errors import DataNotFound, DataUnreadable, PlanDoesNotFit, SequenceTooLong, UnknownTask
from slimformer.evaluate import glue
from slimformer.evaluate.examples import glue_parts, squad_questions
from slimformer.evaluate.perplexity import perplexity
from slimformer.evaluate.task import TASKS, Options, evaluate_task
from slimformer.models.load import Loaded
from terminal import texts

FAST = {"resamples": 50, "seq_len": 32}


def loaded(model, name: str = "dense") -> Loaded:
    return Loaded(name, model, tiny_tokenizer())


def table(path: Path, header: str, rows: list[list[object]], bom: bool = False) -> Path:
    lines = [header, *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig" if bom else "utf-8")
    return path


def sentences(folder: Path, n: int = 24) -> Path:
    return table(folder / "dev.tsv", "sentence\tlabel", [[text, i % 2] for i, text in enumerate(texts(n))])


def pairs(folder: Path, part: str, n: int = 24, seed: int = 1) -> Path:
    """In the layout of the paraphrase corpus of Microsoft; every other pair says the same twice."""
    one, other = texts(n, seed), texts(n, seed + 1)
    rows = [[i % 2, i, i, one[i], one[i] if i % 2 else other[i]] for i in range(n)]
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    return table(folder / f"msr_paraphrase_{part}.txt", header, rows, bom=True)


def squad(folder: Path, name: str, n: int = 6, unanswerable: bool = True) -> Path:
    qas = [
        {
            "id": str(i),
            "question": f"w{5 + i}",
            "answers": [{"text": text.split()[3], "answer_start": 0}] if i % 2 or not unanswerable else [],
        }
        for i, text in enumerate(texts(n))
    ]
    paragraphs = [{"context": text, "qas": [qa]} for text, qa in zip(texts(n), qas, strict=True)]
    path = folder / name
    path.write_text(json.dumps({"version": "v", "data": [{"title": "T", "paragraphs": paragraphs}]}))
    return path


def test_a_classifier_is_scored_by_its_head(tmp_path):
    sentences(tmp_path)
    model = tiny("bert", "classify", num_labels=2)
    found = evaluate_task(
        "sst2", loaded(model), loaded(tiny_compressed(model), "small"), Options(str(tmp_path), **FAST)
    )
    (metric,) = found.metrics
    right = []
    for i, text in enumerate(texts(24)):
        inputs = tiny_tokenizer()(text, truncation=True, max_length=32, return_tensors="pt")
        right.append(int(model(**inputs).logits.argmax()) == i % 2)
    assert metric["dense"] == pytest.approx(100 * np.mean(right))
    assert metric["recovery"] == pytest.approx(100 * metric["small"] / metric["dense"])
    assert metric["difference"] == pytest.approx(metric["small"] - metric["dense"])
    assert (found.examples, found.unit, found.small) == (24, "examples", "small")


def test_the_dense_model_recovers_all_of_itself(tmp_path):
    squad(tmp_path, "dev-v1.1.json", unanswerable=False)
    model = tiny("bert", "answer")
    found = evaluate_task("squad", loaded(model), loaded(model), Options(str(tmp_path), stride=4, **FAST))
    assert [metric["name"] for metric in found.metrics] == ["exact match", "F1"]
    assert all(metric["difference"] == 0 and metric["p"] == 1 for metric in found.metrics)


def test_silence_is_decided_by_the_threshold(tmp_path):
    squad(tmp_path, "dev-v2.0.json")
    model = tiny("bert", "answer")
    small = tiny_compressed(model)
    how = Options(str(tmp_path), stride=4, **FAST)

    def scores(threshold: float) -> dict[str, float]:
        found = evaluate_task("squad_v2", loaded(model), loaded(small), replace(how, threshold=threshold))
        return {metric["name"]: metric["dense"] for metric in found.metrics}

    silent, talking = scores(-1e9), scores(1e9)
    assert silent["exact match (unanswerable)"] == 100
    assert silent["F1 (answerable)"] == talking["exact match (unanswerable)"] == 0
    for name in ("exact match", "F1"):
        assert silent[name] == pytest.approx(50)
        assert silent[f"{name} at the best threshold"] == talking[f"{name} at the best threshold"]
        assert silent[f"{name} at the best threshold"] >= max(silent[name], talking[name])


def test_an_encoder_is_scored_by_cosines(tmp_path):
    pairs(tmp_path, "train", seed=5)
    pairs(tmp_path, "test")
    model = tiny("bert", "bare")
    found = evaluate_task("mrpc", loaded(model), loaded(model), Options(str(tmp_path), **FAST))
    assert {metric["name"]: metric["dense"] for metric in found.metrics} == {"accuracy": 100, "F1": 100}
    assert found.settings["threshold"] < 1
    (tmp_path / "msr_paraphrase_train.txt").unlink()
    with pytest.raises(DataNotFound, match="threshold"):
        evaluate_task("mrpc", loaded(model), loaded(model), Options(str(tmp_path), **FAST))


def test_similarities_are_correlated_with_scores(tmp_path):
    rows = [[i, one, one if i % 2 else other, 5.0 * (i % 2)] for i, (one, other) in
            enumerate(zip(texts(20, 1), texts(20, 2), strict=True))]  # fmt: skip
    table(tmp_path / "dev.tsv", "index\tsentence1\tsentence2\tscore", rows)
    model = tiny("bert", "bare")
    found = evaluate_task("stsb", loaded(model), loaded(tiny_compressed(model, 0.9)), Options(str(tmp_path), **FAST))
    pearson, spearman = found.metrics
    assert pearson["dense"] > 50
    assert spearman["dense"] == pytest.approx(
        100 * glue.spearman(np.array([0, 1.0] * 10), np.array([0, 1.0] * 10)), 0.2
    )


def test_sts_is_stsb_and_reads_embeddings_as_the_folder_pools_them(tmp_path):
    rows = [[one, other, 5.0 * (i % 2)] for i, (one, other) in enumerate(zip(texts(9, 1), texts(9, 2), strict=True))]
    table(tmp_path / "mine.tsv", "sentence1\tsentence2\tscore", rows)
    model, data = tiny("bert", "bare"), Options(str(tmp_path / "mine.tsv"), **FAST)
    one, other = (evaluate_task(name, loaded(model), loaded(model), data) for name in ("sts", "stsb"))
    assert one.metrics == other.metrics and "mean" in one.settings["predictions"]
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    parts = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(parts))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    first = replace(loaded(model), companions=folder)
    found = evaluate_task("sts", first, first, data)
    assert "first" in found.settings["predictions"] and found.metrics != one.metrics


def test_retrieval_finds_the_other_text_of_a_pair(tmp_path):
    rows = [[text, text] for text in texts(12, 1)]
    table(tmp_path / "pairs.tsv", "sentence1\tsentence2", rows)
    model = tiny("bert", "bare")
    found = evaluate_task("retrieval", loaded(model), loaded(model), Options(str(tmp_path), **FAST))
    assert {metric["name"]: metric["small"] for metric in found.metrics} == {"MRR": 100, "recall at 1": 100}
    assert found.unit == "queries" and found.examples == 12 and found.settings["texts"] == 12
    shifted = [[one, other] for (one, _), (other, _) in zip(rows, [*rows[1:], rows[0]], strict=True)]
    table(tmp_path / "pairs.tsv", "sentence1\tsentence2", shifted)
    worse = evaluate_task("retrieval", loaded(model), loaded(model), Options(str(tmp_path), **FAST))
    assert {metric["name"]: metric["small"] for metric in worse.metrics}["recall at 1"] == 0
    with pytest.raises(DataNotFound, match="no data set of its own"):
        evaluate_task("retrieval", loaded(model), loaded(model), Options(**FAST))
    (tmp_path / "lines.txt").write_text("one line\nanother line\n")
    with pytest.raises(DataUnreadable, match="needs pairs"):
        evaluate_task("retrieval", loaded(model), loaded(model), Options(str(tmp_path / "lines.txt"), **FAST))


def test_places_are_counted_from_one_and_ties_count_against():
    texts_, own = torch.eye(3), [0, 1, 2]
    queries = torch.tensor([[1.0, 0, 0], [0.9, 0.5, 0.1], [0.5, 0.5, 0.5]])
    assert glue.reciprocal_ranks(queries, texts_, own).tolist() == [1.0, 0.5, pytest.approx(1 / 3)]


def test_embeddings_do_not_see_padding():
    model = tiny("bert", "bare")
    documents = [Document(text) for text in texts(6)]
    alone = torch.cat([glue.embeddings(model, glue.rows_of([d], tiny_tokenizer(), seq_len=32, batch_size=1))
                       for d in documents])  # fmt: skip
    together = glue.embeddings(model, glue.rows_of(documents, tiny_tokenizer(), seq_len=32, batch_size=6))
    assert torch.allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("task", ["wikitext2", "ptb", "ptb-new", "c4", "c4-new"])
def test_perplexity_is_that_of_the_windows(task, tmp_path):
    lines = texts(40)
    (tmp_path / "text.txt").write_text("\n".join(lines))
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in lines))
    model = tiny("llama")
    file = tmp_path / ("text.jsonl" if task.startswith("c4") else "text.txt")
    found = evaluate_task(task, loaded(model), loaded(tiny_compressed(model)), Options(str(file), limit=8, **FAST))
    (metric,) = found.metrics
    assert metric["recovery"] == pytest.approx(100 * metric["dense"] / metric["small"])
    assert metric["recovery_low"] <= metric["recovery"] <= metric["recovery_high"]
    assert found.settings["tokens"] == 31 * found.examples
    if task == "ptb-new":
        stream = torch.tensor(tiny_tokenizer()(" ".join(lines), verbose=False)["input_ids"])[: 8 * 32].view(8, 32)
        parts = [perplexity(model, row[None], window=31).nll for row in stream]
        assert metric["dense"] == pytest.approx(np.exp(np.mean(parts)), rel=1e-5)


def test_names_of_classes_decide_their_order():
    model = tiny("bert", "classify", num_labels=3)
    model.config.id2label = {0: "CONTRADICTION", 1: "ENTAILMENT", 2: "NEUTRAL"}
    assert glue.class_order(glue.GLUE["mnli"], model) == [2, 0, 1]
    model.config.id2label = {i: f"LABEL_{i}" for i in range(3)}
    assert glue.class_order(glue.GLUE["mnli"], model) == [0, 1, 2]
    with pytest.raises(PlanDoesNotFit, match="3 classes"):
        glue.class_order(glue.GLUE["sst2"], model)


def test_mnli_has_two_parts_and_leaves_out_what_has_no_gold(tmp_path):
    header = "index\tsentence1\tsentence2\tlabel1\tgold_label"
    rows = [[i, f"w{5 + i}", "w9", "neutral", ["entailment", "neutral", "contradiction", "-"][i]] for i in range(4)]
    for part in ("matched", "mismatched"):
        table(tmp_path / f"dev_{part}.tsv", header, rows)
    parts = glue_parts("mnli", str(tmp_path))
    assert list(parts) == ["matched", "mismatched"]
    kind = glue.GLUE["mnli"]
    assert glue.golds_of(kind, glue.labelled(kind, parts["matched"])).tolist() == [0, 1, 2]
    with pytest.raises(DataUnreadable, match="1 of 4"):
        glue.golds_of(kind, parts["matched"])


def test_labels_that_are_kept_secret_are_refused():
    with pytest.raises(DataUnreadable, match="labelled part"):
        glue.golds_of(glue.GLUE["sst2"], [Document("w5", label=-1), Document("w6", label=1)])


def test_rows_of_the_hub_and_files_give_the_same_questions(tmp_path):
    nested = squad_questions("squad_v2", str(squad(tmp_path, "dev-v2.0.json")))
    rows = [{"id": q.id, "question": q.question, "context": q.context,
             "answers": {"text": list(q.answers), "answer_start": [0] * len(q.answers)}} for q in nested]  # fmt: skip
    flat = tmp_path / "rows.jsonl"
    flat.write_text("\n".join(map(json.dumps, rows)))
    assert squad_questions("squad_v2", str(flat)) == nested
    assert [q.answers for q in nested][:2] == [(), (texts(6)[1].split()[3],)]


def test_models_that_cannot_do_a_task_are_refused(tmp_path):
    sentences(tmp_path)
    bare, causal = loaded(tiny("bert", "bare")), loaded(tiny("llama"))
    how = Options(str(tmp_path), **FAST)
    for task, model, why in [
        ("sst2", bare, "no head"), ("sst2", causal, "does not classify"), ("squad", bare, "does not mark"),
        ("wikitext2", bare, "does not predict"),
    ]:  # fmt: skip
        with pytest.raises(PlanDoesNotFit, match=why):
            evaluate_task(task, model, model, how)
    with pytest.raises(UnknownTask, match=", ".join(TASKS)):
        evaluate_task("imdb", bare, bare, how)
    with pytest.raises(SequenceTooLong, match="64 positions"):
        evaluate_task("sst2", bare, bare, replace(how, seq_len=100))


def test_the_cut_between_like_and_unlike_is_the_best():
    values, golds = np.array([0.1, 0.4, 0.35, 0.8]), np.array([0.0, 0, 1, 1])
    cut = glue.best_cut(values, golds)
    scores = [np.mean((values > c) == golds) for c in np.linspace(-1, 1, 201)]
    assert np.mean((values > cut) == golds) == max(scores)
