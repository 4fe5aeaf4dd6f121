"""Whatever a file holds, reading it ends well or with one of our errors: the readers, and ways to spoil what they read.

A target has a good file, and a function that reads a spoilt one from a folder. What it raises must be a
`SlimformerError`: anything else would be a traceback to a user.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml

from families import tiny
from ranked import ranked
from slimformer.calibrate.documents import parse_labels, read_documents
from slimformer.calibrate.gather import gather
from slimformer.calibrate.store import open_statistics
from slimformer.checkpoint.load import load
from slimformer.checkpoint.save import save
from slimformer.decompose.rounding import Grid
from slimformer.errors import SlimformerError
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.head_file import read_head
from slimformer.lab.grid import expand
from slimformer.lab.settings import load_experiment
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import load_model
from slimformer.plan.plan import Plan, check_fits, recounted
from slimformer.plan.recipe import load_recipe, text_of
from slimformer.quantize.apply import quantized
from slimformer.quantize.pack import packed
from slimformer.stages import calibrate, make_plan, profile, recipe_of
from terminal import save_tiny, texts, write_table

SECONDS = 20  # after which a reader counts as hung
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**63, -(2**70), 1e308, -0.5, float("nan"), float("inf"), "", "x",
    "../../etc/passwd", "\x00", "\ud800", "w" * 5000, [], {}, [[]], [1, "a"], {"a": {"b": []}}, [0] * 300,
)  # fmt: skip
LAB = """
name: spoilt
task: image-classes
datasets: {digits: {source: digits, set: {epochs: 3}}}
model: {model_type: vit, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, patch_size: 4}
variants: {wide: {hidden_size: 32}, narrow: {}}
grid: {optimiser.lr: [0.1, 0.01]}
seeds: [0, 1]
epochs: 2
batch_size: 128
"""
ODD_BYTES = (b"\x00", b"\xff\xfe", b"\r", b'"', b"\n\n", b"&a [*a,*a]", b"{" * 2000, b"9" * 400)


@dataclass(frozen=True)
class Target:
    """A file by name, as it should be, and what reads it."""

    name: str
    good: bytes
    read: Callable[[Path], object]  # given the folder it is in
    around: Path | None = None  # what lies beside it
    label: str = ""  # where a name says too little


# --- spoiling ---------------------------------------------------------------------------------------------------


def spoilt(good: bytes, draw: random.Random, *, structured: bool) -> bytes:
    """A file with something wrong in it: a value of it another, or bytes lost, changed, doubled."""
    if structured and draw.random() < 0.7:
        try:
            return json.dumps(_other_value(_parsed(good), draw)).encode("utf-8", "surrogatepass")
        except ValueError:
            pass
    data = bytearray(good)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = draw.randbytes(draw.randint(1, 20))
            case 2:
                data[at : at + 1] = draw.randbytes(1)
            case 3:
                data[at:at] = data[at : at + draw.randint(1, 200)]
            case 4:
                del data[at : at + draw.randint(1, 50)]
            case _:
                data[at:at] = draw.choice(ODD_BYTES)
    return bytes(data)


@functools.cache
def _parsed(good: bytes) -> Any:
    """JSON or YAML; what it holds is copied before it is changed."""
    try:
        return json.loads(good)
    except ValueError:
        return yaml.safe_load(good)


def _other_value(value: Any, draw: random.Random) -> Any:
    """The same with one part of it replaced, removed or doubled."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    if not places:
        return draw.choice(ODD)
    for _ in range(draw.randint(1, 2)):
        holder, key = draw.choice(places)
        try:
            match draw.randrange(4):
                case 0:
                    del holder[key]
                case 1 if isinstance(holder, list):
                    holder.append(holder[key])
                case 2 if isinstance(holder, dict):
                    holder[draw.choice(["x", "", key + "s"])] = holder[key]
                case _:
                    holder[key] = copy.deepcopy(draw.choice(ODD))
        except (KeyError, IndexError):
            continue
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


# --- trying -----------------------------------------------------------------------------------------------------


class Hung(BaseException):
    """A reader took far too long; not an `Exception`, so that nothing below swallows it."""


def attempt(target: Target, draw: random.Random, folder: Path) -> str:
    """Read a spoilt file: 'read' or 'refused'. Any error that is not ours goes up."""
    shutil.rmtree(folder, ignore_errors=True)
    if target.around is not None:
        shutil.copytree(target.around, folder)
    folder.mkdir(parents=True, exist_ok=True)
    structured = target.name.endswith((".json", ".yaml"))
    (folder / target.name).write_bytes(spoilt(target.good, draw, structured=structured))
    with _in_time():
        try:
            target.read(folder)
        except SlimformerError as error:
            assert str(error).strip() and "\n" not in str(error), f"not one line: {error!r}"
            return "refused"
    return "read"


@contextmanager
def _in_time() -> Iterator[None]:
    def ring(_number: int, _frame: object) -> None:
        raise Hung(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- what is read -----------------------------------------------------------------------------------------------


def _read_plan(folder: Path) -> None:
    plan = Plan.from_json((folder / "plan.json").read_text(encoding="utf-8", errors="surrogateescape"))
    recipe_of(plan)
    model = _llama()
    check_fits(plan, describe(model), fingerprint(model))
    recounted(plan, describe(model))


@functools.cache
def _llama() -> Any:
    return tiny("llama")


def _read_statistics(folder: Path) -> None:
    statistics = open_statistics(folder)
    statistics.weights()
    for i in range(statistics.provenance.n_blocks)[:3]:
        statistics.block(i)
    statistics.probes()


def _read_model(folder: Path) -> None:
    describe(load_model(folder).model)


def _read_checkpoint(folder: Path) -> None:
    load(folder)
    describe(load_model(folder).model)


def _read_lab(folder: Path) -> None:
    expand(load_experiment(folder / "lab.yaml"), folder)


def _read_head(folder: Path) -> None:
    read_head(folder / "head.safetensors")


def _read_data(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        documents = read_documents(folder / name)
        with_label = [document.label for document in documents if document.label is not None]
        parse_labels(with_label)

    return read


def targets(root: Path) -> dict[str, Target]:
    """All of them; good files are made below `root`."""
    model = save_tiny(root / "llama", "llama")
    shards = root / "shards"
    tiny("llama").save_pretrained(shards, max_shard_size="20KB")
    loaded = load_model(model)
    data = gather(texts(60), loaded.model, loaded.processor, describe(loaded.model), tokens=400)
    statistics = calibrate(loaded, data, root / "stats", joint=True)
    recipe = load_recipe("balanced").model_copy(update={"metric": "squares"})
    curves = profile(loaded.model, statistics, recipe)
    plan = make_plan(loaded.model, statistics, curves, macs=0.6, recipe=recipe).to_json().encode()
    head = AnalyticHead("lda").fit(torch.randn(40, 6), [i % 3 for i in range(40)])
    head.save(root / "head.safetensors")
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts(12))]
    write_table(root / "rows.tsv", 12)
    pq.write_table(pa.Table.from_pylist(rows), root / "rows.parquet")
    found = [
        Target("plan.json", plan, _read_plan),
        Target("recipe.yaml", text_of("balanced").encode(), lambda folder: load_recipe(str(folder / "recipe.yaml"))),
        Target("head.safetensors", (root / "head.safetensors").read_bytes(), _read_head),
        Target("rows.jsonl", "\n".join(map(json.dumps, rows)).encode(), _read_data("rows.jsonl")),
        Target("rows.json", json.dumps(rows).encode(), _read_data("rows.json")),
        Target("rows.tsv", (root / "rows.tsv").read_bytes(), _read_data("rows.tsv")),
        Target("rows.csv", (root / "rows.tsv").read_bytes().replace(b"\t", b","), _read_data("rows.csv")),
        Target("rows.parquet", (root / "rows.parquet").read_bytes(), _read_data("rows.parquet")),
        Target("text.txt", "\n\n".join(texts(12)).encode(), _read_data("text.txt")),
    ]
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        found.append(Target(name, (model / name).read_bytes(), _read_model, model))
    index = "model.safetensors.index.json"
    found.append(Target(index, (shards / index).read_bytes(), _read_model, shards))
    for name in ("stats.json", "loudness.json", "moments/block-000.safetensors"):
        found.append(Target(name, (root / "stats" / name).read_bytes(), _read_statistics, root / "stats"))
    for label, folder in made_models(root).items():
        for name in ("config.json", "model.safetensors"):
            found.append(Target(name, (folder / name).read_bytes(), _read_checkpoint, folder, f"{name}, {label}"))
    found.append(Target("lab.yaml", LAB.encode(), _read_lab))
    return {target.label or target.name: target for target in found}


def made_models(root: Path) -> dict[str, Path]:
    """Checkpoints as we write them: with sizes of their own in each block and a rank, and in four bits."""
    save(ranked(tiny("llama"), "narrow keys"), root / "ragged", verify=False)
    found = quantized(tiny("llama"), Grid(4, 16), method="nearest")
    save(found.model, root / "bits", packed=packed(found, found.model), verify=False)
    return {"ragged": root / "ragged", "four bits": root / "bits"}
