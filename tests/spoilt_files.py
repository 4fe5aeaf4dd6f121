"""Good files of every kind, what our readers make of them, and the law a spoilt copy is held to.

Folders are made by the commands and read by the functions that the commands use.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

import second_readers as second
from families import tiny, tiny_plan
from ranked import ranked
from slimformer.calibrate.documents import read_documents
from slimformer.calibrate.of_model import moments_of, require_same_model
from slimformer.calibrate.store import open_statistics
from slimformer.checkpoint.cascade import CascadeRecord, Member, read_cascade, save_cascade
from slimformer.checkpoint.load import load
from slimformer.checkpoint.pack import packed
from slimformer.checkpoint.save import Belongings, copy_companions, save
from slimformer.decompose.rounding import Grid
from slimformer.errors import DataUnreadable
from slimformer.evaluate.report_file import read_report
from slimformer.heads.analytic import AnalyticHead
from slimformer.heads.head_file import SUMS, read_head, write_head
from slimformer.heads.match import match
from slimformer.heads.match_file import read_match, write_match
from slimformer.heal.work import Work
from slimformer.lab.grid import expand
from slimformer.lab.settings import load_experiment
from slimformer.lab.state import Progress, load_state, save_state
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import fingerprint
from slimformer.models.families import family_yaml, read_family
from slimformer.models.load import load_model
from slimformer.plan.plan import Plan, check_fits
from slimformer.recipe import cut_settings, load_recipe
from slimformer.recipes import text_of
from slimformer.rewrite.quantize import quantized
from slimformer.steps.calibration import profile
from slimformer.steps.make import read_probes, settings_of
from slimformer.steps.result import plan_of
from slimformer.steps.streaming_job import Job, read_note
from spoiling import Target
from terminal import done, files, save_sentences, save_subwords, save_tiny, texts, write_table, write_texts

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
AGREED = True  # what a reader gives that has compared with the second one itself


def targets(root: Path) -> dict[str, Target]:
    """All of them; good files are made below `root`."""
    model = save_tiny(root / "llama", "llama")
    statistics, result = _statistics(root, model)
    found = [*_single(root, result), *_data(root), *_strangers(root, model), *_later(root)]
    names = ["stats.json", "error_weights.json", "probes.json", "moments/block-000.safetensors"]
    found += [_beside(name, statistics, _read_statistics) for name in names]
    (curves,) = statistics.glob("curves-*.json")
    found.append(Target(curves.name, curves.read_bytes(), _read_statistics, statistics, "curves.json", fresh=True))
    for label, folder in _checkpoints(root).items():
        found += [_beside(name, folder, _read_checkpoint, label) for name in ("config.json", "model.safetensors")]
    found += [_beside(name, result, _read_result, "result") for name in ("report.json", "plan.json", "tokenizer.json")]
    found.append(_beside("cascade.json", _cascade(root), _read_cascade))
    return {target.label or target.name: target for target in found}


def _later(root: Path) -> list[Target]:
    """A family as its file, notes of a healing, and folders with fewer tokens, with tables in few bits and with shorter
    embeddings."""
    family = Target("family.yaml", family_yaml(FAMILIES["llama"]).encode(), _read_family, second=lambda _: AGREED)
    Work(root).keep("block-000", {"kept": True, "loss": 0.25}, {"weight": torch.arange(12.0)})
    note = Target("block-000.note", (root / "block-000.note").read_bytes(), _read_note)
    vocabulary, tables, shorter = _fewer_tokens(root), root / "tables", _shorter(root)
    done("quantize", root / "llama", "--tables", "--method", "nearest", *_brief(root), "--no-verify", "--out", tables)
    found = [family, note]
    for label, folder, names in (
        ("vocabulary", vocabulary, ("config.json", "model.safetensors", "tokenizer.json", "report.json")),
        ("tables", tables, ("config.json", "model.safetensors")),
        ("shorter", shorter, ("modules.json", "2_Dense/model.safetensors", "2_Dense/config.json")),
    ):
        read = _read_sentences if label == "shorter" else _read_tokens_and_weights
        found += [_beside(name, folder, read, label) for name in names]
    return found


def _beside(name: str, folder: Path, read: Callable[[Path], object], label: str = "") -> Target:
    return Target(name, (folder / name).read_bytes(), read, folder, f"{name}, {label}" if label else "")


# --- single files of ours -----------------------------------------------------------------------------------------


def _single(root: Path, result: Path) -> list[Target]:
    torch.manual_seed(0)
    write_head(AnalyticHead("lda").fit(torch.randn(40, 6), [i % 3 for i in range(40)]), root / "head.safetensors")
    X = torch.randn(60, 5)
    write_match(match(X, X @ torch.randn(5, 4) + torch.randn(60, 4)), root / "match.safetensors")
    run = expand(load_experiment(_written(root / "lab.yaml", LAB)), root)[0]
    model, optimiser = _training()
    progress = Progress(3, 1.5, 1.25, 0.75, 2, [{"loss": 0.5}])
    save_state(root / "state.safetensors", _made_of(run), progress, model, optimiser)
    Job(root, resumed=False).finish("calibrate", 0.125)
    (note,) = (root / "notes").iterdir()
    return [
        Target("plan.json", (result / "plan.json").read_bytes(), _read_plan, second=second.plan),
        Target("recipe.yaml", text_of("balanced").encode(), _read_recipe, second=lambda _: AGREED),
        Target("lab.yaml", LAB.encode(), _read_lab, second=lambda _: AGREED),
        Target("head.safetensors", (root / "head.safetensors").read_bytes(), _read_head),
        Target("match.safetensors", (root / "match.safetensors").read_bytes(), _read_match),
        Target("state.safetensors", (root / "state.safetensors").read_bytes(), _read_state),
        Target("note.json", note.read_bytes(), lambda folder: read_note(folder / "note.json")),
    ]


def _brief(root: Path) -> tuple[object, ...]:
    return ("--data", root / "text.txt", "--tokens", 600, "-q")


def _fewer_tokens(root: Path) -> Path:
    """A result of --vocab."""
    model = save_subwords(root / "subwords")
    how = ("--recipe", "vocabulary", "--vocab", 0.9, "--set", "vocabulary.refit=false", "--no-timing")
    done("compress", model, *how, *_brief(root), "--out", root / "vocabulary")
    return root / "vocabulary"


def _shorter(root: Path) -> Path:
    """A result of the step `embedding`."""
    model = save_sentences(root / "sentences")
    how = ("--macs", 0.8, "--no-refine", "--set", "embedding.dim=8", "--no-timing")
    done("compress", model, *how, *_brief(root), "--out", root / "shorter")
    return root / "shorter"


def _read_family(folder: Path) -> bool:
    return second.agree(second.family_holds, read_family(folder / "family.yaml"), folder / "family.yaml")


def _read_note(folder: Path) -> dict[str, Any]:
    found = Work(folder).recall("block-000")
    if found is None:  # the block is done again, which is how this file is refused
        raise DataUnreadable("there is no note to go on with")
    return {"note": found[0], **found[1]}


def _read_tokens_and_weights(folder: Path) -> dict[str, Any]:
    loaded = load_model(folder)
    text = "w7 the w8"
    return {**_whole(loaded.model), "ids": loaded.processor(text)["input_ids"], "report": read_report(folder)}


def _read_sentences(folder: Path) -> dict[str, Any]:
    """What the next result would be given along."""
    loaded = load_model(folder)
    with tempfile.TemporaryDirectory() as other:
        copy_companions(loaded.companions, Path(other))
        return {name: list(content) for name, content in files(Path(other)).items()}


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _read_plan(folder: Path) -> dict[str, Any]:
    plan = Plan.load(folder / "plan.json")
    settings_of(plan)
    check_fits(plan, describe(_llama()), fingerprint(_llama()))
    said = dataclasses.asdict(plan)
    return {key: value for key, value in said.items() if key not in second.COUNTED}


@functools.cache
def _llama() -> Any:
    return tiny("llama")


def _read_recipe(folder: Path) -> bool:
    recipe = load_recipe(folder / "recipe.yaml")
    return second.agree(second.recipe_holds, recipe, folder / "recipe.yaml")


def _read_lab(folder: Path) -> bool:
    experiment = load_experiment(folder / "lab.yaml")
    expand(experiment, folder)
    return second.agree(second.yaml_holds, experiment, folder / "lab.yaml")


def _read_head(folder: Path) -> dict[str, Any]:
    head = read_head(folder / "head.safetensors")
    sums = {name: getattr(head.moments_, name) for name in SUMS[type(head.moments_)]}
    return {"params": head.get_params(), "classes": head.classes_.tolist(), **sums, **vars(head.solution())}


def _read_match(folder: Path) -> dict[str, Any]:
    found = read_match(folder / "match.safetensors")
    sides = {"source": vars(found.source), "target": vars(found.target)}
    return {"method": found.method, "strength": found.strength, **sides}


def _training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    return model, optimiser


def _made_of(run: Any) -> dict[str, str]:
    return {"digest": run.digest(), "data": "0"}


def _read_state(folder: Path) -> dict[str, Any]:
    model, optimiser = _training()
    before = torch.get_rng_state()
    made_of = _made_of(expand(load_experiment(_written(folder / "lab.yaml", LAB)), folder)[0])
    progress = load_state(folder / "state.safetensors", made_of, model, optimiser)
    torch.set_rng_state(before)
    if progress is None:  # a training that begins anew, which is how this file is refused
        raise DataUnreadable("there is no state to go on with")
    moments = [dict(optimiser.state[parameter]) for parameter in model.parameters()]
    return {"progress": vars(progress), "model": dict(model.state_dict()), "moments": moments}


# --- data and models of others ------------------------------------------------------------------------------------


def _data(root: Path) -> list[Target]:
    rows = [{"text": text, "label": i % 2} for i, text in enumerate(texts(12))]
    write_table(root / "rows.tsv", 12)
    pq.write_table(pa.Table.from_pylist(rows), root / "rows.parquet")
    contents = {
        "rows.jsonl": "\n".join(map(json.dumps, rows)).encode(), "rows.json": json.dumps(rows).encode(),
        "rows.tsv": (root / "rows.tsv").read_bytes(),
        "rows.csv": (root / "rows.tsv").read_bytes().replace(b"\t", b","),
        "rows.parquet": (root / "rows.parquet").read_bytes(), "text.txt": "\n\n".join(texts(12)).encode(),
    }  # fmt: skip
    return [Target(name, good, _read_data(name), second=lambda _: AGREED) for name, good in contents.items()]


def _read_data(name: str) -> Callable[[Path], bool]:
    def read(folder: Path) -> bool:
        found = [(document.text, document.label) for document in read_documents(folder / name)]
        compare = second.is_text if name.endswith(".txt") else second.are_rows
        return second.agree(compare, found, folder / name)

    return read


def _strangers(root: Path, model: Path) -> list[Target]:
    shards = root / "shards"
    tiny("llama").save_pretrained(shards, max_shard_size="20KB")
    index = "model.safetensors.index.json"
    return [
        Target("config.json", (model / "config.json").read_bytes(), _read_config, model, second=lambda _: AGREED),
        Target("model.safetensors", (model / "model.safetensors").read_bytes(), _read_weights, model,
               second=second.tensors_of),
        Target(index, (shards / index).read_bytes(), _read_weights, shards, second=second.tensors_of),
        Target("tokenizer.json", (model / "tokenizer.json").read_bytes(), _read_tokens, model, second=second.tokens_of),
    ]  # fmt: skip


def _read_config(folder: Path) -> bool:
    loaded = load_model(folder)
    describe(loaded.model)
    return second.agree(second.config_holds, loaded.model.config, folder)


def _read_weights(folder: Path) -> dict[str, Any]:
    model = load_model(folder).model
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def _read_tokens(folder: Path) -> dict[str, Any]:
    tokenizer = load_model(folder).processor
    ids = tokenizer(second.PROBE, add_special_tokens=False)["input_ids"]
    return {"vocabulary": tokenizer.get_vocab(), "ids": ids}


# --- folders of ours ----------------------------------------------------------------------------------------------


def _statistics(root: Path, model: Path) -> tuple[Path, Path]:
    """Statistics and a result, as the commands write them."""
    brief = ("--data", write_texts(root / "text.txt"), "--tokens", 600, "-q")
    done("calibrate", model, *brief, "--out", root / "stats")
    done("cut", root / "stats", "--macs", 0.6, "--no-verify", "-q", "--out", root / "result")
    return root / "stats", root / "result"


def _read_statistics(folder: Path) -> dict[str, Any]:
    model = _llama()
    statistics = open_statistics(folder)
    require_same_model(model, statistics)
    architecture = describe(model)
    blocks = [_plain(moments_of(statistics, architecture, i)) for i in range(architecture.n_blocks)]
    curves = profile(model, statistics, cut_settings("balanced"))
    return {
        "stats": dataclasses.asdict(statistics.provenance), "weights": statistics.weights(), "blocks": blocks,
        "probes": _plain(read_probes(statistics)), "curves": _plain(curves),
    }  # fmt: skip


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _checkpoints(root: Path) -> dict[str, Path]:
    """Checkpoints as we write them: plain, with sizes of their own in each block and a rank, and in four bits."""
    save(tiny("llama"), root / "plain", verify=False)
    save(ranked(tiny("llama"), "narrow keys"), root / "ragged", verify=False)
    made = quantized(tiny("llama"), Grid(4, 16), method="nearest")
    save(made.model, root / "bits", packed=packed(made, made.model), verify=False)
    return {"plain": root / "plain", "ragged": root / "ragged", "four bits": root / "bits"}


def _read_checkpoint(folder: Path) -> dict[str, Any]:
    return _whole(load(folder))


def _whole(model: Any) -> dict[str, Any]:
    describe(model)
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    return {"class": type(model).__name__, "config": json.loads(json.dumps(config, default=str)), **model.state_dict()}


def _read_result(folder: Path) -> dict[str, Any]:
    loaded = load_model(folder)
    return {
        "report": read_report(folder), "plan": dataclasses.asdict(plan_of(loaded, "x", 16)),
        "vocabulary": loaded.processor.get_vocab(), "pieces": loaded.processor(second.PROBE)["input_ids"],
    }  # fmt: skip


def _cascade(root: Path) -> Path:
    model = tiny("bert", "classify")
    plan, small = tiny_plan(model)
    record = CascadeRecord(0.5, plan.seq_len, "abc", Member(0.5, plan.macs), Member(1.0, 1.0), {"inputs": 8})
    models = {"small": (small, Belongings(texts={"plan.json": plan.to_json()})), "large": (model, Belongings())}
    save_cascade(record, models, root / "cascade", verify=False)
    return root / "cascade"


def _read_cascade(folder: Path) -> dict[str, Any]:
    small, large, record = read_cascade(folder)
    return {"record": dataclasses.asdict(record), "small": _whole(small), "large": _whole(large)}
