"""Families of models, one YAML file each, by the `model_type` of Hugging Face. Read and checked without torch.

A model may also bring its family along, in the config (`FAMILY_KEY`): one that was opened with a file of the user's, or
one that was discovered. Architectures that live in the lab add theirs when they register (`lab.architectures`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from slimformer.errors import UnknownArchitecture, UnknownType
from slimformer.files.reading import YAML, checked, parse_yaml, read_text
from slimformer.models.family import Family

FAMILY_KEY = "slimformer_family"  # of a config: the family of this model, where the package has none for its type


def parse_family(text: str, where: str) -> Family:
    """A family from YAML; refused in one line where a field is missing, unknown or of another kind."""
    try:
        return checked(Family, parse_yaml(text))
    except (ValueError, TypeError) as error:
        raise UnknownArchitecture(
            f"the family file {where!r} says what is not understood: {error}; see `slimformer families show bert`"
        ) from None


def read_family(path: str | Path) -> Family:
    """The family in a file."""
    try:
        text = read_text(path, YAML)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UnknownArchitecture(
            f"the family file {str(path)!r} cannot be read: {reason}; see `slimformer families ls`"
        ) from error
    return parse_family(text, str(path))


def _shipped() -> dict[str, Family]:
    folder = resources.files("slimformer.models.families")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    families = [parse_family(file.read_text(encoding="utf-8"), file.name) for file in files]
    return {model_type: family for family in families for model_type in family.model_types}


FAMILIES: dict[str, Family] = _shipped()


class _Lines(yaml.SafeDumper):
    """YAML as people write it: lists indented, short ones and attributes in one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _list(dumper: yaml.SafeDumper, value: list[Any]) -> yaml.Node:
    short = not any(isinstance(each, list | dict) for each in value)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=short)


def _mapping(dumper: yaml.SafeDumper, value: dict[str, Any]) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style="times" in value)


_Lines.add_representer(list, _list)
_Lines.add_representer(dict, _mapping)


def family_yaml(family: Family) -> str:
    """A family as its file."""
    text: str = yaml.dump(family.to_json(), Dumper=_Lines, sort_keys=False, width=118, allow_unicode=True)
    return text


def family_of(kind: Any) -> Family:
    """The family of a config, or of a `model_type` of Hugging Face."""
    model_type = kind if isinstance(kind, str) else kind.model_type
    brought = None if isinstance(kind, str) else getattr(kind, FAMILY_KEY, None)
    if brought is None and model_type not in FAMILIES:
        raise UnknownType(
            f"models of type {model_type!r} are not supported; supported: {', '.join(sorted(FAMILIES))}. "
            "`slimformer families discover MODEL --out family.yaml` finds out what of it can be cut"
        )
    family = FAMILIES[model_type] if brought is None else _brought(json.dumps(brought), model_type)
    if isinstance(kind, str) or not any(isinstance(stack.image, str) for stack in family.stacks):
        return family
    stacks = tuple(
        replace(stack, image=bool(getattr(kind, stack.image))) if isinstance(stack.image, str) else stack
        for stack in family.stacks
    )
    return replace(family, stacks=stacks)


@cache
def _brought(text: str, model_type: str) -> Family:
    return parse_family(text, f"{FAMILY_KEY} of a {model_type}")


def bring_family(config: Any, family: Family) -> None:
    """Let a config say the family of its model, which then travels in its config.json."""
    if config.model_type not in family.model_types:
        raise UnknownArchitecture(
            f"the family {family.name!r} is for models of type {', '.join(family.model_types)}, and this one is of "
            f"type {config.model_type!r}"
        )
    setattr(config, FAMILY_KEY, family.to_json())


def named_family(name: str) -> Family:
    """A family by its name, by a type of models, or by the path of a file."""
    if Path(name).suffix in {".yaml", ".yml"}:
        return read_family(name)
    by_name = {family.name: family for family in FAMILIES.values()} | FAMILIES
    if name not in by_name:
        raise UnknownArchitecture(
            f"there is no family {name!r}; choose from {', '.join(sorted(by_name))}, or give a path to a .yaml file"
        )
    return by_name[name]
