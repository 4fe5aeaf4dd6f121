"""Every command on every kind of folder the package writes: it works and says what is true, or is refused in one line.

`TABLE` says what is expected of each cell: a dot where the command works, a letter where it is refused with the words
of `REFUSALS`. A cell that changes its mind fails, whichever way it changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.utils.flop_counter import FlopCounterMode

import slimformer as package
from families import LENGTH
from slimformer.models import describe
from terminal import Said, done, save_sentences, save_subwords, save_tiny, slimformer, write_table, write_texts

TABLE = """
                   dense plain heads ranks rank0 paths linear depth grouped bits8 bits4 ragged4 sparse streamed lossless adapted cascade encoder0 projected tables healed vocabulary shorter replaced
inspect              .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
inspect --data       .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
attention            .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
compress             .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
compress plain       .     .     D     D     D     D      D     .      G      .     .      D       .       D        .       .       C        D        G        .      D        .        D        J
compress bits        .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
compress depth       .     .     S     S     S     S      S     .      G      .     .      S       .       S        .       .       C        S        G        .      S        .        S        J
compress lossless    .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
compress replace     .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
compress memory      .     .     .     .     .     .      .     .      G      M     M      M       .       .        .       .       C        .        G        M      .        .        .        J
long-context         .     .     B     B     B     B      B     .      B      .     .      B       .       B        .       .       C        B        B        .      B        .        B        B
dry run              .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
calibrate            .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        .        J
plan                 .     .     .     .     .     .      .     .      N      .     .      .       .       .        .       .       N        .        N        .      .        .        .        N
apply                .     .     .     .     .     .      .     .      N      .     .      .       .       .        .       .       N        .        N        .      .        .        .        N
cut                  .     .     .     .     .     .      .     .      N      .     .      .       .       .        .       .       N        .        N        .      .        .        .        N
frontier             .     .     .     .     .     .      .     .      N      .     .      .       .       .        .       .       N        .        N        .      .        .        .        N
sweep                .     .     .     .     .     .      .     .      N      .     .      .       .       .        .       .       N        .        N        .      .        .        .        N
cascade              .     .     .     .     .     .      .     .      G      .     .      .       .       .        .       .       C        .        G        .      .        .        V        J
eval                 .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
eval itself          .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
eval --task          .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        T        T        .      .        Z        T        .
bench                .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
quantize             .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
sparsify             .     .     .     .     .     .      .     .      .      R     R      R       .       .        .       .       C        .        .        R      .        .        .        .
heal                 .     .     .     .     .     .      .     .      G      H     H      H       .       .        .       .       C        .        G        H      .        Y        .        .
probe                .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
match                .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        .        .        .      .        .        .        .
adapt                .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        L        L        .      .        .        L        .
export gguf          W     W     W     O     O     O      O     W      X      W     W      O       W       O        W       W       C        F        X        W      W        .        F        _
push                 U     .     .     .     .     .      .     .      .      .     .      .       .       .        .       U       K        .        .        .      .        .        .        .
report               A     .     .     .     .     .      .     .      .      .     .      .       .       .        .       A       E        .        .        .      .        .        .        .
compress vocab       I     I     I     I     I     I      I     I      I      I     I      I       I       I        I       I       C        I        I        I      I        .        I        I
quantize tables      .     .     .     .     .     .      .     .      .      .     .      .       .       .        .       .       C        Q        Q        .      .        .        Q        .
families check       .     .     P     P     P     P      P     .      .      .     .      P       .       P        .       .       C        P        .        .      P        .        P        P
families discover    .     .     P     P     P     P      P     .      .      .     .      P       .       P        .       .       C        P        .        .      P        .        P        P
"""  # noqa: E501
REFUSALS = {
    "A": "give a folder `compress` wrote",
    "B": "this model was cut or grouped before; start from the dense model",
    "C": "is a cascade of two models; give its small/ or its large/",
    "D": "the blocks of this model differ in size already, so plain sizes are out; use --format ragged",
    "E": "is the report of a cascade, of which no page is made",
    "F": "GGUF is for language models of the types",
    "G": "runs over groups of keys (the recipe long-context), and cuts do not follow that; start from the dense model",
    "H": "its weights are in fewer bits already, and training would leave them; heal first, then quantize",
    "J": "feed-forward parts of this model were replaced (the step replace), and cuts do not follow that",
    "K": "is a cascade of two models, and push sends one with its report",
    "L": "has no language-model head to adapt",
    "M": "its weights are packed in fewer bits, and unpacked whole; leave --memory out",
    "N": "holds no statistics; make them with `slimformer calibrate`",
    "O": "and GGUF knows whole heads and neurons alone",
    "R": "its weights are in fewer bits already; sparsify first, then quantize",
    "S": "the blocks of this model differ in size; drop blocks of the dense model first",
    "T": "does not predict the next token",
    "U": "is no finished checkpoint of slimformer: it holds no plan.json",
    "W": "GGUF holds tokenizers by BPE, and this one is of kind WordLevel; export to onnx or torch",
    "I": "the tokenizer is of kind WordLevel, which cannot write a word it has no token for",
    "P": "was cut before, and a family is proved on whole blocks; give the model it was made from",
    "Q": "has no table of 256 rows or more; leave it out",
    "V": "gives neither the probabilities of classes nor of next tokens, so there is no entropy to route by",
    "_": "were replaced (the step replace), and GGUF has no word for what stands there; export to onnx or torch",
    "X": "runs over groups of keys, which other runtimes cannot say; export the model it was made from",
    "Y": "so it cannot learn from it token by token",
    "Z": "so perplexities per token do not compare",
}
EXPORTS = {"grouped": "X", "projected": "X", "cascade": "C"}  # the others go to ONNX and torch

EXPECTED: dict[str, dict[str, str]] = {}
_header, *_rows = TABLE.strip().splitlines()
FOLDERS = _header.split()
for _row in _rows:
    *_name, _cells = _row[:19].strip(), _row[19:].split()
    EXPECTED[_name[0]] = dict(zip(FOLDERS, _cells, strict=True))

ENCODERS = ("encoder0", "projected", "shorter")
SOURCES = {"vocabulary": "subwords", "shorter": "sentences"}  # other models than `bert` and `dense`
BRIEF = ("--tokens", 600)
UNTIMED = (*BRIEF, "--no-timing")


@dataclass(frozen=True)
class Shop:
    """Where folders are made, each when it is first asked for."""

    root: Path

    def data(self, name: str) -> tuple[object, ...]:
        return ("--data", self.root / ("table.tsv" if name in ENCODERS else "text.txt"))

    def source(self, name: str) -> Path:
        """The trained model a folder was made from."""
        return self.root / SOURCES.get(name, "bert" if name in ENCODERS else "dense")

    def folder(self, name: str) -> Path:
        made = self.root / name
        if not made.exists():
            MAKERS[name](self, made)
        return made


def _compressed(*how: object) -> Callable[[Shop, Path], None]:
    def make(shop: Shop, folder: Path) -> None:
        model, data = shop.source(folder.name), shop.data(folder.name)
        refine = () if {"depth", "long-context", "replace-mlp"} & set(how) else ("--no-refine",)
        done("compress", model, *how, *refine, *data, *UNTIMED, "--out", folder, "-q")

    return make


def _command(command: str, *how: object) -> Callable[[Shop, Path], None]:
    def make(shop: Shop, folder: Path) -> None:
        done(command, shop.source(folder.name), *how, *shop.data(folder.name), *BRIEF, "--out", folder, "-q")

    return make


def _only(way: str) -> Callable[[Shop, Path], None]:
    """Attention is cut by heads alone, or by ranks alone."""

    def make(shop: Shop, folder: Path) -> None:
        recipe = shop.root / f"{way}.yaml"
        recipe.write_text(f"name: {way}\nsummary: {way}\nsteps: [{{cut: {{attention: {way}}}}}, refine]\n")
        _compressed("--macs", 0.6, "--recipe", recipe)(shop, folder)

    return make


def _without_ranks(shop: Shop, folder: Path) -> None:
    """A plan by ranks, edited by hand: the first block has no scores, the second no values either."""
    stats, plan = shop.root / f"{folder.name}-stats", shop.root / f"{folder.name}.json"
    recipe = shop.root / "ranks-everywhere.yaml"
    recipe.write_text("name: ranks\nsummary: ranks\nsteps: [{cut: {attention: ranks}}, refine]\n")
    done("calibrate", shop.source(folder.name), *shop.data(folder.name), *BRIEF, "--out", stats, "-q")
    done("plan", stats, "--macs", 0.4, "--recipe", recipe, "--out", plan, "-q")
    found = json.loads(plan.read_text())
    whole = {edit["site"][-2:]: {**edit, "keep": edit["of"], "groups": edit["of"]} for edit in found["edits"]}
    edits = {edit["site"]: edit for edit in found["edits"]}
    for i, role, keep in ((0, "qk", 0), (0, "vo", None), (1, "qk", 0), (1, "vo", 0)):
        kept = {} if keep is None else {"keep": keep, "groups": keep}
        site = f"blocks.{i}.attn.{role}"
        edits[site] = {**edits.get(site, whole[role]), "site": site, **kept}
    plan.write_text(json.dumps({**found, "edits": list(edits.values())}))
    done("apply", stats, plan, "--out", folder, "-q")


def _healed(shop: Shop, folder: Path) -> None:
    learning = ("--tokens", 400, "--rate", 1e-3, "--set", "heal.text=600")
    dense, data = shop.source(folder.name), shop.data(folder.name)
    done("heal", shop.folder("heads"), "--teacher", dense, *data, *learning, "--out", folder, "-q")


MAKERS: dict[str, Callable[[Shop, Path], None]] = {
    "dense": lambda shop, folder: None,
    "plain": _compressed("--macs", 0.7, "--format", "plain"),
    "heads": _only("heads"),
    "ranks": _only("ranks"),
    "rank0": _without_ranks,
    "paths": _compressed("--macs", 0.6, "--recipe", "bypass"),
    "linear": _compressed("--macs", 0.6, "--recipe", "linear-mlp"),
    "depth": _compressed("--macs", 0.7, "--recipe", "depth"),
    "grouped": _compressed(
        "--recipe", "long-context", "--k", 16, "--window", 16, "--seq-len", 64, "--keep-exact", 1
    ),
    "bits8": _command("quantize", "--bits", 8),
    "bits4": _command("quantize", "--bits", 4),
    "ragged4": _compressed("--macs", 0.6, "--bits", 4),
    "sparse": _command("sparsify"),
    "streamed": _compressed("--macs", 0.6, "--memory", "4GB"),
    "lossless": lambda shop, folder: done("compress", shop.source("lossless"), "--recipe", "lossless", "--out", folder),
    "adapted": _command("adapt"),
    "cascade": _command("cascade", "--macs", "0.6,1", "--no-refine"),
    "encoder0": _without_ranks,
    "projected": _compressed("--recipe", "long-context", "--k", 4, "--kind", "mean", "--keep-exact", 1),
    "tables": _command("quantize", "--bits", 4, "--tables"),
    "healed": _healed,
    "vocabulary": _compressed("--recipe", "vocabulary", "--vocab", 0.8),
    "shorter": _compressed("--recipe", "balanced", "--macs", 0.7, "--set", "embedding.dim=8"),
    "replaced": _compressed("--recipe", "replace-mlp", "--set", "replace.by=sphere", "--set", "replace.worst=1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    root = tmp_path_factory.mktemp("shop")
    save_tiny(root / "dense", "llama")
    save_tiny(root / "bert", "bert", "classify")
    save_subwords(root / "subwords")
    save_sentences(root / "sentences")
    write_texts(root / "text.txt")
    write_texts(root / "short.txt", n=12)
    write_table(root / "table.tsv")
    with pytest.MonkeyPatch.context() as patched:  # fresh processes take seconds each, and are tested elsewhere
        for place in ("checkpoint.save", "steps.streaming"):
            patched.setattr(f"slimformer.{place}.verify_reload", lambda *_: None)
        yield Shop(root)


@dataclass(frozen=True)
class Cell:
    """One command on one folder: where it may write, and what was said before it."""

    shop: Shop
    name: str
    place: Path

    @property
    def folder(self) -> Path:
        return self.shop.folder(self.name)

    @property
    def data(self) -> tuple[object, ...]:
        return self.shop.data(self.name)

    @property
    def model(self) -> Any:
        return package.load(self.folder)


def _numbers(found: Any) -> Iterator[float]:
    if isinstance(found, dict | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _numbers(each)
    elif isinstance(found, float):
        yield found


def _parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _inspected(cell: Cell, found: Any) -> None:
    """Parameters are those of the model, MACs those that torch counts when it runs."""
    model = cell.model
    assert found["params"]["total"] == _parameters(model)
    assert found["blocks"] == describe(model).n_blocks
    model.set_attn_implementation("eager")
    length = found["seq_len"]
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.randint(5, model.config.vocab_size, (1, length)))
    blocks = next(
        v for k, v in counter.flop_counts.items() if k.endswith(describe(model).stacks[0].path.split(".")[-2])
    )
    turned = sum(sum(v.values()) for k, v in counter.flop_counts.items() if k.endswith(".rotary_emb"))
    assert found["macs_per_token"]["blocks"] == (sum(blocks.values()) - turned) / (2 * length)


def _looked(cell: Cell, found: Any) -> None:
    for data in found["data"]:
        assert [block["block"] for block in data["activations"]] == list(range(found["blocks"]))


def _rows(cell: Cell, found: Any) -> None:
    for each in found["lengths"]:
        assert all(1 <= k <= each["n"] for layer in each["layers"] for k in layer["k_squares"])


def _made(cell: Cell, found: Any) -> None:
    """The report counts the model it was made from and the one that was written."""
    small = package.load(cell.place)
    assert found["small"]["params"] == _parameters(small)
    assert found["dense"]["params"] == _parameters(cell.model)
    assert found["macs_kept"] == pytest.approx(found["small"]["block_macs"] / found["dense"]["block_macs"])
    assert found["macs_kept"] <= found["budget"] + 1e-9


def _planned(cell: Cell, found: Any) -> None:
    assert found["macs"] <= found["budget"] + 1e-9


def _the_same_as_applied(cell: Cell, found: Any) -> None:
    one, other = (load_file(cell.place.parent / name / "model.safetensors") for name in ("apply", "cut"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _the_same(cell: Cell, found: Any) -> None:
    """Beside itself a model has no divergence, and agrees with itself."""
    for metric in found["metrics"]:
        assert metric["dense"] is None or metric["small"] == pytest.approx(metric["dense"])
        if metric["name"] == "kl":
            assert metric["small"] == pytest.approx(0, abs=1e-9)


def _benched(cell: Cell, found: Any) -> None:
    kept = found["kv_cache_bytes"]["small"]
    if cell.name != "grouped":  # whose cache is made of other things
        inspected = json.loads(done("inspect", cell.folder, "--seq-len", found["seq_len"], "--json").out)
        assert kept == inspected["kv_cache_bytes"]
    assert (kept > 0) == (cell.name not in ENCODERS)


def _stored(cell: Cell, found: Any) -> None:
    assert found["small"]["params"] == _parameters(package.load(cell.place)) == found["dense"]["params"]


def _replaced_one(cell: Cell, found: Any) -> None:
    assert found["small"]["params"] == _parameters(package.load(cell.place)) and found["replaced"]["blocks"]


def _stored_small(cell: Cell, found: Any) -> None:
    assert found["small"]["params"] == _parameters(package.load(cell.place)) and found["healing"]["won"]


def _sparse(cell: Cell, found: Any) -> None:
    weight = describe(cell.model).blocks[0].neurons[0].reader + ".weight"
    values = load_file(cell.place / "model.safetensors")[weight]
    assert not values.numel() or float((values == 0).float().mean()) >= 0.5


def _sent(cell: Cell, found: Any) -> None:
    assert found["url"] is None and "config.json" in json.dumps(found)


def _fewer_tokens(cell: Cell, found: Any) -> None:
    rows = package.load(cell.place).get_input_embeddings().num_embeddings
    assert rows == found["vocabulary"]["keep"] <= cell.model.get_input_embeddings().num_embeddings


def _proved(cell: Cell, found: Any) -> None:
    assert found["proofs"] and all(proof["holds"] for proof in found["proofs"])


def _discovered(cell: Cell, found: Any) -> None:
    """What is found out is a file that --family takes, and the model is described as it was."""
    said = json.loads(done("inspect", cell.folder, "--family", cell.place, "--json").out)
    assert said["params"] == json.loads(done("inspect", cell.folder, "--json").out)["params"]


def _shown(cell: Cell, found: Any) -> None:
    assert Path(found["page"]).read_text().startswith("<!doctype html>")


def _finite(cell: Cell, found: Any) -> None:
    assert all(math.isfinite(number) for number in _numbers(found))


@dataclass(frozen=True)
class Command:
    """What is typed after the name of the program, without --json, and what must be true of the answer."""

    line: Callable[[Cell], tuple[object, ...]]
    check: Callable[[Cell, Any], None] = _finite


def _cut(*how: object) -> Command:
    def line(cell: Cell) -> tuple[object, ...]:
        return ("compress", cell.folder, "--macs", 0.8, *how, *cell.data, *UNTIMED, "--out", cell.place)

    return Command(line, _made)


def _long(cell: Cell) -> tuple[object, ...]:
    sizes = ("--k", 4, "--kind", "mean") if cell.name in ENCODERS else ("--k", 16, "--window", 16, "--seq-len", 64)
    how = ("--recipe", "long-context", *sizes, "--keep-exact", 0)
    return ("compress", cell.folder, *how, *cell.data, *UNTIMED, "--out", cell.place)


def _replaced(cell: Cell) -> tuple[object, ...]:
    how = ("--recipe", "replace-mlp", "--set", "replace.worst=1")
    return ("compress", cell.folder, *how, *cell.data, *UNTIMED, "--out", cell.place)


def _stats(cell: Cell) -> Path:
    return cell.place.parent / "calibrate"


def _out(command: str, *how: object) -> Callable[[Cell], tuple[object, ...]]:
    return lambda cell: (command, cell.folder, *how, *cell.data, *BRIEF, "--out", cell.place)


def _of_stats(command: str, *how: object) -> Callable[[Cell], tuple[object, ...]]:
    return lambda cell: (command, _stats(cell), *how)


COMMANDS: dict[str, Command] = {
    "inspect": Command(lambda c: ("inspect", c.folder), _inspected),
    "inspect --data": Command(lambda c: ("inspect", c.folder, *c.data, "--tokens", 300, "--sequences", 2), _looked),
    "attention": Command(lambda c: ("attention", c.folder, *c.data, "--sequences", 2, "--lengths", 8), _rows),
    "compress": _cut(),
    "compress plain": _cut("--format", "plain", "--no-refine"),
    "compress bits": Command(_cut("--bits", 4, "--no-refine").line, _finite),
    "compress depth": _cut("--recipe", "depth"),
    "compress lossless": Command(
        lambda c: ("compress", c.folder, "--recipe", "lossless", "--out", c.place), _made
    ),
    "compress replace": Command(_replaced, _replaced_one),
    "compress memory": _cut("--memory", "4GB", "--no-refine"),
    "long-context": Command(_long, _stored),
    "dry run": Command(lambda c: ("compress", c.folder, "--macs", 0.8, "--dry-run"), _planned),
    "calibrate": Command(_out("calibrate")),
    "plan": Command(lambda c: ("plan", _stats(c), "--macs", 0.8, "--out", c.place), _planned),
    "apply": Command(lambda c: ("apply", _stats(c), c.place.parent / "plan", "--out", c.place), _made),
    "cut": Command(lambda c: ("cut", _stats(c), "--macs", 0.8, "--out", c.place), _the_same_as_applied),
    "frontier": Command(_of_stats("frontier", "--macs", "0.9,0.8")),
    "sweep": Command(lambda c: ("sweep", _stats(c), "--macs", 0.8, *c.data, *BRIEF)),
    "cascade": Command(_out("cascade", "--macs", "0.8,1", "--no-refine")),
    "eval": Command(lambda c: ("eval", c.folder, "--against", c.shop.source(c.name), *c.data, *UNTIMED)),
    "eval itself": Command(lambda c: ("eval", c.folder, "--against", c.folder, *c.data, *UNTIMED), _the_same),
    "eval --task": Command(
        lambda c: (
            "eval", c.folder, "--against", c.shop.source(c.name), "--task", "wikitext2", "--data",
            c.shop.root / "short.txt", "--seq-len", LENGTH,
        )
    ),
    "bench": Command(
        lambda c: (
            "bench", c.folder, "--against", c.shop.source(c.name), "--batch-sizes", 1, "--repeats", 1, "--new-tokens",
            2, "--seq-len", 8,
        ),
        _benched,
    ),
    "quantize": Command(_out("quantize"), _stored),
    "sparsify": Command(_out("sparsify"), _sparse),
    "heal": Command(
        lambda c: (
            "heal", c.folder, "--teacher", c.shop.source(c.name), *c.data, "--tokens", 400, "--rate", 1e-3, "--set",
            "heal.text=600", "--out", c.place,
        ),
        _stored_small,
    ),
    "probe": Command(lambda c: ("probe", c.folder, "--data", c.shop.root / "table.tsv", "--out", c.place)),
    "match": Command(
        lambda c: ("match", "--source", c.folder, "--target", c.folder, *c.data, "--method", "procrustes")
    ),
    "adapt": Command(_out("adapt")),
    "export gguf": Command(lambda c: ("export", c.folder, "--to", "gguf", "--out", c.place)),
    "push": Command(lambda c: ("push", c.folder, "me/it", "--dry-run"), _sent),
    "report": Command(lambda c: ("report", c.folder, "--out", c.place), _shown),
    "compress vocab": Command(
        lambda c: ("compress", c.folder, "--recipe", "vocabulary", "--vocab", 0.9, *c.data, *UNTIMED, "--out", c.place),
        _fewer_tokens,
    ),
    "quantize tables": Command(_out("quantize", "--tables"), _stored),
    "families check": Command(
        lambda c: ("families", "check", "bert" if c.name in ENCODERS else "llama", c.folder), _proved
    ),
    "families discover": Command(lambda c: ("families", "discover", c.folder, "--out", c.place), _discovered),
}  # fmt: skip


def _wrong(command: str, cell: Cell, expected: str) -> str:
    """What is not as the table has it, in a line; nothing where all is well."""
    try:
        said = slimformer(*COMMANDS[command].line(cell), "--json")
        if expected != ".":
            return _not_refused(said, REFUSALS[expected])
        if said.code:
            return said.err
        COMMANDS[command].check(cell, json.loads(said.out))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _not_refused(said: Said, words: str) -> str:
    one_line = said.err.startswith("slimformer: ") and said.err.count("\n") == 1 and not said.out
    as_told = said.code == 2 and one_line and words in said.err
    return "" if as_told else f"code {said.code}: {said.err or said.out[:200]}"


def test_the_table_has_a_row_for_every_command_and_a_column_for_every_folder():
    assert set(EXPECTED) == set(COMMANDS)
    assert set(FOLDERS) == set(MAKERS)
    commands = {command.name or command.callback.__name__ for command in package_commands()}
    typed = {row.split()[0] for row in COMMANDS} | {"compress"}
    assert commands - {name.strip("_") for name in typed} == {"steps"}  # which reads no folder


def package_commands() -> list[Any]:
    from slimformer.cli.app import app

    return app.registered_commands


@pytest.mark.parametrize("name", FOLDERS)
def test_every_command_takes_every_folder_or_says_why_not(name, shop, tmp_path):
    wrong = {}
    for command in COMMANDS:
        place = tmp_path / command.replace(" ", "-")
        if said := _wrong(command, Cell(shop, name, place), EXPECTED[command][name]):
            wrong[command] = said
    assert not wrong, "\n".join(f"{command} on {name}: {said}" for command, said in wrong.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("to", ["onnx", "torch"])
def test_every_folder_is_exported_with_the_same_outputs_or_refused(to, name, shop, tmp_path):
    said = slimformer("export", shop.folder(name), "--to", to, "--out", tmp_path / "out", "--json")
    if name in EXPORTS:
        assert not _not_refused(said, REFUSALS[EXPORTS[name]])
    else:
        assert said.code == 0, said.err
        assert json.loads(said.out)["verified"]
