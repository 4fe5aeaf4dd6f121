"""What a cut buys, for the three kinds of models people serve on processors: megabytes, speed, and what is lost.

    nice -n 19 python benchmarks/three_models.py --threads 1
    python benchmarks/three_models.py encoder --quick --out FOLDER     few tokens, to see that it runs

    encoder       all-MiniLM-L6-v2 at half its block MACs; Spearman on STS-B dev
    classifier    the same with a head solved on SST-2 (train, 10,000 sentences), at half; accuracy on SST-2 dev
    language      SmolLM2-135M at 80 %; perplexity on WikiText-2 test

Encoder and language model are cut on the built-in text, as `slimformer compress` does without `--data`, the classifier
on its sentences. Dense and cut model are timed in turns within one run: 128 tokens for encoder and classifier, a
prompt of 512 and 32 new ones for the language model. Every row is written when it is made, and found by the next run.
Results: benchmarks/results/three_models.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import slimformer
from cells import HERE, write_json
from elsewhere import Amount, encoder_judge, windows
from recipes import shared_file
from slimformer.calibrate.documents import Document, read_documents
from slimformer.calibrate.text import padded_batches
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.perplexity import perplexity
from slimformer.evaluate.speed import file_size
from slimformer.files.versions import versions
from slimformer.heads.attach import attach
from slimformer.heads.classify import probe
from slimformer.heads.features import Features
from slimformer.models.load import Loaded, load_model

SENTENCES = 10_000
TOKENS = {"encoder": 32_768, "classifier": 32_768, "language": 8_192}  # asked to be fitted on
Judge = Callable[[Any], float]
Opened = tuple[Loaded, Any, float, str, Judge]  # a model, its data, what is kept of it, what is measured, and how


def encoder(quick: bool) -> Opened:
    loaded = load_model("demo:minilm")
    judge = encoder_judge(loaded, Amount(pairs=60 if quick else 1_500, questions=10))
    return loaded, "builtin", 0.5, "STS-B, Spearman", lambda small: judge(small)["STS-B"]["value"]


def classifier(quick: bool) -> Opened:
    bare = load_model("demo:minilm")
    train = read_documents(shared_file("data", "sst2", "train_full.tsv"))[: 500 if quick else SENTENCES]
    dev = read_documents(shared_file("data", "sst2", "dev.tsv"))
    found = probe(bare, iter(train), Features(("cls",), (6,), seq_len=64))
    model = attach(bare.model, found.head, found.reading).eval()
    loaded = Loaded("all-MiniLM-L6-v2 with a head for SST-2", model, bare.processor)
    sentences = [Document(each.text) for each in train]
    return loaded, sentences, 0.5, "SST-2, accuracy", lambda small: right(small, loaded, dev)


def right(small: Any, loaded: Loaded, dev: list[Document]) -> float:
    """The share of sentences that are given their label."""
    batches = padded_batches(dev, loaded.processor, seq_len=64, label_ids=loaded.model.config.label2id)
    return accuracy(small, batches).value


def language(quick: bool) -> Opened:
    loaded = load_model("demo:smollm2")
    articles = read_documents(shared_file("data", "wikitext2", "test.txt"))
    test = windows(articles, loaded, 512, 1_024 if quick else 16_384)
    return loaded, "builtin", 0.8, "perplexity, WikiText-2", lambda small: perplexity(small, test).ppl


MODELS: dict[str, Callable[[bool], Opened]] = {"encoder": encoder, "classifier": classifier, "language": language}


def row(kind: str, quick: bool) -> dict[str, Any]:
    """Dense and cut: bytes of the weights, rates, quality."""
    loaded, data, macs, metric, judge = MODELS[kind](quick)
    result = slimformer.compress(loaded, data, macs=macs, tokens=512 if quick else TOKENS[kind], timing=False)
    with tempfile.TemporaryDirectory() as scratch:
        loaded.model.save_pretrained(Path(scratch) / "dense")
        size = {"dense": file_size(Path(scratch) / "dense"), "small": file_size(result.save(Path(scratch) / "small"))}
    lengths = {"seq_len": 512, "new_tokens": 32} if kind == "language" else {"seq_len": 128}
    timed = slimformer.bench(result.model, loaded, batch_sizes=[1], repeats=3 if quick else 15, **lengths)
    return {
        "kind": kind, "model": loaded.name, "macs": result.report.macs_kept, "bytes": size, "metric": metric,
        "quality": {"dense": judge(loaded.model), "small": judge(result.model)},
        "seq_len": timed.seq_len, "unit": timed.unit,
        "phases": {each.phase: {"dense": each.dense_rate, "small": each.small_rate, "ratio": each.ratio}
                   for each in timed.measurements},
        "tokens": result.report.data.get("tokens"),
    }  # fmt: skip


def main() -> None:
    """Every model that is not in the file yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[*MODELS, []], help="default: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    file = asked.out / "three_models.json"
    content = {"benchmark": "three_models", "threads": asked.threads, "versions": versions(), "rows": []}
    if file.is_file() and (known := json.loads(file.read_text()))["versions"] == content["versions"]:
        content = known
    for kind in asked.kinds or MODELS:
        if any(each["kind"] == kind for each in content["rows"]):
            continue
        content["rows"].append(row(kind, asked.quick))
        write_json(file, content)
        print(json.dumps(content["rows"][-1]), flush=True)


if __name__ == "__main__":
    main()
