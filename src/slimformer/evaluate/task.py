"""Dense and small on a task of the papers: every score with its interval, the paired test, the recovery.

    recovery = 100 · small / dense  for scores where more is better,     100 · dense / small  for perplexity

Percentages are on the scale of 0 to 100. Both models read the same rows, so all intervals are of pairs. Where the
interval of the dense score reaches 0 there is no recovery, and a note says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import positions
from slimformer.calibrate.text import token_batches
from slimformer.checkpoint.sentence import MEAN, Pooling, pooling_of
from slimformer.errors import DataUnreadable, PlanDoesNotFit, SequenceTooLong, TooFewExamples
from slimformer.evaluate import glue, squad
from slimformer.evaluate.by_text import reads_alike
from slimformer.evaluate.compare import is_language_model
from slimformer.evaluate.conventions import token_windows
from slimformer.evaluate.examples import (
    FILES,
    TEXTS,
    files_read,
    glue_parts,
    require_task,
    squad_questions,
    text_rows,
    training_pairs,
)
from slimformer.evaluate.intervals import Interval, paired_scores
from slimformer.evaluate.perplexity import perplexity
from slimformer.evaluate.scores import Score, Vector, mean_score, perplexity_score
from slimformer.evaluate.spans import Reading, answer_questions
from slimformer.messages.words import option
from slimformer.models.architecture import is_bare
from slimformer.models.load import Loaded
from slimformer.models.sample_inputs import require_one_stack

SQUAD = {"squad": 1, "squad_v2": 2}
TASKS = tuple(FILES)
LENGTH = {"glue": 128, "squad": 384, "text": 2048}
STRIDE = 128  # unless this is more than a third of the length
RESAMPLES = 2000


@dataclass(frozen=True)
class Options:
    """How a task is read. `data` is a file or folder, none for the hub; `limit` counts examples or windows."""

    data: str | None = None
    columns: tuple[str, ...] | None = None
    seq_len: int | None = None
    limit: int | None = None
    batch_size: int = 16
    threshold: float = 0.0  # of the null score, above which no answer is given (SQuAD 2)
    stride: int | None = None
    longest: int = 30
    n_best: int = 20
    resamples: int = RESAMPLES
    seed: int = 0


@dataclass(frozen=True)
class Scored:
    """A score with what it needs of both models."""

    name: str
    score: Score
    dense: Vector
    small: Vector
    golds: Vector
    better: str = "higher"
    scale: float = 100.0


@dataclass(frozen=True)
class TaskReport:
    """What was measured on what. Every metric is plain data; see `docs/formats.md`."""

    task: str
    dense: str
    small: str
    data: str
    examples: int
    unit: str
    metrics: list[dict[str, Any]]
    settings: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # whose rows were scored; none for the hub

    def to_dict(self) -> dict[str, Any]:
        return {"slimformer_task": 1, **asdict(self)}


Answered = tuple[list[Scored], dict[str, Any], list[str]]


def evaluate_task(task: str, dense: Loaded, small: Loaded, options: Options | None = None) -> TaskReport:
    """Measure both models on a task. Cost: a forward pass of each, and 4 · resamples scores for the intervals."""
    how = options or Options()
    require_task(task)
    require_one_stack(dense.model.config, "a task")
    if dense.processor is None:
        raise DataUnreadable(f"{dense.name} has no tokenizer, so it cannot read the texts of {task}")
    measure, unit = _measure(task)
    length = _length(task, dense, how)
    scored, settings, notes = measure(task, dense, small, how, length)
    metrics = [_metric(each, how) for each in scored]
    notes += [
        f"there is no recovery of {metric['name']}: the interval of the dense score reaches 0"
        for metric in metrics
        if metric["recovery"] is None
    ]
    settings = {"seq_len": length, "resamples": how.resamples, "seed": how.seed, **settings}
    examples = max(len(each.golds) for each in scored)
    data, files = str(Path(how.data)) if how.data else "hub", [str(file) for file in files_read(task, how.data)]
    return TaskReport(task, dense.name, small.name, data, examples, unit, metrics, settings, notes, files)


def _measure(task: str) -> tuple[Callable[[str, Loaded, Loaded, Options, int], Answered], str]:
    if task in SQUAD:
        return _squad, "questions"
    if task == "retrieval":
        return _retrieval, "queries"
    return (_text, "windows") if task in TEXTS else (_glue, "examples")


def _length(task: str, dense: Loaded, how: Options) -> int:
    kind = "squad" if task in SQUAD else "text" if task in TEXTS else "glue"
    most = positions(dense.model.config)
    if how.seq_len is not None and how.seq_len > most:
        raise SequenceTooLong(f"{option('seq_len', how.seq_len)} is more than the {most:,} positions of the model")
    return how.seq_len or min(LENGTH[kind], most)


def _require_two(count: int, unit: str) -> None:
    if count < 2:
        raise TooFewExamples(f"{count} of the {unit} can be scored, and an interval needs 2; give more")


def _metric(each: Scored, how: Options) -> dict[str, Any]:
    """One score as plain data, on the scale it is printed in."""
    scores = paired_scores(each.score, each.dense, each.small, each.golds, resamples=how.resamples, seed=how.seed)
    k, recovery = each.scale, _recovery(scores.ratio, each.better)
    return {
        "name": each.name, "better": each.better, "level": scores.difference.level,
        "dense": k * scores.first.value, "dense_low": k * scores.first.low, "dense_high": k * scores.first.high,
        "small": k * scores.second.value, "small_low": k * scores.second.low, "small_high": k * scores.second.high,
        "difference": k * scores.difference.value, "low": k * scores.difference.low, "high": k * scores.difference.high,
        "p": scores.difference.p, "recovery": recovery[0], "recovery_low": recovery[1], "recovery_high": recovery[2],
    }  # fmt: skip


def _recovery(ratio: Interval | None, better: str) -> list[float | None]:
    """In per cent with its bounds; none of them where there is no ratio."""
    if ratio is None:
        return [None, None, None]
    if better == "lower":  # perplexities are above 0
        return [100 / ratio.value, 100 / ratio.high, 100 / ratio.low]
    return [100 * ratio.value, 100 * ratio.low, 100 * ratio.high]


# --- GLUE ---------------------------------------------------------------------------------------------------


def _glue(task: str, dense: Loaded, small: Loaded, how: Options, length: int) -> Answered:
    kind = glue.GLUE[task]
    parts = glue_parts(task, how.data, columns=how.columns, limit=how.limit)
    parts = {name: glue.labelled(kind, documents) for name, documents in parts.items()}
    scored: list[Scored] = []
    settings: dict[str, Any] = {"predictions": "head"}
    cut = None
    if is_bare(dense.model):
        settings["predictions"] = predictions_of(dense)
        if kind.classes:
            every = [document for documents in parts.values() for document in documents]
            cut, settings["threshold_from"] = _cut(task, kind, dense, every, how, length)
            settings["threshold"] = cut
    for name, rows in parts.items():
        _require_two(len(rows), "examples")
        golds = glue.golds_of(kind, rows)
        a, b = (_predicted(kind, model, rows, how, length, cut) for model in (dense, small))
        suffix = f" ({name})" if name else ""
        scored += [Scored(label + suffix, score, a, b, golds) for label, score in kind.scores.items()]
    guessed = kind.classes and not is_bare(dense.model) and glue.unnamed(dense.model)
    note = f"{dense.name} does not name its classes; they are taken to be {', '.join(kind.classes)}, in this order"
    return scored, settings, [note] if guessed else []


def _predicted(
    kind: glue.Glue, loaded: Loaded, documents: Sequence[Document], how: Options, length: int, cut: float | None
) -> Vector:
    if not is_bare(loaded.model):
        if not type(loaded.model).__name__.endswith("SequenceClassification"):
            raise PlanDoesNotFit(f"{loaded.name} is a {type(loaded.model).__name__}, which does not classify texts")
        return glue.predictions(kind, loaded.model, _rows(loaded, documents, how, length))
    if not kind.pairs:
        raise PlanDoesNotFit(f"{loaded.name} has no head, and the task is not about pairs; evaluate a classifier")
    alike = _similarities(loaded, documents, how, length)
    return alike if cut is None else (alike > cut).astype(np.float64)


def _rows(loaded: Loaded, documents: Sequence[Document], how: Options, length: int) -> list[Any]:
    # without a padding token a decoder cannot tell where a row ends, so it reads one at a time
    size = how.batch_size if getattr(loaded.model.config, "pad_token_id", None) is not None else 1
    return glue.rows_of(documents, loaded.processor, seq_len=length, batch_size=size)


def _similarities(loaded: Loaded, documents: Sequence[Document], how: Options, length: int) -> Vector:
    sides = [[Document(d.text) for d in documents], [Document(d.pair or "") for d in documents]]
    first, second = (_rows(loaded, side, how, length) for side in sides)
    return glue.similarities(loaded.model, first, second, pooling(loaded))


def _cut(
    task: str, kind: glue.Glue, dense: Loaded, scored: Sequence[Document], how: Options, length: int
) -> tuple[float, str]:
    """The threshold, and the part it was chosen on."""
    if kind.alike is None:
        raise PlanDoesNotFit(f"{dense.name} has no head, and similarity does not decide {task}; evaluate a classifier")
    documents, part = training_pairs(task, how.data, scored=scored)
    return glue.best_cut(_similarities(dense, documents, how, length), glue.golds_of(kind, documents)), part


def pooling(loaded: Loaded) -> Pooling:
    """How the folder of an encoder pools; means of the last states where it does not say."""
    return pooling_of(loaded.companions or loaded.folder) or MEAN


def predictions_of(loaded: Loaded) -> str:
    """What stands for a prediction of a model without a head."""
    how = pooling(loaded)
    kind = "mean-pooled" if how.kind == "mean" else "first"
    return f"cosine of {kind} states" + ("" if how.W is None else ", mapped by the linear module of the folder")


# --- retrieval ----------------------------------------------------------------------------------------------


def _retrieval(task: str, dense: Loaded, small: Loaded, how: Options, length: int) -> Answered:
    """For the first text of every pair: where its second text stands among all second texts."""
    for loaded in (dense, small):
        if not is_bare(loaded.model):
            raise PlanDoesNotFit(f"{loaded.name} is a {type(loaded.model).__name__}; retrieval is for encoders")
    (pairs,) = glue_parts(task, how.data, columns=how.columns, limit=how.limit).values()
    if any(not document.pair for document in pairs):
        raise DataUnreadable(
            f"{how.data} has rows of one text; {option('task', task)} needs pairs, a question and the text that "
            f"answers it: name two columns ({option('columns', ('question', 'passage'))})"
        )
    _require_two(len(pairs), "queries")
    texts = list(dict.fromkeys(document.pair or "" for document in pairs))
    place = {text: i for i, text in enumerate(texts)}
    own = [place[document.pair or ""] for document in pairs]
    ranks = []
    for loaded in (dense, small):
        queries, answers = (
            glue.embeddings(
                loaded.model, _rows(loaded, [Document(text) for text in side], how, length), pooling(loaded)
            )
            for side in ([document.text for document in pairs], texts)
        )
        ranks.append(glue.reciprocal_ranks(queries, answers, own))
    golds = np.ones(len(pairs))
    first = [(each == 1.0).astype(np.float64) for each in ranks]
    scores = (("MRR", ranks), ("recall at 1", first))
    scored = [Scored(name, mean_score, each[0], each[1], golds) for name, each in scores]
    return scored, {"predictions": predictions_of(dense), "texts": len(texts)}, []


# --- SQuAD --------------------------------------------------------------------------------------------------


def _squad(task: str, dense: Loaded, small: Loaded, how: Options, length: int) -> Answered:
    for loaded in (dense, small):
        if not type(loaded.model).__name__.endswith("QuestionAnswering"):
            raise PlanDoesNotFit(f"{loaded.name} is a {type(loaded.model).__name__}, which does not mark answers")
    questions = squad_questions(task, how.data, limit=how.limit)
    _require_two(len(questions), "questions")
    stride = min(STRIDE, length // 3) if how.stride is None else how.stride
    reading = Reading(length, stride, how.longest, how.n_best, how.batch_size)
    readers = [(dense.model, dense.processor), (small.model, small.processor or dense.processor)]
    answers = [answer_questions(model, processor, questions, reading) for model, processor in readers]
    settings: dict[str, Any] = {"stride": stride, "longest": how.longest, "n_best": how.n_best}
    if SQUAD[task] == 1:
        return list(_marked(questions, answers, 1, None)), settings, []
    settings["threshold"] = how.threshold
    scored = list(_marked(questions, answers, 2, how.threshold))
    best, settings["best_thresholds"] = _best(questions, answers)
    note = "the best thresholds were chosen on these questions: what they reach is a bound, not a held-out figure"
    return [*scored, *best], settings, [note]


def _marked(
    questions: Sequence[squad.Question],
    answers: Sequence[dict[str, squad.Answer]],
    version: int,
    threshold: float | None,
) -> Iterator[Scored]:
    """Exact match and F1 of both models; in version 2 also by kind of question."""
    dense, small = (squad.mark(questions, _texts(each, threshold), version=version) for each in answers)
    kinds = {"": np.ones(len(questions), dtype=bool)}
    if version == 2:
        kinds |= {" (answerable)": np.array(dense.answerable), " (unanswerable)": ~np.array(dense.answerable)}
    for suffix, chosen in kinds.items():
        if np.count_nonzero(chosen) < 2:
            continue
        for name, a, b in (("exact match", dense.exact, small.exact), ("F1", dense.f1, small.f1)):
            values = (np.array(a)[chosen], np.array(b)[chosen])
            yield Scored(name + suffix, mean_score, *values, np.ones(np.count_nonzero(chosen)))


def _texts(answers: dict[str, squad.Answer], threshold: float | None) -> dict[str, str]:
    if threshold is None:
        return {name: answer.text for name, answer in answers.items()}
    return squad.silenced(answers, threshold)


def _best(
    questions: Sequence[squad.Question], by_model: Sequence[dict[str, squad.Answer]]
) -> tuple[list[Scored], dict[str, Any]]:
    """Scores at the thresholds that are best on these questions, for each model its own."""
    scored, thresholds = [], {}
    ones = np.ones(len(questions))
    for name, kind in (("exact match", "exact"), ("F1", "f1")):
        values, cuts = [], []
        for answers in by_model:
            raw = getattr(squad.mark(questions, _texts(answers, None), version=2), kind)
            cuts.append(squad.best_threshold(questions, answers, raw).value)
            values.append(np.array(getattr(squad.mark(questions, squad.silenced(answers, cuts[-1]), version=2), kind)))
        scored.append(Scored(f"{name} at the best threshold", mean_score, values[0], values[1], ones))
        thresholds[name] = {"dense": cuts[0], "small": cuts[1]}
    return scored, thresholds


# --- perplexity ---------------------------------------------------------------------------------------------


def _text(task: str, dense: Loaded, small: Loaded, how: Options, length: int) -> Answered:
    if not is_language_model(dense.model):
        raise PlanDoesNotFit(f"{dense.name} is a {type(dense.model).__name__}, which does not predict the next token")
    if not reads_alike(dense, small):
        raise PlanDoesNotFit(
            f"{small.name} reads other tokens than {dense.name}, so perplexities per token do not compare; leave "
            f"{option('task')} out: then both are measured in bits per byte"
        )
    rows = text_rows(task, how.data)
    windows = token_windows(task, rows, dense.processor, length)[: how.limit]
    _require_two(len(windows), f"windows of {length:,} tokens")
    batches = token_batches(windows, batch_size=max(1, how.batch_size // 4))
    a, b = (perplexity(loaded.model, batches) for loaded in (dense, small))
    tokens = np.array(a.tokens_per_window, dtype=np.float64)
    nll = (np.array(a.nll_per_window), np.array(b.nll_per_window))
    notes = [] if length == LENGTH["text"] else [f"windows of {length:,} tokens; the papers use {LENGTH['text']:,}"]
    if task == "wikitext2" and any("<unk>" in row for row in rows):
        notes.append("rare words of this text are <unk>; the papers use the raw text (wiki.test.raw)")
    return [Scored("perplexity", perplexity_score, *nll, tokens, "lower", 1.0)], {"tokens": a.tokens}, notes
