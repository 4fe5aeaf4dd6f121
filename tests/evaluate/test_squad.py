"""Marks of answers against cases worked out by hand from the published definitions, and laws they must obey."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import SHARED, needs
from slimformer.evaluate.examples import squad_questions
from slimformer.evaluate.squad import Answer, Question, best_threshold, exact_match, mark, normal, overlap, silenced

XQUAD = SHARED / "data" / "xquad_en" / "xquad.en.json"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The Panthers", "panthers"),
        ("an  apple,\ta DAY!", "apple day"),
        ("U.S.A.", "usa"),
        ("twenty-four", "twentyfour"),
        ("theatre", "theatre"),  # "the" is cut as a word only
        ("the a an", ""),
        ("A.", ""),  # punctuation goes first, and what is left is an article
        ("«Zürich» – 6½", "«zürich» – 6½"),  # only ASCII punctuation is cut
        ("", ""),
    ],
)
def test_normalisation(text, wanted):
    assert normal(text) == wanted


@pytest.mark.parametrize(
    ("said", "gold", "exact", "f1"),
    [
        ("the Denver Broncos", "Denver Broncos", 1, 1),
        ("Broncos", "Denver Broncos", 0, 2 / 3),  # precision 1, recall 1/2
        ("Denver Denver", "Denver Broncos", 0, 1 / 2),  # a word counts as often as both have it
        ("John Elway of Denver", "Denver", 0, 2 / 5),
        ("1,000", "1000", 1, 1),
        ("Carolina", "Denver", 0, 0),
    ],
)
def test_exact_match_and_f1_by_hand(said, gold, exact, f1):
    assert exact_match(said, gold) == exact
    assert overlap(said, gold) == pytest.approx(f1)


def test_versions_differ_where_nothing_is_left_to_compare():
    """Version 1 shares no word and gives 0; version 2 calls two empty texts equal, and a gold "the" no gold."""
    assert overlap("the", "a", version=1) == 0
    assert overlap("the", "a", version=2) == 1
    assert overlap("", "Denver", version=2) == 0
    question = Question("q", "?", "c", ("The",))
    assert mark([question], {"q": ""}, version=2).f1 == (1.0,)
    assert mark([question], {"q": "Denver"}, version=2).exact == (0.0,)


def test_the_best_of_several_golds_counts():
    question = Question("q", "?", "c", ("the Broncos", "Denver Broncos", "Denver"))
    assert mark([question], {"q": "Denver"}).exact == (1.0,)
    assert mark([question], {"q": "Denver team"}).f1 == pytest.approx((2 / 3,))


def test_unanswerable_questions_want_silence():
    none, some = Question("n", "?", "c", ()), Question("s", "?", "c", ("Denver",))
    found = mark([none, some], {"n": "", "s": ""}, version=2)
    assert found.exact == found.f1 == (1.0, 0.0)
    assert found.answerable == (False, True)
    assert mark([none], {"n": "Denver"}, version=2).f1 == (0.0,)


def test_a_question_left_out_is_an_empty_answer():
    assert mark([Question("q", "?", "c", ("Denver",))], {}).exact == (0.0,)


answers = st.lists(
    st.tuples(st.booleans(), st.floats(-3, 3).map(lambda x: round(x, 1)), st.sampled_from(["yes", "no", ""])),
    min_size=1, max_size=8,
)  # fmt: skip


@given(answers)
def test_the_best_threshold_beats_every_other(rows):
    questions = [Question(str(i), "?", "c", ("yes",) if has else ()) for i, (has, _, _) in enumerate(rows)]
    said = {str(i): Answer(text, null) for i, (_, null, text) in enumerate(rows)}

    def reached(cut: float) -> float:
        return sum(mark(questions, silenced(said, cut), version=2).f1) / len(rows)

    raw = mark(questions, {name: answer.text for name, answer in said.items()}, version=2).f1
    found = best_threshold(questions, said, raw)
    cuts = [-10.0, *(null for _, null, _ in rows)]
    if len({null for _, null, _ in rows}) == len(rows):  # of equal null scores some may be let through, some not
        assert found.score == pytest.approx(max(map(reached, cuts)))
        assert found.score == pytest.approx(reached(found.value))
    assert found.score >= max(map(reached, cuts)) - 1e-12


@needs(XQUAD)
@pytest.mark.parametrize("version", [1, 2])
def test_golds_score_100_on_themselves(version):
    questions = squad_questions("squad", str(XQUAD))
    found = mark(questions, {question.id: question.answers[0] for question in questions}, version=version)
    assert len(questions) == len({question.id for question in questions}) == 1190
    assert set(found.exact) == set(found.f1) == {1.0}


def test_f1_is_symmetric_and_at_least_exact_match():
    texts = ["a b c", "b c", "the b", "c c d", ""]
    for one, other in itertools.product(texts, texts):
        assert overlap(one, other) == overlap(other, one)
        assert overlap(one, other, version=2) >= exact_match(one, other)
