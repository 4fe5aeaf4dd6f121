"""What files say to readers that share no code with ours: json, yaml, csv, safetensors, tokenizers, pyarrow.

Each gives what `spoilt_files` gives for the same folder, or less: keys that both have must agree.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel
from safetensors.torch import load_file
from tokenizers import Tokenizer

from slimformer.models.family import KINDS, Family
from slimformer.plan import Edit, Plan
from slimformer.recipe import Recipe

PROBE = "w7 w8 w9 w30"  # a text in the words of the tiny tokenizer
COUNTED = ("macs", "params")  # of a plan, which is counted again whatever its file says
Rows = list[dict[str, Any]]


def plan(folder: Path) -> dict[str, Any]:
    """The fields of a plan, with the defaults of those that may be left out."""
    found = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    edits = [{**_defaults(Edit), **edit} for edit in found.pop("edits")]
    found.pop("slimformer_plan")
    return {**_defaults(Plan), **{k: v for k, v in found.items() if k not in COUNTED}, "edits": edits}


def _defaults(kind: Any) -> dict[str, Any]:
    return {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING}


def written(given: Any, model: BaseModel) -> bool:
    """Does a model of pydantic hold what a YAML file gave it? Numbers may stand there as text."""
    held = model.model_dump(mode="json")
    return isinstance(given, dict) and all(key in held and _holds(held[key], value) for key, value in given.items())


def _holds(held: Any, given: Any) -> bool:
    if isinstance(given, dict) and isinstance(held, dict):
        by_text = {str(key): value for key, value in held.items()}
        return all(str(key) in by_text and _holds(by_text[str(key)], value) for key, value in given.items())
    if isinstance(given, list | tuple) and isinstance(held, list):
        return len(given) == len(held) and all(map(_holds, held, given))
    if held == given or str(held) == str(given):
        return True
    words = {
        "true": 1.0,
        "yes": 1.0,
        "on": 1.0,
        "y": 1.0,
        "t": 1.0,
        "false": 0.0,
        "no": 0.0,
        "off": 0.0,
        "n": 0.0,
        "f": 0.0,
    }
    try:
        numbers = [words.get(str(value).lower(), value) for value in (held, given)]
        return float(numbers[0]) == float(numbers[1])
    except (TypeError, ValueError):
        return False


def agree(compare: Callable[..., bool], *given: Any) -> bool:
    """Do both readers agree? Not where the other one cannot read what ours has read."""
    try:
        return compare(*given)
    except Exception:  # each of them has its own
        return False


def recipe_holds(recipe: Recipe, path: Path) -> bool:
    """Does a recipe hold what its file says? A step may stand there by its name alone."""
    given = yaml.safe_load(path.read_text(encoding="utf-8"))
    steps = [{each: None} if isinstance(each, str) else each for each in given["steps"]]
    said = [{name: settings or {} for name, settings in each.items()} for each in steps]
    return _holds(recipe.to_json(), {**given, "steps": said})


def family_holds(family: Family, path: Path) -> bool:
    """Does a family hold what its file says? What is as usual may stand there, too."""
    kinds = {kind: name for name, kind in KINDS.items()}
    held = dataclasses.asdict(family)
    for stack, layout in zip(held["stacks"], family.stacks, strict=True):
        stack["parts"] = [{kinds[type(part)]: dataclasses.asdict(part)} for part in layout.parts]
    return _holds(json.loads(json.dumps(held)), yaml.safe_load(path.read_text(encoding="utf-8")))


def yaml_holds(model: BaseModel, path: Path) -> bool:
    """Does a model of pydantic hold what a YAML file says?"""
    return written(yaml.safe_load(path.read_text(encoding="utf-8")), model)


# --- data ---------------------------------------------------------------------------------------------------------


def rows_of(path: Path) -> Rows:
    """A table as rows, by the reader Python or pyarrow has for it."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_bytes().decode("utf-8-sig")
    if path.suffix == ".csv":
        header, *body = csv.reader(text.splitlines(keepends=True))
        return [dict(zip(header, fields, strict=False)) for fields in body]
    if path.suffix == ".tsv":
        header, *body = (line.rstrip("\r").split("\t") for line in text.split("\n"))
        return [dict(zip(header, fields, strict=False)) for fields in body]
    try:
        values = [json.loads(text)]
    except ValueError:
        values = [json.loads(line) for line in re.split("\r\n|\r|\n", text) if line.strip()]
    return [row for value in values for row in _flat(value)]


def _flat(value: Any) -> Rows:
    if isinstance(value, list):
        return [row for item in value for row in _flat(item)]
    return [value if isinstance(value, dict) else {"text": value}]


def are_rows(found: list[tuple[str, Any]], path: Path) -> bool:
    """Is every text, with its label, that of a row, in the order of the rows, and does no other row hold text?"""
    rows = iter(rows_of(path))
    skipped = 0
    for text, label in found:
        for row in rows:
            if any(_cell(value) == text for value in row.values()):
                if label is not None and not any(_holds(label, _stripped(value)) for value in row.values()):
                    return False
                break
            skipped += any(len(_cell(value).split()) > 5 for value in row.values())
        else:
            return False
    return skipped <= 0.01 * (len(found) + skipped)


def _cell(value: Any) -> str:
    return value.strip().encode(errors="replace").decode() if isinstance(value, str) else ""


def _stripped(value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def is_text(found: list[tuple[str, Any]], path: Path) -> bool:
    """All of a text file, but for white space and marks between documents."""
    whole = path.read_bytes().decode("utf-8-sig").replace("<|endoftext|>", "")
    return re.sub(r"\s", "", "".join(text for text, _ in found)) == re.sub(r"\s", "", whole)


# --- models -------------------------------------------------------------------------------------------------------


def tensors_of(folder: Path) -> dict[str, Any]:
    """The weights of a folder by name, as they lie in its files."""
    files = [folder / "model.safetensors"]
    if not files[0].is_file():
        index = json.loads((folder / "model.safetensors.index.json").read_text(encoding="utf-8"))["weight_map"]
        files = [folder / name for name in sorted(set(index.values()))]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


IGNORED = {"architectures", "transformers_version", "dtype", "torch_dtype", "model_type", "auto_map", "_name_or_path"}


def config_holds(config: Any, folder: Path) -> bool:
    """Does a config of transformers hold what its file says, wherever it has a field for it?"""
    said = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    held = config.to_dict()
    return all(_holds(held[key], value) for key, value in said.items() if key in held and key not in IGNORED)


def tokens_of(folder: Path) -> dict[str, Any]:
    """Vocabulary, and the pieces of a text, as the library under transformers sees them."""
    tokenizer = Tokenizer.from_str((folder / "tokenizer.json").read_text(encoding="utf-8"))
    return {"vocabulary": tokenizer.get_vocab(), "ids": tokenizer.encode(PROBE, add_special_tokens=False).ids}
