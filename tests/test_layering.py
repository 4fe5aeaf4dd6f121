"""The tree is the architecture: imports point one way, files and functions stay short, names say something."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "slimformer"
FILES = sorted(SRC.rglob("*.py"))
NAMES = [str(file.relative_to(SRC)) for file in FILES]

# Each may import what stands to the left of it, and itself; those in one tuple do not know each other.
LAYERS = (
    ("errors", "words", "short"), ("files",), ("arguments",), ("linalg",), ("decompose",), ("models",), ("calibrate",),
    ("plan",), ("nn",), ("rewrite",), ("checkpoint",),
    ("heads", "analyze", "evaluate", "lab", "quantize", "export"),
    ("report",), ("track",), ("stages",), ("result",),
    ("assess", "probe", "timings", "front", "fisher", "menu", "classify", "pairing", "lm_adapt", "long_context_fit",
     "push"),
    ("streaming_job", "streaming_limits", "promise"), ("refine", "lossless", "depth", "long_context", "quantization"),
    ("workbench", "second_walk"),
    ("sizing", "streaming"), ("pipeline",),
    ("cascade",), ("slimformer",),
    ("shell", "options"), ("cli_front",),
    ("cli_cascade", "cli_recipes", "cli_compress", "cli_inspect", "cli_eval", "cli_report", "cli_heads", "cli_lab",
     "cli_export"), ("cli_quantize",), ("cli",),
    ("__main__",),
)  # fmt: skip
RANK = {name: i for i, layer in enumerate(LAYERS) for name in layer}

LINES, FUNCTION_LINES = 400, 60
EMPTY_NAMES = re.compile(r"util|helper|misc|common|manager|handler|mixin|wrapper|Base(?!d)|^base$")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

every_file = pytest.mark.parametrize("file", FILES, ids=NAMES)


def layer_of(file: Path) -> str:
    """The folder a file lives in, or its own name at the top; the package itself for its `__init__`."""
    name = file.relative_to(SRC).parts[0].removesuffix(".py")
    return "slimformer" if name == "__init__" else name


def modules(tree: ast.AST) -> Iterator[str]:
    """Full names of all that is imported, at the top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_layers(tree: ast.AST) -> set[str]:
    """The layers of slimformer that are imported."""
    parts = [name.split(".") for name in modules(tree)]
    inner = [part for part in parts if part[0] == "slimformer"]
    return {part[1] if len(part) > 1 and part[1] in RANK else "slimformer" for part in inner}


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@every_file
def test_imports_point_one_way(file):
    own = layer_of(file)
    assert own in RANK, f"{own} has no place in the order of layers"
    for other in own_layers(parsed(file)) - {own}:
        assert RANK[other] < RANK[own], f"{own} must not know {other}"


def test_what_travels_with_a_checkpoint_needs_torch_and_transformers_only():
    outside = {name.split(".")[0] for name in modules(parsed(SRC / "nn" / "ragged.py"))}
    assert outside - sys.stdlib_module_names == {"torch", "transformers"}


@every_file
def test_mathematics_never_sees_a_model(file):
    if layer_of(file) in {"linalg", "decompose"}:
        assert not any(name.startswith(("transformers", "torch.nn")) for name in modules(parsed(file)))


@every_file
def test_no_file_is_long(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LINES


@every_file
def test_no_function_is_long(file):
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < FUNCTION_LINES, f"{node.name} has over {FUNCTION_LINES} lines"


@every_file
def test_names_say_something(file):
    defined = [node.name for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    parts = [part.removesuffix(".py") for part in file.relative_to(SRC).parts]
    empty = [name for name in parts + defined if EMPTY_NAMES.search(name)]
    assert not empty, f"{', '.join(empty)}: a name that only says it assists"


@every_file
def test_nothing_is_pickled(file):
    tree = parsed(file)
    assert not {name.split(".")[0] for name in modules(tree)} & PICKLES
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not called & {"torch.load", "torch.save"}


@every_file
def test_every_file_and_public_function_says_what_it_is_for(file):
    tree = parsed(file)
    assert ast.get_docstring(tree) or not tree.body, "a file starts with what it is for"
    public = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    long = [node.name for node in public if node.end_lineno - node.lineno > 6]
    assert not long, f"{', '.join(long)}: no docstring"
