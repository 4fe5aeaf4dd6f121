"""Exact match and F1 of answers, as SQuAD counts them (Rajpurkar et al. 2016; 2018 for questions without an answer).

Both compare words of a normalised text: lower case, without punctuation, without the articles a, an, the.

    exact = [normal(prediction) = normal(gold)],     F1 = 2 c / (|prediction| + |gold|),  c words in common

The score of a question is the best over its golds. Version 2 takes the empty text for "no answer": with it on either
side F1 is 1 if both are empty, else 0; a gold that normalises to nothing is no gold.

A reader that may stay silent gives a null score with its answer: how much the empty text beats it. Above a threshold
the answer is withdrawn. `best_threshold` is the one that would have been best on these very questions, so what it
reaches is a bound on what a threshold chosen elsewhere can reach, not a held-out figure.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ARTICLES = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """A question on a context. `answers` are the golds; none of them: the context holds no answer."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What a reader says. `null` is the score of the empty text minus that of `text`."""

    text: str
    null: float = 0.0


@dataclass(frozen=True)
class Marks:
    """Exact match and F1 of every question (between 0 and 1), in their order; `answerable` tells which have a gold."""

    exact: tuple[float, ...]
    f1: tuple[float, ...]
    answerable: tuple[bool, ...]


@dataclass(frozen=True)
class Threshold:
    """The null score above which silence is best, and the mean score it gives."""

    value: float
    score: float


def normal(text: str) -> str:
    """Lower case; no punctuation, no articles, single spaces. In this order, so that "a-b" becomes "ab"."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """1 if both say the same after normalisation."""
    return float(normal(prediction) == normal(gold))


def overlap(prediction: str, gold: str, *, version: int = 1) -> float:
    """F1 of the words in common, each as often as both have it."""
    predicted, meant = normal(prediction).split(), normal(gold).split()
    if version == 2 and not (predicted and meant):
        return float(predicted == meant)
    common = (Counter(predicted) & Counter(meant)).total()
    return 2 * common / (len(predicted) + len(meant)) if common else 0.0


def mark(questions: Sequence[Question], answers: Mapping[str, str], *, version: int = 1) -> Marks:
    """Marks of the texts said; a question that was not answered counts as an empty answer."""
    exact, f1 = [], []
    for question in questions:
        golds, text = golds_of(question, version), answers.get(question.id, "")
        exact.append(max((exact_match(text, gold) for gold in golds), default=0.0))
        f1.append(max((overlap(text, gold, version=version) for gold in golds), default=0.0))
    return Marks(tuple(exact), tuple(f1), tuple(bool(question.answers) for question in questions))


def golds_of(question: Question, version: int) -> list[str]:
    """What counts as right: in version 2 golds with words in them, or else the empty text."""
    if version == 1:
        return list(question.answers)
    return [gold for gold in question.answers if normal(gold)] or [""]


def silenced(answers: Mapping[str, Answer], threshold: float) -> dict[str, str]:
    """The texts said, withdrawn where the null score is above the threshold."""
    return {name: "" if answer.null > threshold else answer.text for name, answer in answers.items()}


def best_threshold(questions: Sequence[Question], answers: Mapping[str, Answer], scores: Sequence[float]) -> Threshold:
    """The threshold with the highest mean, given the score of every question when nothing is withdrawn.

    From silence on everything, which gets the questions without an answer right, answers are let through by rising null
    score: one to an answerable question gains its score, one to any other loses 1. Ties count for the lowest threshold.
    Cost O(n log n).
    """
    total = float(sum(not question.answers for question in questions))
    best, value = total, min(answers[question.id].null for question in questions) - 1  # silence on everything
    order = sorted(range(len(questions)), key=lambda i: answers[questions[i].id].null)
    for i in order:
        question = questions[i]
        answer = answers[question.id]
        total += scores[i] if question.answers else -float(bool(answer.text))
        if total > best:
            best, value = total, answer.null
    return Threshold(value, best / len(questions))
