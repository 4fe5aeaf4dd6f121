"""Attention over k keys in trained models, without training and with a little: what it costs in quality, what in time.

    python benchmarks/retrofit.py minilm          results/retrofit-minilm.json
    python benchmarks/retrofit.py smollm2         results/retrofit-smollm2.json

All layers get the same treatment (the recipe `long-context` would leave the worst ones alone). Text is WikiText-2,
test; what is fitted is fitted on valid. Times are CPU time of one thread, the same text for every method, so that
neighbours on the machine count little; the Amdahl cap is what a method that took no time at all in attention would
gain. The grid and the minutes expected are printed first, and what is not run with the reason. Cells are kept, a second
run continues.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from cells import PACKAGE, code_hash, settings_hash, write_json
from models import cache_folder
from recipes import shared_file
from retrofit_methods import Fitted, Layer, grouped, methods
from slimformer.calibrate.text import Batch
from slimformer.decompose.sequence_stream import Grouping
from slimformer.inspect.rows import identity_error, row_spaces
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from slimformer.nn.long_context import padding_mask
from slimformer.report.rows import rows_report

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Grid:
    """What is run on one model: tokens of text at every length, numbers of keys, and which methods for each."""

    model: str
    lengths: tuple[int, ...]
    tokens: int
    ks: dict[str, tuple[int, ...]]  # method → numbers of keys
    window: int | None
    minutes: float
    shape: tuple[int, int, int]  # heads, those of keys, and the width of one
    spaces: tuple[int, int]  # length and number of texts row spaces are looked at on
    not_run: dict[str, str]


DEAR = ("learned", "least-squares", "oracle")  # at the shortest length only
NOT_BOTH = "mixes all tokens of a text, so a decoder would see the future"
GRIDS = {
    "minilm": Grid(
        "demo:minilm", (256, 512), 2048,
        {
            "jl": (32, 64, 128), "mean": (32, 64, 128), "least-squares": (64,), "plain": (32, 64, 128),
            "no-mass": (32, 64, 128), "cluster": (32, 64, 128), "second": (32, 64, 128), "learned": (64,),
            "oracle": (64,),
        },
        None, 5, (12, 12, 32), (128, 16),
        {
            "learned, least-squares at other k and n": "each takes a fit of minutes; one answers whether it helps",
            "oracle at other k and n": "72 decompositions for each text",
            "max pooling, convolution": "nothing to start from in a model that was not trained with them",
        },
    ),
    "smollm2": Grid(
        "demo:smollm2", (1024, 2048), 2048,
        {
            "cluster": (128, 64, 256), "window": (4,), "mean": (128,), "plain": (128,), "second": (128,),
            "no-mass": (128,),
        },
        256, 5, (9, 3, 64), (128, 4),
        {
            "jl": NOT_BOTH, "least-squares": NOT_BOTH, "learned": NOT_BOTH,
            "oracle": "270 decompositions of 1,024² or 2,048² for each text; see MiniLM for the floor",
            "n = 4,096": "as long as both other lengths together; give --lengths 4096",
        },
    ),
}  # fmt: skip


class Clock:
    """CPU seconds spent inside."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds += time.process_time() - start


@contextmanager
def attention_by(model: Any, attend: Callable[[int, Layer], Tensor]) -> Iterator[None]:
    """Let every attention of `model` be `attend(layer, what it is given)`."""

    def forward(module: Any, query: Tensor, key: Tensor, value: Tensor, _mask: Any, **kwargs: Any) -> Any:
        given = Layer(query, key, value, float(kwargs["scaling"]), bool(module.is_causal))
        return attend(module.layer_idx, given).transpose(1, 2), None

    AttentionInterface.register("slimformer_bench", forward)
    AttentionMaskInterface.register("slimformer_bench", padding_mask)
    model.set_attn_implementation("slimformer_bench")
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


def windows(loaded: Loaded, part: str, n: int, tokens: int) -> Tensor:
    """Texts of n tokens, evenly over the file; encoders get their first and last token."""
    text = shared_file("data", "wikitext2", f"{part}.txt").read_text(encoding="utf-8")
    count = max(1, tokens // n)
    pieces, encoder = [], loaded.model.config.model_type == "bert"
    for i in range(count):
        start = i * (len(text) // count)
        ids = loaded.processor(text[start : start + 12 * n], add_special_tokens=False)["input_ids"]
        if encoder:
            ids = [loaded.processor.cls_token_id, *ids[: n - 2], loaded.processor.sep_token_id]
        pieces.append(torch.tensor(ids[:n]))
    return torch.stack(pieces)


@torch.no_grad()
def run(loaded: Loaded, texts: Tensor, attend: Callable[[int, Layer], Tensor]) -> dict[str, Any]:
    """One text at a time: logits' loss or pooled states, and the seconds in attention and in all."""
    inside, whole, found = Clock(), Clock(), []

    def timed(i: int, given: Layer) -> Tensor:
        with inside.running():
            return attend(i, given)

    encoder = loaded.model.config.model_type == "bert"
    with attention_by(loaded.model, timed):
        for ids in texts:
            with whole.running():
                out = loaded.model(input_ids=ids[None], **({} if encoder else {"use_cache": False}))
            if encoder:
                found.append(out.last_hidden_state[0].mean(0))
            else:
                scores = out.logits[0, :-1].log_softmax(-1)
                found.append(-scores.gather(1, ids[1:, None]).mean())
    return {"found": torch.stack(found), "attention": inside.seconds, "total": whole.seconds}


@torch.no_grad()
def layer_errors(loaded: Loaded, text: Tensor, attend: Callable[[int, Layer], Tensor]) -> list[float]:
    """‖Y − Ŷ‖ / ‖Y‖ of every layer's attention on one text, the inputs being exact."""
    errors: dict[int, float] = {}

    def see(i: int, given: Layer) -> Tensor:
        exact = given.exact()
        errors[i] = float((exact - attend(i, given)).norm() / exact.norm())
        return exact

    with attention_by(loaded.model, see):
        loaded.model(input_ids=text[None], **({} if loaded.model.config.model_type == "bert" else {"use_cache": False}))
    return [round(errors[i], 4) for i in sorted(errors)]


def cell(loaded: Loaded, n: int, grid: Grid, name: str, k: int, dense: dict[str, Any]) -> dict[str, Any]:
    """One method at one length and k."""
    texts = windows(loaded, "test", n, grid.tokens)
    seen = windows(loaded, "valid", n, (100 if name == "learned" else 4) * grid.tokens)
    fitted = Fitted(loaded.model, seen, partial(attention_by, loaded.model))
    attend = methods(name, k, grid.window, n, fitted)
    errors = layer_errors(loaded, texts[0], attend)
    made = run(loaded, texts, attend)
    found = {"method": name, "n": n, "k": k, "errors": errors, "fit_seconds": round(fitted.seconds, 1)}
    if loaded.model.config.model_type == "bert":
        cosine = torch.nn.functional.cosine_similarity(made["found"], torch.tensor(dense["found"]))
        found |= {"cosine": round(float(cosine.mean()), 5), "worst_cosine": round(float(cosine.min()), 5)}
    else:
        found |= {"perplexity": round(float(made["found"].mean().exp()), 4)}
    return found | {"attention_seconds": round(made["attention"], 3), "total_seconds": round(made["total"], 3)}


def dense_cell(loaded: Loaded, n: int, grid: Grid) -> dict[str, Any]:
    """The model as it is: times, perplexity, and what others are compared with."""
    dense = run(loaded, windows(loaded, "test", n, grid.tokens), lambda _, given: given.exact())
    told: dict[str, Any] = {"n": n, "attention_seconds": round(dense["attention"], 3)}
    told |= {"total_seconds": round(dense["total"], 3), "found": dense["found"].tolist()}
    return told if grid.window is None else told | {"perplexity": round(float(dense["found"].mean().exp()), 4)}


def spaces(loaded: Loaded, n: int, count: int) -> dict[str, Any]:
    """How many keys every head needs, and how many would have to serve every text."""
    texts = windows(loaded, "test", n, n * count)
    batches = [Batch({"input_ids": ids[None], "attention_mask": torch.ones_like(ids[None])}, None) for ids in texts]
    return rows_report(row_spaces(loaded.model, describe(loaded.model), batches), 0.95) | {"sequences": count}


def alone(grid: Grid) -> list[dict[str, Any]]:
    """CPU seconds of one attention of this model's shape on random inputs, exact and over 128 groups and the window."""
    (heads, key_heads, d), how = grid.shape, Grouping(k=128, window=grid.window or 256)
    found = []
    for n in (1024, 2048, 4096, 8192):
        generator = torch.Generator().manual_seed(0)
        parts = (torch.randn(1, h, n, d, generator=generator) for h in (heads, key_heads, key_heads))
        x = Layer(*parts, d**-0.5, True)
        exact, ours = (_fastest(partial(attend, 0, x)) for attend in (lambda _, x: x.exact(), grouped(how)))
        found.append({"n": n, "k": how.k, "window": how.window, "exact_seconds": exact, "seconds": ours})
    return found


@torch.no_grad()
def _fastest(attend: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(3):
        clock = Clock()
        with clock.running():
            attend()
        times.append(clock.seconds)
    return round(min(times), 4)


def cells(which: str, grid: Grid) -> Iterator[tuple[str, int, int]]:
    """Method, length and k of everything that is asked for."""
    for n in grid.lengths:
        for name, ks in grid.ks.items():
            for k in ks if name not in DEAR or n == min(GRIDS[which].lengths) else ():
                yield name, n, k


def main(which: str, lengths: tuple[int, ...] | None, known: bool) -> None:
    grid = GRIDS[which] if lengths is None else replace(GRIDS[which], lengths=lengths)
    torch.set_num_threads(1)
    told = {"model": grid.model, "lengths": grid.lengths, "tokens": grid.tokens, "ks": grid.ks, "window": grid.window}
    print(f"grid: {told}\nexpected: {grid.minutes:g} minutes of one core", flush=True)
    names, not_run = ("sequence.py", "sequence_stream.py"), dict(grid.not_run)
    files = [*(PACKAGE / "decompose" / name for name in names), PACKAGE / "nn" / "projected_keys.py"]
    code = code_hash([*files, HERE / "retrofit_methods.py"])
    folder = cache_folder() / "retrofit" / f"{which}-{settings_hash({'tokens': grid.tokens, 'code': code})}"
    model, start = Lazily(grid.model), time.process_time()

    def kept(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        file = folder / f"{name}.json"
        if not file.is_file():
            write_json(file, make())
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    dense = {n: kept(f"dense-{n}", lambda n=n: dense_cell(model.loaded, n, grid)) for n in grid.lengths}  # type: ignore[misc]
    looked = kept("spaces", lambda: spaces(model.loaded, *grid.spaces))
    shape = kept("alone", lambda: {"rows": alone(grid)}) if grid.window else None
    rows = []
    for name, n, k in cells(which, grid):
        if known and not (folder / f"{name}-{n}-{k}.json").is_file():
            not_run[f"{name}, n = {n:,}, k = {k}"] = "the time was up"
            continue
        make = partial(lambda name, n, k: cell(model.loaded, n, grid, name, k, dense[n]), name, n, k)
        rows.append(kept(f"{name}-{n}-{k}", make))
        print(rows[-1], flush=True)
    for what, why in not_run.items():
        print(f"not run: {what}: {why}", flush=True)
    print(f"took {(time.process_time() - start) / 60:.1f} minutes of CPU", flush=True)
    identity = [{"n": n, "k": k, "error": round(identity_error(n, k), 3)} for n, k in ((512, 128), (2048, 128))]
    data = {
        "benchmark": "retrofit", "settings": told, "not_run": not_run, "rows": rows, "identity": identity,
        "dense": [{key: each[key] for key in each if key != "found"} for each in dense.values()], "spaces": looked,
        "alone": shape and shape["rows"],
    }  # fmt: skip
    write_json(RESULTS / f"retrofit-{which}.json", data, indent=1)


class Lazily:
    """A model that is loaded when a cell is missing."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def loaded(self) -> Loaded:
        return load_model(self.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(GRIDS))
    parser.add_argument("--lengths", type=int, nargs="*")
    parser.add_argument("--known", action="store_true", help="only put together what was run before")
    given = parser.parse_args()
    main(given.model, tuple(given.lengths) if given.lengths else None, given.known)
