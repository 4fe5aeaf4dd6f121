"""Writes docs/api.md, the page of the public library, from the docstrings and signatures of its names.

python benchmarks/api.py          # write it
python benchmarks/api.py --check  # exit code 1 where it is not what the code says
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import slimformer

FILE = Path(__file__).parents[1] / "docs" / "api.md"
GROUPS = {
    "Shrink": ["compress", "compress_streamed", "quantize", "sparsify", "heal"],
    "One calibration, any budget": ["calibrate", "plan", "apply", "cut", "frontier", "sweep"],
    "Look": ["inspect", "attention", "describe", "evaluate", "evaluate_task", "bench"],
    "Solve heads": ["probe", "adapt", "match"],
    "Load and hand on": ["load", "export", "push"],
    "Two models, one folder": ["make_cascade", "load_cascade", "Cascade"],
    "What is given": ["Recipe", "load_recipe"],
    "What is returned": ["Statistics", "Plan", "Result", "Report", "SlimformerError"],
}
TOP = """# The library

The public names of `slimformer`, in the words of the shell: the command of a name calls the function of that name.
Everything below them is private and may change. This page is written from the code by `python benchmarks/api.py`; every
example runs in the tests, in a folder with small models `llama` and `bert`, `text.txt`, `table.tsv`, statistics `stats`
and a cut model `smaller`. Names of data, budgets and formats are explained in [calibration data](calibration-data.md),
[which recipe](which-recipe.md) and [files and formats](formats.md).
"""


def page() -> str:
    """The whole page."""
    named = [name for names in GROUPS.values() for name in names]
    assert sorted(named) == sorted(slimformer.__all__), set(named) ^ set(slimformer.__all__)
    parts = [TOP]
    for group, names in GROUPS.items():
        parts += [f"## {group}\n", *(entry(name) for name in names)]
    return "\n".join(parts)


def entry(name: str) -> str:
    """A name: how it is called, what it is for, an example."""
    thing = getattr(slimformer, name)
    lines = [f"### {name}\n"]
    if inspect.isfunction(thing):
        lines.append(f"```text\n{signature(name, thing)}\n```\n")
    text, example = _halves(inspect.cleandoc(thing.__doc__ or ""))
    lines.append(text + "\n")
    if (kind := _options(thing)) is not None:
        said = _halves(inspect.cleandoc(kind.__doc__ or ""))[0]
        taken = ", ".join(f"`{each}`" for each in sorted(kind.__annotations__))
        lines.append(f"By name: {taken}. {said}\n")
    if example:
        lines.append(f"```pycon\n{example}\n```\n")
    return "\n".join(lines)


def signature(name: str, function: Any) -> str:
    """A parameter to a line, where one line would be too long."""
    found = inspect.signature(function)
    parameters = [_parameter(each) for each in found.parameters.values()]
    keyword = next((i for i, each in enumerate(found.parameters.values()) if each.kind is each.KEYWORD_ONLY), None)
    if keyword is not None:
        parameters.insert(keyword, "*")
    tail = f" -> {_plain(found.return_annotation)}"
    short = f"slimformer.{name}({', '.join(parameters)}){tail}"
    return short if len(short) <= 100 else f"slimformer.{name}(\n    " + ",\n    ".join(parameters) + f",\n){tail}"


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    words = f"{parameter.name}: {_plain(parameter.annotation)}"
    if parameter.default is parameter.empty:
        return words
    default = parameter.default
    return f"{words} = {default.__name__ if inspect.isfunction(default) else repr(default)}"


def _plain(annotation: Any) -> str:
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", str(annotation)).replace("<class '", "").replace("'>", "")


def _options(thing: Any) -> Any:
    """The table of what a function takes by name beside its parameters."""
    if not inspect.isfunction(thing):
        return None
    rest = [each for each in inspect.signature(thing).parameters.values() if each.kind is each.VAR_KEYWORD]
    found = re.fullmatch(r"Unpack\[(\w+)\]", str(rest[0].annotation)) if rest else None
    return vars(sys.modules[thing.__module__]).get(found[1]) if found else None


def _halves(text: str) -> tuple[str, str]:
    """What a docstring says, and its example."""
    said, arrow, example = text.partition(">>> ")
    return said.strip(), (arrow + example).strip()


def main() -> int:
    written = page()
    if "--check" in sys.argv[1:]:
        if FILE.read_text(encoding="utf-8") == written:
            return 0
        print(f"{FILE.name} is not what the code says; run `python benchmarks/api.py`")
        return 1
    FILE.write_text(written, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
