"""Sources and targets: what the decoder is shown, what is measured, and who writes a target that is missing."""

import json
import random

import pytest
import torch

import slimformer
from families import LENGTH, VOCABULARY, tiny, tiny_batches, tiny_tokenizer
from slimformer.calibrate.document import Document
from slimformer.calibrate.gather import REPEATED, WRITTEN, Reading, gather
from slimformer.calibrate.pairs import pair_batches, targets_of, written
from slimformer.errors import CannotExport, UnknownArchitecture, UnknownMethod
from slimformer.evaluate.latency_table import latency_table
from slimformer.evaluate.perplexity import perplexity
from slimformer.export.asked import Target
from slimformer.export.write import export_model
from slimformer.heads.features import readings_of
from slimformer.models import describe
from slimformer.models.load import in_memory
from slimformer.models.sample_inputs import start_token

PAIRED = ("bart", "t5")
every_type = pytest.mark.parametrize("kind", PAIRED)


def said(n: int, seed: int) -> str:
    words = random.Random(seed)
    return " ".join(f"w{words.randint(5, VOCABULARY - 1)}" for _ in range(n))


def pairs(n: int = 40) -> list[Document]:
    return [Document(said(4 + i % 9, i), pair=said(3 + i % 5, 1000 + i)) for i in range(n)]


@every_type
def test_the_decoder_is_shown_what_comes_before_each_target(kind):
    model, tokenizer = tiny(kind), tiny_tokenizer()
    documents, seen = pairs(), set()
    for batch in pair_batches(documents, model, tokenizer, seq_len=LENGTH, batch_size=6):
        ids = batch.inputs["decoder_input_ids"]
        assert (ids[:, 0] == start_token(model.config)).all()
        assert torch.equal(ids[:, 1:], batch.targets[:, :-1])
        for row, number in enumerate(batch.documents.tolist()):
            expected = tokenizer(text_target=documents[number].pair)["input_ids"]
            assert batch.targets[row][batch.mask[row]].tolist() == expected
            real = batch.inputs["attention_mask"][row].bool()
            assert batch.inputs["input_ids"][row][real].tolist() == tokenizer(documents[number].text)["input_ids"]
            seen.add(number)
    assert seen == set(range(len(documents)))


@every_type
def test_perplexity_is_that_of_the_loss_the_model_was_trained_with(kind):
    model = tiny(kind)
    batch = tiny_batches(model, 1)[0]
    labels = batch.targets.masked_fill(~batch.mask, -100)
    inputs = {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        loss = model(**inputs, labels=labels).loss
    assert perplexity(model, [batch]).nll == pytest.approx(float(loss), rel=1e-5)
    assert perplexity(model, [batch]).tokens == int(batch.mask.sum())


@every_type
def test_a_missing_target_is_drawn_from_the_model(kind):
    """Each token with the probability the model gives it after those before: the first is counted."""
    model = tiny(kind)
    source = tiny_batches(model, 1, rows=1)[0]
    inputs = {name: source.inputs[name].expand(600, -1) for name in ("input_ids", "attention_mask")}
    first = torch.tensor([row[0] for row in written(model, inputs, 1)])
    with torch.no_grad():
        start = torch.full((1, 1), start_token(model.config))
        alone = {name: source.inputs[name] for name in ("input_ids", "attention_mask")}
        p = model(**alone, decoder_input_ids=start).logits[0, 0].softmax(-1)
    share = torch.bincount(first, minlength=len(p)) / len(first)
    assert float((share - p).abs().max()) < 5 * float((p * (1 - p)).max() / len(first)) ** 0.5


@every_type
def test_what_is_written_is_what_one_pass_without_a_cache_predicts(kind):
    model = tiny(kind)
    source = tiny_batches(model, 1, rows=3)[0]
    inputs = {name: source.inputs[name] for name in ("input_ids", "attention_mask")}
    rows = written(model, inputs, 7, seed=4)
    assert rows == written(model, inputs, 7, seed=4) and rows != written(model, inputs, 7, seed=5)
    assert all(len(row) == 7 or row[-1] == model.config.eos_token_id for row in rows)
    ids, targets, mask = targets_of(rows, model.config)
    with torch.no_grad():
        log_p = model(**inputs, decoder_input_ids=ids).logits.log_softmax(-1)
    assert float(log_p.gather(-1, targets[..., None])[mask].min()) > -20  # nothing that cannot have been drawn


@pytest.mark.parametrize(("head", "note"), [("write", WRITTEN), ("bare", REPEATED)])
def test_texts_without_targets_are_sources(head, note):
    model = tiny("bart", head)
    texts = [said(8, seed) for seed in range(60)]
    data = gather(texts, model, tiny_tokenizer(), describe(model), Reading(tokens=200))
    assert note in data.notes and data.unit == "example"
    batch = data.splits["fit"][0]
    assert (head == "bare") == torch.equal(batch.inputs["input_ids"][batch.inputs["attention_mask"].bool()],
                                           batch.targets[batch.mask])  # fmt: skip


def test_a_table_with_source_and_target_columns_is_read(tmp_path):
    rows = [{"source": d.text, "target": d.pair, "other": "x"} for d in pairs(60)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    model = tiny("bart")
    data = gather(tmp_path / "pairs.jsonl", model, tiny_tokenizer(), describe(model), Reading(tokens=200))
    assert WRITTEN not in data.notes
    known = {tiny_tokenizer()(d.pair)["input_ids"].__repr__() for d in pairs(60)}
    for batch in data.splits["report"]:
        for row, mask in zip(batch.targets, batch.mask, strict=True):
            assert repr(row[mask].tolist()) in known


def test_a_target_needs_a_token_to_begin_with():
    model = tiny("bart", decoder_start_token_id=None, bos_token_id=None)
    with pytest.raises(UnknownArchitecture, match="no decoder_start_token_id"):
        gather(torch.randint(5, VOCABULARY, (8, 8)), model, None, describe(model))


@pytest.mark.parametrize(
    ("recipe", "step"), [("depth", "depth"), ("lossless", "lossless"), ("vocabulary", "vocabulary")]
)
def test_steps_for_one_stack_are_refused_in_one_line(recipe, step):
    given = {"vocab": 32} if recipe == "vocabulary" else {} if recipe == "lossless" else {"macs": 0.5}
    with pytest.raises(UnknownMethod, match=rf"the step {step} is for models of one stack, and bart is an encoder and"):
        slimformer.compress(tiny("bart"), pairs(), processor=tiny_tokenizer(), recipe=recipe, **given)


def test_what_knows_one_stack_refuses_an_encoder_and_a_decoder(tmp_path):
    loaded = in_memory(tiny("bart"), None)
    with pytest.raises(UnknownArchitecture, match="a budget of latency works on models of one stack"):
        latency_table(loaded.model, seq_len=8)
    with pytest.raises(UnknownArchitecture, match="a head on its states works on models of one stack"):
        readings_of(loaded.model)
    with pytest.raises((UnknownArchitecture, CannotExport), match="export works on models of one stack"):
        export_model(loaded, tmp_path / "out", Target("onnx"))
    with pytest.raises(UnknownMethod, match="the step quantize is for models of one stack"):
        slimformer.quantize(loaded.model, pairs(), processor=tiny_tokenizer(), bits=8)
