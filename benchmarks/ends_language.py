"""Language models at equal MB, with all tokens and with fewer: bits per byte of text they were not calibrated on.

Tokens change, so perplexity of a token says nothing; perplexity of a byte is 2 to the power of bits per byte. Tokens
are counted on the text that is calibrated on, and no text is in both that and the report. Everything is stored in eight
bits, tables too, and the blocks of the model with fewer tokens are whole: its size is what the other is given, which
then pays with widths.

    python benchmarks/ends_language.py smollm2       WikiText-2, valid to calibrate and count, test to report
    python benchmarks/ends_language.py stories15M    TinyStories; what `--size` chooses by itself is the third way

The larger one is calibrated on little text and cut by heads and neurons, without a correction, so that it takes
minutes. Results: benchmarks/results/ends.json, `language`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slimformer
from cells import HERE, write_json
from recipes import END_OF_STORY, shared_file, stories_split
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.gather import first_characters
from slimformer.evaluate.by_text import compare_texts
from slimformer.models.load import Loaded, load_model
from slimformer.steps.result import Result

NARROW = {"bits": 8, "group": 64, "tables": True}
NEAREST = {"quantize.method": "nearest"}
QUICKLY = {"cut.attention": "heads", "cut.ffn": "neurons"}
ARTICLES, BEGINNING = 20, 1200  # characters of each


@dataclass(frozen=True)
class Subject:
    """A language model, text to calibrate and count on, text to report on, and how much of it."""

    model: str
    data: Path
    report: list[Document]
    vocab: int
    tokens: int
    seq_len: int
    quickly: bool


def subject(name: str, scratch: Path) -> Subject:
    """One of the two models with its text."""
    if name == "stories15M":
        parts = [text.split(END_OF_STORY) for text in stories_split()]
        (scratch / "stories.jsonl").write_text("\n".join(json.dumps({"text": story}) for story in parts[0]))
        held_out = [Document(story.strip(), number=i) for i, story in enumerate(parts[1])]
        folder, some = shared_file("models", name, "config.json").parent, first_characters(held_out, 60_000)
        return Subject(str(folder), scratch / "stories.jsonl", some, 16_384, 16_384, 256, False)
    articles = read_documents(shared_file("data", "wikitext2", "test.txt"))[:ARTICLES]
    some = [Document(each.text[:BEGINNING], number=i) for i, each in enumerate(articles)]
    return Subject("demo:smollm2", shared_file("data", "wikitext2", "valid.txt"), some, 24_576, 2048, 256, True)


def measured(result: Result, dense: Loaded, about: Subject, seconds: float) -> dict[str, Any]:
    """Size, and bits per byte with the interval of the difference to the dense model."""
    small = Loaded(dense.name, result.model, result.loaded.processor)
    (metric,) = compare_texts(dense, small, about.report, about.seq_len)
    chosen = (result.report.vocabulary or {}).get("keep")
    return {
        "mb": result.report.small.bytes / 1e6, "bits": metric.small, "dense": metric.dense,
        "difference": [metric.low, metric.high], "params": result.plan.params, "vocabulary": chosen, "seconds": seconds,
    }  # fmt: skip


def ways(name: str, scratch: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every way of one model, the one with fewer tokens first: it says how large all are."""
    about = subject(name, scratch)
    dense = load_model(about.model)
    how: dict[str, Any] = {
        "tokens": about.tokens, "seq_len": about.seq_len, "timing": False, "only_data": True,
    }  # fmt: skip

    def made(**way: Any) -> tuple[Result, float]:
        started = time.perf_counter()
        result = slimformer.compress(dense, str(about.data), **how, **way)
        return result, round(time.perf_counter() - started)

    fewer, seconds = made(
        recipe="vocabulary", vocab=about.vocab, vocab_data=str(about.data), settings=NEAREST, **NARROW
    )
    room = fewer.report.small.bytes
    yield f"{about.vocab:,} tokens, all widths", measured(fewer, dense, about, seconds)
    del fewer
    for title, free in (("all tokens, fewer widths", False), ("what --size chooses", True)):
        if free and about.quickly:
            continue  # takes as long again
        settings = {**NEAREST, "cut.fewer_tokens": free, **(QUICKLY if about.quickly else {})}
        result, seconds = made(settings=settings, size=room, refine=not about.quickly, **NARROW)
        yield title, measured(result, dense, about, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["smollm2", "stories15M"])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for title, row in ways(asked.model, Path(scratch)):
            rows[title] = row
            print(title, row, flush=True)
            results = json.loads((asked.out / "ends.json").read_text("utf-8"))
            results.setdefault("language", {})[asked.model] = rows
            write_json(asked.out / "ends.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
