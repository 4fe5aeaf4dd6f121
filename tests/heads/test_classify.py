"""From a model and labelled rows to a classifier: features, readings, stock checkpoints, fresh heads."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from families import MODEL_TYPES, attention_part, tiny, tiny_batches, tiny_image_processor, tiny_ragged, tiny_tokenizer
from slimformer.calibrate.documents import Document
from slimformer.calibrate.stream import stream_documents
from slimformer.errors import ColumnNotFound, DataEmpty, HeadDoesNotFit, RowsUnusable, UnknownRecipe
from slimformer.heads import classify
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.attach import attach, last_layer
from slimformer.heads.classifier_folder import save_classifier, save_sentence_classifier
from slimformer.heads.features import Features, Reading, feature_chunks, pool, pooled, readings_of
from slimformer.heads.parameters import HeadParameters
from slimformer.models import describe, family_of
from slimformer.models.load import Loaded
from slimformer.report.card import model_card


def texts(n=120, *, seed=0):
    """Rows whose first word tells the class, most of the time."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(n):
        label = int(rng.integers(3))
        words = [5 + 10 * label + int(rng.integers(8)), *rng.integers(5, 64, int(rng.integers(2, 10)))]
        rows.append(Document(" ".join(f"w{word}" for word in words), label=["no", "yes", "maybe"][label]))
    return rows


def opened(model_type: str, head: str = "bare") -> Loaded:
    model = tiny(model_type, head)
    image = family_of(model_type).image
    return Loaded(model_type, model, tiny_image_processor() if image else tiny_tokenizer())


def test_padding_is_not_pooled():
    H, mask = torch.randn(2, 5, 3), torch.tensor([[0, 1, 1, 1, 0], [1, 1, 1, 1, 1]]).bool()
    assert pool(H, mask, "mean")[0].allclose(H[0, 1:4].mean(0))
    assert pool(H, mask, "cls")[0].equal(H[0, 1])
    assert pool(H, mask, "last")[0].equal(H[0, 3])
    assert pool(H, mask, "last")[1].equal(H[1, 4])


def test_features_keep_the_order_of_the_documents_whatever_the_chunks(monkeypatch):
    loaded, rows = opened("bert"), texts(40)
    readings = readings_of(loaded.model, (), (1, 3))
    whole = next(feature_chunks(loaded.model, loaded.processor, rows, readings))
    monkeypatch.setattr("slimformer.heads.features.CHUNK", 7)
    parts = list(feature_chunks(loaded.model, loaded.processor, rows, readings))
    assert len(parts) == 6
    assert [label for part in parts for label in part.labels] == [row.label for row in rows]
    for reading in readings:
        torch.testing.assert_close(torch.cat([part.features[reading] for part in parts]), whole.features[reading])


def test_documents_are_drawn_a_chunk_at_a_time(monkeypatch):
    monkeypatch.setattr("slimformer.heads.features.CHUNK", 8)
    loaded, drawn = opened("bert"), []
    rows = (drawn.append(i) or row for i, row in enumerate(texts(40)))
    chunks = feature_chunks(loaded.model, loaded.processor, rows, readings_of(loaded.model))
    for n in (8, 16):
        next(chunks)
        assert len(drawn) == n


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("layer", [2, 3])
def test_the_stock_classifier_gives_the_scores_of_the_head(model_type, layer):
    model = tiny(model_type, "bare")
    reading = Reading("last" if family_of(model_type).causal else "cls", layer)
    batch = tiny_batches(model, 1, rows=60)[0]
    X = pooled(model, batch, [reading])[reading]
    head = AnalyticHead(shrinkage=0.1).fit(X, np.arange(60) % 3)
    classifier = attach(model, head, reading, pad=1)
    with torch.no_grad():
        logits = classifier(**batch.inputs).logits
    expected = head.predict_proba(X)
    assert describe(classifier).n_blocks == layer
    rough = attention_part(model_type).rotary  # no bias after RMSNorm: only nearly the same
    np.testing.assert_allclose(logits.softmax(1), expected, atol=0.2 if rough else 2e-3)
    assert classifier.config.id2label == {0: "0", 1: "1", 2: "2"}


def test_heads_that_no_stock_class_can_hold_are_refused():
    model = tiny("bert", "bare")
    X, y = torch.randn(30, 32), np.arange(30) % 2
    with pytest.raises(HeadDoesNotFit, match="pool='cls'"):
        attach(model, AnalyticHead().fit(X, y), Reading("mean", 3))
    with pytest.raises(HeadDoesNotFit, match="random features"):
        attach(model, AnalyticHead("random", random_features=9).fit(X, y), Reading("cls", 3))


def test_the_best_reading_is_chosen_by_leaving_out_and_scored_on_other_rows():
    loaded = opened("bert")
    found = classify.probe(loaded, iter(texts(200)), Features(layers=(1, 2, 3), seq_len=16))
    assert len(found.report["tried"]) == 6
    best = min(found.report["tried"], key=lambda row: row["loss"])
    assert (best["pool"], best["layer"]) == (found.reading.pool, found.reading.layer)
    scores = classify.score(loaded, found, iter(texts(200, seed=1)))
    assert scores["accuracy"]["low"] > 0.5  # chance is a third
    assert sum(map(sum, scores["confusion"]["counts"])) == scores["examples"] == 200
    with pytest.raises(HeadDoesNotFit, match="layers 1 to 3"):
        classify.probe(loaded, iter(texts(9)), Features(layers=(7,)))


def test_newton_steps_read_the_features_again_from_a_file(monkeypatch):
    monkeypatch.setattr("slimformer.heads.features.CHUNK", 64)
    monkeypatch.setattr("slimformer.heads.waiting_rows.ROWS", 50)
    loaded, rows = opened("bert"), texts(200)
    found = classify.probe(loaded, iter(rows), Features(layers=(2, 3), seq_len=16), head=HeadParameters("newton"))
    chunks = list(feature_chunks(loaded.model, loaded.processor, rows, [found.reading], seq_len=16))
    X = torch.cat([chunk.features[found.reading] for chunk in chunks])
    whole = AnalyticHead("newton").fit(X, np.array([row.label for row in rows]))
    np.testing.assert_allclose(found.head.predict_proba(X), whole.predict_proba(X), atol=1e-6)
    assert found.report["newton"]["steps"] == whole.n_iter_ > 0
    assert len(found.report["tried"]) == 4
    fresh, _ = classify.fresh_head(
        opened("bert", "classify"), tiny("bert", "classify"), (replace(row, label=len(row.text) % 5) for row in rows),
        kind="newton", seq_len=16,
    )  # fmt: skip
    assert torch.isfinite(fresh.classifier.weight).all()


def test_one_class_is_no_classifier_and_one_row_of_a_class_leaves_no_loss():
    rows = texts(40)
    with pytest.raises(RowsUnusable, match="all rows have the label 'yes'"):
        classify.probe(opened("bert"), (replace(row, label="yes") for row in rows), Features(("cls",), seq_len=16))
    rare = [replace(row, label="rare" if i == 0 else "usual") for i, row in enumerate(rows)]
    (tried,) = classify.probe(opened("bert"), iter(rare), Features(("cls",), seq_len=16)).report["tried"]
    assert tried["loss"] is None or np.isfinite(tried["loss"])
    assert json.loads(json.dumps(tried, allow_nan=False)) == tried


def test_labels_with_fractions_are_numbers():
    rows = [replace(row, label=len(row.text) / 7) for row in texts(150)]
    found = classify.probe(opened("bert"), iter(rows), Features(seq_len=16))
    assert found.report["target"] == "numbers"
    scores = classify.score(opened("bert"), found, iter(rows))
    assert scores["spearman"]["value"] > 0.5


def test_a_saved_classifier_opens_as_a_stock_one(tmp_path, trusting):
    (tmp_path / "LICENSE").write_text("free")
    (tmp_path / "modules.json").write_text("[]")
    loaded = replace(opened("bert"), companions=tmp_path)
    found = classify.probe(loaded, iter(texts()), Features(("cls",), seq_len=16))
    model = attach(loaded.model, found.head, found.reading)
    save_classifier(model, tmp_path / "out", loaded, found)
    assert (tmp_path / "out" / "LICENSE").read_text() == "free"
    assert not (tmp_path / "out" / "modules.json").exists()  # a classifier embeds no sentences
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    batch = tiny_batches(loaded.model, 1)[0]
    with torch.no_grad():
        torch.testing.assert_close(again(**batch.inputs).logits, model(**batch.inputs).logits)
    assert again.config.id2label == {0: "maybe", 1: "no", 2: "yes"}
    assert json.loads((tmp_path / "out" / "probe.json").read_text())["reading"] == {"pool": "cls", "layer": 3}


def test_mean_pooling_is_saved_for_sentence_transformers(tmp_path, trusting):
    sentences = pytest.importorskip("sentence_transformers", reason="sentence-transformers is an extra")
    loaded, rows = opened("bert"), texts()
    found = classify.probe(loaded, iter(rows), Features(("mean",), (2,), 16))
    save_sentence_classifier(tmp_path / "out", loaded, found, seq_len=16)
    encoder = sentences.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    scores = encoder.encode([row.text for row in rows[:8]], convert_to_tensor=True)
    chunk = next(feature_chunks(loaded.model, loaded.processor, rows[:8], [found.reading], seq_len=16))
    expected = found.head.predict_proba(chunk.features[found.reading])
    np.testing.assert_allclose(scores.softmax(1), expected, atol=1e-4)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "distilbert", "llama"])
def test_a_cut_classifier_gets_a_fresh_head(model_type):
    loaded = opened(model_type, "classify")
    loaded.model.config.id2label = {0: "no", 1: "yes", 2: "maybe", 3: "never", 4: "always"}
    small = tiny_ragged(loaded.model)
    before = small.get_submodule(last_layer(small)).weight.clone()
    fresh, report = classify.fresh_head(loaded, small, iter(texts(300)), seq_len=16)
    assert report["rows"] == 300
    assert not fresh.get_submodule(last_layer(fresh)).weight.equal(before)
    here = replace(loaded, model=fresh)
    test = texts(200, seed=1)
    X = classify.last_features(here, test, 16)
    layer = fresh.get_submodule(last_layer(fresh))
    with torch.no_grad():
        right = [["no", "yes", "maybe", "never", "always"][i] for i in layer(X).argmax(1).tolist()]
    assert np.mean([row.label == name for row, name in zip(test, right, strict=True)]) > 0.45


def test_a_cut_bare_encoder_becomes_a_classifier():
    loaded = opened("bert")
    fresh, _ = classify.fresh_head(loaded, tiny_ragged(loaded.model), iter(texts()), seq_len=16)
    assert type(fresh).__name__ == "BertForSequenceClassification"
    assert fresh.config.num_labels == 3


def test_rows_are_streamed_in_order(tmp_path):
    path = tmp_path / "rows.tsv"
    path.write_text("sentence\tlabel\none\t1\n \t0\ntwo\t0\n")
    found = list(stream_documents(path))
    assert [(d.text, d.label) for d in found] == [("one", "1"), ("two", "0")]
    (tmp_path / "empty.tsv").write_text("sentence\tlabel\n")
    with pytest.raises(DataEmpty):
        list(stream_documents(tmp_path / "empty.tsv"))
    (tmp_path / "bare.tsv").write_text("sentence\tother\none\t1\n")
    with pytest.raises(ColumnNotFound, match="no label"):
        list(classify.labelled(opened("bert"), classify.LabelledRows(tmp_path / "bare.tsv")))


def test_a_cut_encoder_is_read_below_its_last_block():
    small = tiny_ragged(tiny("bert", "bare"))
    reading, batch = Reading("cls", 2), tiny_batches(small, 1, rows=30)[0]
    X = pooled(small, batch, [reading])[reading]
    head = AnalyticHead(shrinkage=0.1).fit(X, np.arange(30) % 3)
    with torch.no_grad():
        logits = attach(small, head, reading)(**batch.inputs).logits
    np.testing.assert_allclose(logits.softmax(1), head.predict_proba(X), atol=2e-3)


@pytest.mark.parametrize("kind", ["bare", "classify"])
def test_compress_with_head_data_gives_a_classifier_that_opens(kind, tmp_path, trusting):
    import slimformer

    rows = texts(160)
    (tmp_path / "rows.tsv").write_text("sentence\tlabel\n" + "".join(f"{d.text}\t{d.label}\n" for d in rows))
    loaded = opened("bert", kind)
    if kind == "classify":
        loaded.model.config.id2label = {0: "no", 1: "yes", 2: "maybe", 3: "never", 4: "always"}
        loaded.model.config.label2id = {name: i for i, name in loaded.model.config.id2label.items()}
    result = slimformer.compress(
        loaded.model, str(tmp_path / "rows.tsv"), macs=0.6, processor=loaded.processor, seq_len=16, refine=False,
        recipe="uniform", timing=False, head_data=str(tmp_path / "rows.tsv"), eval_data=[tmp_path / "rows.tsv"],
    )  # fmt: skip
    head = result.report.head
    assert result.report.other_data[0]["metrics"] == result.report.metrics  # the same rows, with the same head
    assert head["rows"] < 160  # what is reported on was not fitted on
    assert ("old_head" in head) == (kind == "classify")
    card = model_card(result.report, folder="out")
    assert f"on {head['rows']} rows" in card
    assert ("with the old head: accuracy" in card) == (kind == "classify")
    result.save(tmp_path / "out")
    again = slimformer.load(tmp_path / "out")
    batch = tiny_batches(loaded.model, 1)[0]
    with torch.no_grad():
        torch.testing.assert_close(again(**batch.inputs).logits, result.model(**batch.inputs).logits)


def test_a_head_without_a_place_is_refused_before_the_work(tmp_path):
    import slimformer

    how = {"processor": tiny_tokenizer(), "head_data": tmp_path / "never-read.tsv"}
    with pytest.raises(HeadDoesNotFit, match="no classification head"):
        slimformer.compress(tiny("llama"), "never read", macs=0.5, **how)
    with pytest.raises(UnknownRecipe, match="has both lossless and head; leave head out"):
        slimformer.compress(tiny("bert", "classify"), recipe="lossless", **how)
