"""all-MiniLM-L6-v2 in 12 MB: fewer tokens, four bits, ONNX. What it takes, how fast it is, what it still finds.

This is what `make demo` runs. Nothing is trained and nothing is downloaded: tokens are counted and weights are rounded
on the built-in text. Sentences it is measured on are neither counted nor fitted.

    python benchmarks/demo.py [FOLDER]
"""

import sys
import time
from pathlib import Path

import onnxruntime
import torch
from transformers import AutoTokenizer
from transformers.utils import logging

import slimformer
from slimformer.calibrate.documents import read_documents
from slimformer.checkpoint.sentence import Pooling
from slimformer.export.asked import Target
from slimformer.export.graph import Graph, outputs_of
from slimformer.export.write import export_model
from slimformer.models.load import load_model

MODEL, TOKENS, VOCABULARY = "demo:minilm", 8192, 24_000
SENTENCES, QUERIES, ROUNDS, AT_ONCE = 400, 3, 3, 16


class InOnnx:
    """A folder that `slimformer export` wrote, on one thread."""

    def __init__(self, folder):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.file, self.tokenizer = Path(folder) / "model.onnx", AutoTokenizer.from_pretrained(folder)
        self.session = onnxruntime.InferenceSession(self.file, options, providers=["CPUExecutionProvider"])
        self.names = [each.name for each in self.session.get_inputs()]

    def encode(self, sentences):
        given = self.tokenizer(sentences, padding=True, truncation=True, max_length=128, return_tensors="np")
        found = self.session.run(["sentence_embedding"], {name: given[name] for name in self.names})
        return torch.from_numpy(found[0])


class InTorch:
    """The same model in torch."""

    def __init__(self, loaded):
        self.graph, self.tokenizer = Graph(loaded.model, Pooling("mean", normalize=True)).eval(), loaded.processor

    def encode(self, sentences):
        given = self.tokenizer(sentences, padding=True, truncation=True, max_length=128, return_tensors="pt")
        return outputs_of(self.graph, given)["sentence_embedding"]


def per_second(encoders, sentences):
    """Sentences a second, one at a time; encoders take turns, and the best of all rounds counts."""
    best = dict.fromkeys(encoders, float("inf"))
    for _ in range(ROUNDS):
        for name, encoder in encoders.items():
            started = time.perf_counter()
            for sentence in sentences:
                encoder.encode([sentence])
            best[name] = min(best[name], time.perf_counter() - started)
    return {name: len(sentences) / seconds for name, seconds in best.items()}


def embeddings(encoder, sentences):
    """One row for each sentence."""
    ordered = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))  # to pad little
    rows = [
        encoder.encode([sentences[i] for i in ordered[at : at + AT_ONCE]]) for at in range(0, len(ordered), AT_ONCE)
    ]
    return torch.cat(rows)[torch.tensor(ordered).argsort()]


def nearest(E):
    """For every sentence the others, the most similar first."""
    S = E @ E.T
    return S.fill_diagonal_(-1).argsort(dim=1, descending=True)


def megabytes(file):
    return Path(file).stat().st_size / 1e6


def main():
    """Make it, measure it beside the dense model, show both."""
    logging.disable_progress_bar()
    started, out = time.perf_counter(), Path(sys.argv[1] if len(sys.argv) > 1 else "demo-out")
    torch.set_num_threads(2)
    dense = load_model(MODEL)
    print(f"{MODEL}: {VOCABULARY:,} tokens stay, weights are rounded to four bits", flush=True)
    result = slimformer.compress(
        dense, "builtin", recipe="vocabulary", vocab=VOCABULARY, vocab_data="builtin", bits=4, group=64, tables=True,
        tokens=TOKENS, timing=False, settings={"vocabulary.refit": False},  # looking takes time
    )  # fmt: skip
    folder = result.save(out / "minilm", force=True)
    print("written and read again; now ONNX files of both", flush=True)
    export_model(dense, out / "dense-onnx", Target("onnx"), force=True)
    export_model(load_model(str(folder)), out / "minilm-onnx", Target("onnx", int4=True), force=True)

    sentences = [each.text for each in read_documents("builtin:sentences")][:SENTENCES]
    torch.set_num_threads(1)
    encoders = {
        "dense, torch": InTorch(dense),
        "dense, ONNX": InOnnx(out / "dense-onnx"),
        "12 MB": InOnnx(out / "minilm-onnx"),
    }
    sizes = {name: megabytes(encoder.file) for name, encoder in list(encoders.items())[1:]}
    sizes["dense, torch"] = 4e-6 * sum(each.numel() for each in dense.model.parameters())
    rates = per_second(encoders, sentences[:64])
    found = {name: embeddings(encoder, sentences) for name, encoder in encoders.items()}
    before = nearest(found["dense, torch"])

    print(f"\n{MODEL}, one thread, {len(sentences)} sentences that were neither counted nor fitted\n")
    print(f"{'':14s}{'MB':>7s}{'sentences/s':>13s}{'mean cosine':>13s}{'same nearest':>14s}{'among 3':>9s}")
    for name, E in found.items():
        cosine = float((E * found["dense, torch"]).sum(1).mean())
        after = nearest(E)
        same, close = (float((after[:, :1] == before[:, :n]).any(1).float().mean()) for n in (1, 3))
        print(f"{name:14s}{sizes[name]:7.1f}{rates[name]:13.0f}{cosine:13.3f}{same:14.0%}{close:9.0%}")

    print("\nsentence, its nearest before, its nearest after:")
    after = nearest(found["12 MB"])
    for i in range(QUERIES):
        print(f"\n  {sentences[i][:100]}")
        for order in (before, after):
            print(f"    → {sentences[int(order[i, 0])][:96]}")
    print(f"\n{out / 'minilm'} opens in transformers and sentence-transformers, {out / 'minilm-onnx'} in ONNX Runtime")
    print(f"{time.perf_counter() - started:.0f} seconds")


if __name__ == "__main__":
    main()
