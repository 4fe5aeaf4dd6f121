"""Answers cut out of a context: all of it is read, and the best legal span is found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from families import tiny, tiny_tokenizer
from slimformer.errors import SequenceTooLong
from slimformer.evaluate.spans import Part, Reading, answer_questions, best_spans, parts_of
from slimformer.evaluate.squad import Question
from terminal import texts

HOW = Reading(seq_len=16, stride=4, longest=5, n_best=64, batch_size=3)


def questions(n: int = 4) -> list[Question]:
    return [Question(str(i), f" w{5 + i} w{9 + i}", text, ()) for i, text in enumerate(texts(n, seed=3))]


def test_parts_cover_the_context_and_overlap_by_the_stride():
    asked = questions()
    tokenizer = tiny_tokenizer()
    for i, question in enumerate(asked):
        parts = [part for part in parts_of(asked, tokenizer, HOW) if part.question == i]
        covered = [[place for place in part.places if place] for part in parts]
        words = [question.context[a:b] for a, b in sorted({place for places in covered for place in places})]
        assert words == question.context.split()
        assert all(len(part.places) <= HOW.seq_len for part in parts)
        for before, after in itertools.pairwise(covered):
            assert before[-HOW.stride :] == after[: HOW.stride]


def brute_force(part: Part, start: np.ndarray, end: np.ndarray, longest: int) -> float:
    pairs = [
        start[i] + end[j]
        for i in range(len(start))
        for j in range(i, min(len(end), i + longest))
        if part.places[i] and part.places[j]
    ]
    return max(pairs)


@pytest.mark.parametrize("seed", range(5))
def test_the_best_span_is_that_of_an_exhaustive_search(seed):
    draw = np.random.default_rng(seed)
    places = tuple(None if t < 4 else (2 * t, 2 * t + 1) for t in range(20))
    part, start, end = Part(0, {}, places, 0), draw.normal(size=20), draw.normal(size=20)
    found = best_spans(part, start, end, HOW)
    assert found[0].score == pytest.approx(brute_force(part, start, end, HOW.longest))
    assert [span.score for span in found] == sorted((span.score for span in found), reverse=True)
    assert all(0 < span.end - span.start <= 2 * HOW.longest for span in found)


def test_only_the_n_best_starts_and_ends_are_combined():
    places = tuple((t, t + 1) for t in range(6))
    start, end = np.array([0.0, 5, 4, 0, 0, 0]), np.array([9.0, 0, 0, 0, 3, 2])
    few = best_spans(Part(0, {}, places, 0), start, end, Reading(longest=30, n_best=1))
    assert few == []  # the best end stands before the best start
    assert best_spans(Part(0, {}, places, 0), start, end, Reading(longest=30, n_best=2))[0].score == 8
    assert best_spans(Part(0, {}, places, 0), start, end, Reading(longest=2, n_best=6))[0].score == 9


def test_answers_do_not_depend_on_batches_and_come_from_the_context():
    model, tokenizer, asked = tiny("bert", "answer"), tiny_tokenizer(), questions()
    together = answer_questions(model, tokenizer, asked, HOW)
    alone = {q.id: answer_questions(model, tokenizer, [q], HOW)[q.id] for q in asked}
    for question in asked:
        assert together[question.id].text in question.context
        assert together[question.id].text == alone[question.id].text
        assert together[question.id].null == pytest.approx(alone[question.id].null, abs=1e-4)
        assert 1 <= len(together[question.id].text.split()) <= HOW.longest


@torch.no_grad()
def test_a_reader_that_knows_the_place_says_the_answer():
    """A head that fires on one word: the logits of its embedding direction, through a real model of no blocks."""
    model, tokenizer = tiny("bert", "answer", num_hidden_layers=1), tiny_tokenizer()
    layer = model.bert.encoder.layer[0]
    for dense in (layer.attention.output.dense, layer.output.dense):
        dense.weight.zero_(), dense.bias.zero_()  # the block passes on what it reads
    word = tokenizer.convert_tokens_to_ids("w40")
    states = model.bert(torch.tensor([[word, 8, 9, 10, 11, word]])).last_hidden_state[0]
    model.qa_outputs.weight.copy_(((states[0] + states[5]) / 2 - states[1:5].mean(0)).expand(2, -1))
    context = " ".join(["w7"] * 9 + ["w8", "w40", "w9"] + ["w11"] * 9)
    said = answer_questions(model, tokenizer, [Question("q", "w5", context, ())], HOW)
    assert "w40" in said["q"].text.split()


def test_a_question_that_leaves_no_room_is_refused():
    asked = [Question("q", " ".join(["w9"] * 14), "w8 w9", ())]
    with pytest.raises(SequenceTooLong, match="seq_len="):
        parts_of(asked, tiny_tokenizer(), HOW)
