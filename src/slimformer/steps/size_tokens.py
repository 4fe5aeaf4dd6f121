"""Fewer tokens, where a size is asked for: what tables no longer take is left to the blocks.

Some sizes of the vocabulary are tried. What one of them loses is measured, on whole texts of the select split; what the
blocks lose in the room that is then left for them is predicted, for every way to store weights. With h the harm of a
model with all tokens that was made, P what the probes say of its blocks, and p of those that now fit,

    loss = loss of the vocabulary + κ (h + min(1, h / P) (p − P)),     κ = loss / h of the best model with all tokens,

so that what was measured corrects the probes, and rounding counts for what it did. The best by prediction is made. It
is taken where it does lose less on these texts than the best with all tokens, so it is never worse there. The blocks
are the same, so their statistics and curves are not made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from slimformer.calibrate.broad import FIT_SHARE, SELECT_SHARE, broad_documents, shares_nothing_with
from slimformer.calibrate.counts import tokens_in_texts
from slimformer.calibrate.documents import Document
from slimformer.calibrate.gather import CHARACTERS, first_characters
from slimformer.errors import BudgetOutOfReach, RankTooHigh, UnknownMethod
from slimformer.models.architecture import fingerprint
from slimformer.models.pieces import Pieces, pieces_of
from slimformer.plan import Budget
from slimformer.plan.sensitivity import predicted_harm
from slimformer.plan.settings import CutSettings
from slimformer.run import Run
from slimformer.steps.make import make_plan, read_probes, storable
from slimformer.steps.quantize import Quantize
from slimformer.steps.refine import Refine
from slimformer.steps.size import Room, bytes_of, fitting, said, storing, ways_that_fit
from slimformer.steps.vocabulary import REFITTED, Vocabulary
from slimformer.steps.vocabulary_refit import CHOOSING, loss

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the tokens


Outlook = Callable[[Quantize | None, float], float | None]  # of a way to store, and a share of the blocks


@dataclass(frozen=True)
class Guess:
    """So many tokens, weights stored so, and what that is expected to lose; `alone` is what the vocabulary loses."""

    tokens: int
    rounding: Quantize | None
    share: float
    alone: float
    loss: float

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens, **said(self.rounding), "share": self.share, "alone": self.alone, "loss": self.loss,
        }  # fmt: skip


def with_fewer_tokens(run: Run, best: Run, settings: CutSettings, room: Room) -> Run:
    """The model with fewer tokens that is expected to lose least, if it does lose less than `best`, which has all.

    Cost: a pass of both models over some texts for every size of the vocabulary, and one more model.
    """
    pieces = _editable(run, settings)
    if pieces is None:
        return best
    texts = _texts_to_choose_on(run)
    before = loss(run.loaded, replace(run.loaded, model=best.model), texts, run.seq_len)
    if before <= 0:
        return best
    with run.timed("vocabulary"):
        counts = _counts(run)
        outlook = _outlook(run, best, settings, room, before)
        tried = _guesses(run, room, outlook, pieces, counts, texts)
    facts: dict[str, Any] = {"all": before, "fewer": None, "tokens": [each.to_json() for each in tried]}
    least = min(tried, key=lambda each: each.loss, default=None)
    smaller = None
    if least is not None and least.loss < before:
        smaller = _made(run, settings, room, least, counts)
        if smaller is not None:
            facts["fewer"] = loss(run.loaded, replace(smaller.loaded, model=smaller.model), texts, run.seq_len)
    sizing = best.sections["sizing"]
    if smaller is None or facts["fewer"] >= before:
        return best.reporting(sizing={**sizing, "losses": facts})
    assert least is not None
    entry = {**said(least.rounding), "params": smaller.decided.params, "bytes": bytes_of(smaller), "harm": None}
    return smaller.reporting(sizing={**sizing, "losses": facts, "chosen": {**entry, "tokens": least.tokens}})


def _editable(run: Run, settings: CutSettings) -> Pieces | None:
    """The tokens, where some can be taken out, nobody said how many, and there are probes to predict with."""
    chosen = any(isinstance(step, Vocabulary) for step in run.before)
    others = any(not isinstance(step, Refine | Quantize) for step in run.after)
    if chosen or others or settings.allocation != "greedy" or run.data is None or not run.data.countable:
        return None
    try:
        Vocabulary(cover=1.0).require_possible(run)
        return pieces_of(run.loaded.processor)
    except UnknownMethod:
        return None


def _counts(run: Run) -> Counter[int]:
    """Tokens of all text to fit on, and of the broad text, which weighs half as much."""
    assert run.data is not None
    counts = tokens_in_texts(run.data.countable, run.loaded.processor)
    if run.data.mixed is None:
        return counts
    rows, held_out = not run.data.windows, [each for texts in run.data.texts.values() for each in texts]
    broad = broad_documents("fit", rows=rows, allowed=shares_nothing_with(held_out))
    others = tokens_in_texts(broad, run.loaded.processor)
    weight = max(1, round(others.total() / (FIT_SHARE * max(1, counts.total()))))
    return Counter({token: weight * count for token, count in counts.items()}) + others


def _texts_to_choose_on(run: Run) -> list[Document]:
    """Whole texts of the select split, and half as much broad text where that is chosen on, too."""
    assert run.data is not None
    own = first_characters(run.data.texts["select"], CHARACTERS * CHOOSING)
    if not run.data.reading.get("broad"):
        return own
    allowed = shares_nothing_with([each for texts in run.data.texts.values() for each in texts])
    broad = broad_documents("select", rows=not run.data.windows, allowed=allowed)
    both = [*own, *first_characters(broad, int(SELECT_SHARE * CHARACTERS * CHOOSING))]
    return [replace(each, number=i) for i, each in enumerate(both)]


def _guesses(
    run: Run, room: Room, outlook: Outlook, pieces: Pieces, counts: Counter[int], texts: list[Document]
) -> list[Guess]:
    """Vocabularies from large to small with their best way to store weights, until one alone loses more than another
    with its blocks."""
    guesses: list[Guess] = []
    for share in SHARES:
        step = Vocabulary(keep=int(share * len(pieces)))
        try:
            smaller, order = step.smaller(run.loaded, pieces, counts)
        except BudgetOutOfReach:  # specials and characters are more
            break
        alone = loss(run.loaded, smaller, texts, run.seq_len)
        if guesses and alone >= min(each.loss for each in guesses):
            break
        ways = ways_that_fit(replace(run, loaded=smaller, model=smaller.model), room)
        losses = [(alone + extra, way, part) for way, part in ways if (extra := outlook(way, part)) is not None]
        if losses:
            lost, way, part = min(losses, key=lambda each: each[0])
            guesses.append(Guess(len(order), way, part, alone, lost))
    return guesses


def _outlook(run: Run, best: Run, settings: CutSettings, room: Room, before: float) -> Outlook:
    """What the models with all tokens, `tried` for the size, and the probes say of others."""
    probes, tried = read_probes(run.known), best.sections["sizing"]["candidates"]

    def probed(way: Quantize | None, share: float) -> float | None:
        try:
            plan = make_plan(run, Budget(share, "params"), storable(storing(run, way), settings))
        except (BudgetOutOfReach, RankTooHigh):
            return None
        return predicted_harm(probes, run.curves, plan.sizes)

    ways = {_key(way): way for way, _ in ways_that_fit(run, room)}
    made = {key: each for each in tried if (key := (each["bits"], each["tables"])) in ways}
    known = {key: (each["harm"], probed(ways[key], each["params"]) or 0.0) for key, each in made.items()}
    least = min(known.values())
    per_harm = before / least[0] if least[0] > 0 else 0.0

    def expected(way: Quantize | None, share: float) -> float | None:
        p = probed(way, share)
        h, P = known.get(_key(way), (0.0, 0.0))
        if p is None:
            return None
        trust = _trust(h, P) if _key(way) in known else _trust(*least)
        return per_harm * max(0.0, h + trust * (p - P))

    return expected


def _key(way: Quantize | None) -> tuple[int | None, bool]:
    told = said(way)
    return told["bits"], told["tables"]


def _trust(harm: float, predicted: float) -> float:
    """What of a prediction came true; more than all of it was rounding."""
    return min(1.0, harm / predicted) if predicted > 0 else 1.0


def _made(run: Run, settings: CutSettings, room: Room, guess: Guess, counts: Counter[int]) -> Run | None:
    """The model with these tokens that fits; none where the format cannot go so low."""
    assert run.data is not None
    with run.timed("vocabulary"):
        documents = first_characters(run.data.countable, REFITTED)
        smaller = Vocabulary(keep=guess.tokens).shrunk(run, counts, documents)
    same = replace(run.known, provenance=replace(run.known.provenance, fingerprint=fingerprint(smaller.dense)))
    smaller = replace(smaller, statistics=same)
    return fitting(storing(smaller, guess.rounding), settings, room.size, guess.share, guess.rounding)
