"""What a model is made of, and how many keys its attention needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch

from slimformer.calibrate.documents import UNNAMED
from slimformer.calibrate.gather import Data, sequence_length
from slimformer.calibrate.text import Batch
from slimformer.checkpoint.atomic import require_free, writing
from slimformer.errors import SlimformerError, TooFewTokens
from slimformer.evaluate.report import strict
from slimformer.inspect.attention import full_rows
from slimformer.inspect.portrait import data_portrait, weights_portrait
from slimformer.inspect.rows import row_spaces
from slimformer.inspect.summary import inspection
from slimformer.messages.arguments import PATH, YES_OR_NO, Kind, check_arguments, whole
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.models.load import Loaded, open_for_work
from slimformer.models.opening import opening_in
from slimformer.models.sample_inputs import require_no_experts, require_one_stack
from slimformer.report.figures import draw, require_plotting
from slimformer.report.rows import rows_report
from slimformer.verbs.asked import MODEL_OR_LOADED, Model, ReadingOptions, read_for


def _are_names(value: Any) -> bool:
    several = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, str | Path) for each in several)


TOKENS = 8192  # to look at activations on
MOST_SETS = 4
SHORTEST = 4
Rows = dict[int, Sequence[Batch]]  # sequences of one length each, by that length
NAMES = Kind("the name of data, or a list of names", _are_names)
LENGTHS = Kind(
    f"a list of whole numbers from {SHORTEST}",
    lambda x: isinstance(x, list | tuple) and all(whole(SHORTEST).accepts(each) for each in x),
)


class LookOptions(ReadingOptions, total=False):
    """Attention over sequences of these `lengths` (the longest all data have), `sequences` of them; a folder for
    `figures` and all numbers, replaced with `force`; without `weights` their spectra are left out where neither data
    nor figures ask for them; the others say how data are read and the model is opened."""

    lengths: Sequence[int]
    sequences: int
    weights: bool
    figures: str | Path | None
    force: bool


@check_arguments(
    model=MODEL_OR_LOADED, data=NAMES, lengths=LENGTHS, sequences=whole(2), weights=YES_OR_NO,
    figures=replace(PATH, optional=True),
)  # fmt: skip
@torch.inference_mode(False)
def inspect(
    model: Model, data: str | Sequence[str] = (), *, progress: Progress = silent, **how: Unpack[LookOptions]
) -> dict[str, Any]:
    """Say what a model is made of and what can be cut: sizes, exact MACs and parameters, spectra, asymmetry of heads.

    Without `data` only weights are read. With them (up to four sets, side by side) also spectra of activations and of
    attention, compared with attention that means nothing, and how linear every feed-forward part is. Cost: a singular
    value decomposition of each matrix; with data some forward passes over `tokens`.

    >>> found = slimformer.inspect("llama")
    >>> len(found["weights"]), found["model_type"]
    (3, 'llama')
    """
    given: dict[str, Any] = dict(how)
    names = list(dict.fromkeys([str(data)] if isinstance(data, str | Path) else [str(each) for each in data]))
    figures, lengths, sequences = given.pop("figures", None), given.pop("lengths", ()), given.pop("sequences", 8)
    require_sets(names, lengths)
    force, spectra = given.pop("force", False), given.pop("weights", True)
    if figures is not None:
        require_plotting()
        require_free(Path(figures), force)
    loaded = open_for_work(model, given.pop("processor", None), opening_in(given))
    architecture, tokens = describe(loaded.model), given.pop("tokens", TOKENS)
    if names or figures is not None:  # they show spectra, of blocks with one attention
        require_one_stack(loaded.model.config, "inspect with data or figures")
        require_no_experts(loaded.model.config, "inspect with data or figures")
    length = sequence_length(loaded.model, architecture, given.pop("seq_len", None))
    read = partial(_read, loaded, given)
    rows = _attention_rows(read, names, sorted(set(lengths)), (length, sequences, tokens)) if names else {}
    texts = [read(name, length, tokens) for name in names]  # before the work: data may be refused
    portrait, whole = inspection(loaded, architecture, length), bool(names) or figures is not None
    portrait["weights"] = []
    if (whole or spectra) and not (architecture.family.reads_pairs or architecture.family.experts):
        portrait["weights"] = weights_portrait(loaded.model, architecture, values=whole, progress=progress)
    if names:
        portrait["data"] = [_look(loaded, each, rows[each.name], progress) for each in texts]
    if figures is not None:
        _draw(portrait, Path(figures), force)
    return portrait


@check_arguments(
    model=MODEL_OR_LOADED, data=NAMES, share=Kind("a fraction between 0 and 1", lambda x: 0 < x < 1),
    lengths=LENGTHS, sequences=whole(2),
)  # fmt: skip
@torch.inference_mode(False)
def attention(
    model: Model, data: str = UNNAMED, *, share: float = 0.95, progress: Progress = silent,
    **how: Unpack[LookOptions],
) -> dict[str, Any]:  # fmt: skip
    """Say how many keys attention needs, layer by layer and head by head, and whether the same serve every text.

    k is the least number of singular directions of P that keep Σᵢ≤ₖ σᵢ² ≥ share · Σ σᵢ². A fixed projection of the
    keys (Linformer) can be given to a trained model without training only if the same directions serve every text.
    Cost: a decomposition O(n³) for each head and sequence.

    >>> found = slimformer.attention("llama", "text.txt", lengths=[8])
    >>> [each["n"] for each in found["lengths"]]
    [8]
    """
    given: dict[str, Any] = dict(how)
    lengths, sequences = given.pop("lengths", ()), given.pop("sequences", 8)
    loaded = open_for_work(model, given.pop("processor", None), opening_in(given))
    architecture = describe(loaded.model)
    if architecture.family.image:
        raise SlimformerError("this looks along texts; for the attention of image models see slimformer inspect")
    require_one_stack(loaded.model.config, "this view of attention")
    length = sequence_length(loaded.model, architecture, None)
    read = partial(_read, loaded, given)
    rows = _attention_rows(read, [data], sorted(set(lengths)), (length, sequences, TOKENS))[data]
    seed = given.get("seed", 0)
    by_length = [
        rows_report(row_spaces(loaded.model, architecture, part, share=share, seed=seed, progress=progress), share)
        for part in rows.values()
    ]
    return {"model": loaded.name, "data": data, "share": share, "sequences": sequences, "lengths": by_length}


def require_sets(names: Sequence[str], lengths: Sequence[int]) -> None:
    """Refuse more data than stand side by side, and lengths of attention on none."""
    if len(names) > MOST_SETS:
        raise SlimformerError(f"{option('data')} names {len(names)} sets; up to {MOST_SETS} stand side by side")
    if lengths and not names:
        raise SlimformerError(f"{option('lengths')} are those of attention on data; give {option('data')}")


def _read(loaded: Loaded, given: dict[str, Any], name: str, length: int, tokens: int) -> Data:
    return read_for(loaded, name, {**given, "seq_len": length, "tokens": tokens})


def _attention_rows(
    read: Callable[[str, int, int], Data], names: Sequence[str], lengths: Sequence[int], how: tuple[int, int, int]
) -> dict[str, Rows]:
    """For every data set sequences of every length asked for; else of the longest that all of them have, by halving."""
    length, sequences, tokens = how

    def rows(name: str, n: int) -> Sequence[Batch]:
        splits = read(name, n, max(tokens, 4 * n * sequences)).splits.values()
        return full_rows([batch for part in splits for batch in part], n, sequences)

    if lengths:
        return {name: {n: rows(name, n) for n in lengths} for name in names}
    while True:
        try:
            return {name: {length: rows(name, length)} for name in names}
        except TooFewTokens:
            if length < 2 * SHORTEST:
                raise
            length //= 2


def _look(loaded: Loaded, given: Data, rows: Rows, progress: Progress) -> dict[str, Any]:
    """One data set: what flows through the model on it."""
    portrait = data_portrait(
        loaded.model, describe(loaded.model), given.splits, rows, seed=given.seed, progress=progress
    )
    facts = {"name": given.name, "hash": given.hash, "tokens": given.tokens["fit"], "seq_len": given.seq_len}
    return {**facts, **portrait}


def _draw(portrait: dict[str, Any], folder: Path, force: bool) -> None:
    with writing(folder, "inspection", force=force) as place:
        draw(portrait, place)
        stored = {"slimformer_inspection": 1, **portrait}
        (place / "inspection.json").write_text(json.dumps(strict(stored), allow_nan=False), encoding="utf-8")
