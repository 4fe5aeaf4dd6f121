"""What is low-rank in real models? Spectra of weights, activations and attention, and what pruning them does.

    python benchmarks/spectra.py                         all four models (about eight minutes of one core)
    python benchmarks/spectra.py stories260K minilm      some of them; the others keep the figures they have

Three statements about trained transformers are put to the test:

    decay     the first layers decay fastest
    pruned    80 to 90 % of the singular values can go
    size      larger models are more low-rank

and the figure of Linformer (energy of the first quarter of the singular values of attention) is drawn again with nulls.
Directions are found on the *fit* split, harm is measured on the *report* split: other documents. Results go to
benchmarks/results/spectra.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from cells import write_json
from recipes import shared_file
from slimformer.calibrate.gather import Data, Reading, gather
from slimformer.evaluate.fidelity import state_similarity
from slimformer.evaluate.perplexity import perplexity
from slimformer.inspect.activations import StreamSpectrum, observe
from slimformer.inspect.attention import attention_spectra, full_rows
from slimformer.inspect.heads import head_factors
from slimformer.inspect.portrait import weights_portrait
from slimformer.linalg.moments import Moments
from slimformer.linalg.symmetry import shared_basis, symmetry_error_on_data
from slimformer.messages.quiet import quieten_libraries
from slimformer.models import Architecture, describe
from slimformer.models.load import Loaded, load_model

RESULTS = Path(__file__).parent / "results" / "spectra.json"
LENGTH, SEQUENCES, SEED = 128, 8, 0
KEPT = (0.1, 0.2, 0.5, 0.8)
READ = {"context": "attn.heads", "neurons": "ffn.hidden"}  # streams that one matrix reads, and its site


@dataclass(frozen=True)
class Subject:
    """A model and the text it is looked at on."""

    model: str
    data: tuple[str, ...]
    tokens: int = 4096
    report: int = 2048


STORIES, WIKI = ("data", "tinystories_sample", "tinystories_sample.txt"), ("data", "wikitext2", "valid.txt")
SUBJECTS = {
    "stories260K": Subject("models/stories260K", STORIES),
    "stories15M": Subject("models/stories15M", STORIES),
    "minilm": Subject("demo:minilm", WIKI),
    "smollm2": Subject("demo:smollm2", WIKI, tokens=3072, report=512),
}


def opened(subject: Subject) -> tuple[Loaded, Architecture, Data]:
    """The model, its widths, and its data in splits."""
    name = subject.model
    folder = name if name.startswith("demo:") else shared_file(*name.split("/"), "config.json").parent
    loaded = load_model(folder)
    architecture = describe(loaded.model)
    file = str(shared_file(*subject.data))
    how = {"seq_len": LENGTH, "tokens": subject.tokens, "seed": SEED}
    data = gather(file, loaded.model, loaded.processor, architecture, Reading(**how))
    return loaded, architecture, data


def measure(subject: Subject) -> dict[str, Any]:
    """All figures of one model."""
    start = time.process_time()
    loaded, architecture, data = opened(subject)
    model: Any = loaded.model
    weights = weights_portrait(model, architecture)
    streams, bases, on_data = activations(model, architecture, data)
    rows = full_rows([b for part in data.splits.values() for b in part], LENGTH, SEQUENCES)
    attention = [layer(block) for block in attention_spectra(model, architecture, rows, seed=SEED)]
    return {
        "model": loaded.name if loaded.name.startswith("demo:") else Path(loaded.name).name,
        "data": "/".join(subject.data[1:]),
        "causal": architecture.family.causal,
        "blocks": architecture.n_blocks,
        "hidden": architecture.hidden,
        "params": sum(p.numel() for p in model.parameters()),
        "tokens": {split: data.tokens[split] for split in ("fit", "report")},
        "weights": [{k: v for k, v in block.items() if k not in ("rms", "norms")} for block in weights],
        "activations": streams,
        "symmetry_on_data": on_data,
        "attention": {"length": LENGTH, "sequences": len(rows), "blocks": attention},
        "decay": decay(weights, streams, attention),
        "pruned": pruned(model, architecture, data, bases, subject.report),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def activations(
    model: Any, architecture: Architecture, data: Data
) -> tuple[list[dict[str, Any]], dict[str, Tensor], list[list[float]]]:
    """Spectra of streams by block; the directions of what readers read, best first; errors of symmetric scores."""
    streams, bases, errors = [], {}, []
    for block in observe(model, architecture, data.splits["fit"]):
        found = {name: StreamSpectrum.of(m).to_json() for name, m in block.moments.items()}
        streams.append({name: {k: v for k, v in one.items() if k != "values"} for name, one in found.items()})
        for name, kind in READ.items():
            bases[f"blocks.{block.block}.{kind}"] = directions(block.moments[name])
        entered, factors = block.moments["attention in"], head_factors(model, architecture, block.block)
        T, m = shared_basis(entered.second(centred=False), entered.second(centred=True))
        errors.append([round(x, 4) for x in symmetry_error_on_data(factors.W_q, factors.W_k, T, m).tolist()])
    return streams, bases, errors


def directions(moments: Moments) -> Tensor:
    """Right singular vectors of the rows as columns, largest singular value first; about zero, as no bias is needed."""
    return torch.linalg.eigh(moments.second(centred=False).float()).eigenvectors.flip(-1)


def layer(block: Any) -> dict[str, Any]:
    """What the tables need of one block's attention."""
    found = block.to_json()
    keys = ("energy_sum", "energy_squares")
    return {
        **{key: found[key] for key in (*keys, "shared", "effective_rank")},
        "nulls": {name: {key: round(fmean(null[key]), 4) for key in keys} for name, null in found["nulls"].items()},
    }


def decay(
    weights: Sequence[dict[str, Any]], streams: Sequence[dict[str, Any]], attention: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """For each spectrum: the block that needs the smallest share of its rank, and how the share goes with depth."""
    shares: dict[str, list[float]] = {}
    for name in ("qk", "vo", "up", "down"):
        shares[f"weights {name}"] = [block["groups"][name]["rank95"] for block in weights]
    for name in streams[0]:
        shares[f"activations {name}"] = [block[name]["rank99"] for block in streams]
    shares["attention"] = [fmean(block["effective_rank"]) / LENGTH for block in attention]
    return {
        name: {
            "least": min(range(len(values)), key=values.__getitem__),
            "first": values[0],
            "mean": fmean(values),
            "last": values[-1],
            "with_depth": round(float(spearmanr(range(len(values)), values).statistic), 3),
        }
        for name, values in shares.items()
    }


@torch.no_grad()
def pruned(
    model: Any, architecture: Architecture, data: Data, bases: dict[str, Tensor], report: int
) -> list[dict[str, Any]]:
    """Harm on the report split when every matrix that reads heads or neurons sees a share of the directions only."""
    batches, read = [], 0
    for batch in data.splits["report"]:
        if read < report:
            batches.append(batch)
            read += batch.tokens
    cells = [{"kept": 1.0, **quality(model, model, architecture, batches)}]
    for kept in KEPT:
        small = copy.deepcopy(model)
        for site in architecture:
            U = bases[site.name]
            P = U[:, : max(1, round(kept * U.shape[1]))]
            reader: Any = small.get_submodule(site.reader)
            reader.weight.copy_(reader.weight @ P @ P.mT)
        cells.append({"kept": kept, **quality(model, small, architecture, batches)})
    return cells


def quality(dense: Any, small: Any, architecture: Architecture, batches: Sequence[Any]) -> dict[str, float]:
    """Perplexity of a language model; cosine to the dense sentence embeddings of an encoder."""
    if architecture.family.causal:
        return {"ppl": perplexity(small, batches).ppl}
    cosine = state_similarity(dense, small, batches).cosine_pooled
    assert cosine is not None
    return {"cosine": cosine}


def main() -> int:
    """Measure the models named, keep what is known of the others, write the file after each."""
    parser = argparse.ArgumentParser(description="Spectra of real models, and what pruning them does.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(SUBJECTS)} (default: all)")
    names = parser.parse_args().names or list(SUBJECTS)
    quieten_libraries()
    torch.manual_seed(SEED)
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["models"] if RESULTS.is_file() else {}
    for name in names:
        if name not in SUBJECTS:
            print(f"spectra.py: there is no model {name!r}; choose from {', '.join(SUBJECTS)}", file=sys.stderr)
            return 2
        known[name] = measure(SUBJECTS[name])
        settings = {
            "length": LENGTH, "sequences": SEQUENCES, "seed": SEED, "kept": KEPT,
            "versions": {package: version(package) for package in ("slimformer", "torch", "transformers")},
        }  # fmt: skip
        models = {subject: known[subject] for subject in SUBJECTS if subject in known}
        write_json(RESULTS, {"benchmark": "spectra", "settings": settings, "models": models})
        print(f"{name}: {known[name]['cpu_seconds']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
