"""The tree is the architecture: imports point one way, files and functions stay short, names say something."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "slimformer"
FILES = sorted(SRC.rglob("*.py"))

# Each folder, and each file at the top, may import what stands before it, and itself.
LAYERS = (
    "start", "errors", "messages", "files", "recipes", "linalg", "decompose", "models", "calibrate", "plan", "nn",
    "rewrite", "checkpoint", "evaluate", "inspect", "report", "heads", "lab", "heal", "export", "run", "steps",
    "recipe", "compress", "verbs", "slimformer", "cli", "__main__",
)  # fmt: skip
RANK = {name: i for i, name in enumerate(LAYERS)}

LINES, FUNCTION_LINES = 400, 60
EMPTY_NAMES = re.compile(r"util|helper|misc|common|manager|handler|mixin|wrapper|Base(?!d)|^base$")
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def module_name(file: Path) -> str:
    parts = file.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def layer_of(module: str) -> str:
    """The folder a module lives in, or its own name at the top; the package itself for its `__init__`."""
    return module.split(".")[1] if "." in module else module


def imported(tree: ast.AST) -> Iterator[str]:
    """Full names of all that is imported, at the top or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(file: Path) -> set[str]:
    """Modules of slimformer that a file imports."""
    names = [name for name in imported(parsed(file)) if name.split(".")[0] == "slimformer"]
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} - {module_name(file)}


def functions(file: Path) -> Iterator[Function]:
    return (node for node in ast.walk(parsed(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_imports_point_one_way_between_folders():
    for module, file in MODULES.items():
        own = layer_of(module)
        assert own in RANK, f"{own} has no place in the order of layers"
        for other in own_imports(file):
            assert RANK[layer_of(other)] <= RANK[own], f"{module} must not know {other}"


def test_the_order_that_is_documented_is_this_one():
    for name in ("CONTRIBUTING.md", "docs/design.md"):
        text = (SRC.parents[1] / name).read_text(encoding="utf-8")
        (order,) = re.findall(r"^errors →[^`]*", text, re.MULTILINE)
        documented = re.findall(r"\w+", order)
        folders = {each.name for each in SRC.iterdir() if each.is_dir() and each.name not in ("start", "recipes")}
        assert documented == [layer for layer in LAYERS if layer in documented], name
        assert {name for name in folders if not name.startswith("_")} <= set(documented), name


def test_no_cycle_is_anywhere():
    """Inside folders, too; a folder's `__init__` that gathers names stands for whoever imports the folder."""
    links = {module: {other for other in own_imports(file) if other in MODULES} for module, file in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, f"a cycle: {' → '.join([*above[above.index(module) :], module])}"
        if module not in done:
            for other in sorted(links[module]):
                visit(other, (*above, module))
            done.add(module)

    for module in links:
        visit(module, ())


def test_what_must_not_know_of_models_or_of_us_does_not():
    outside = {name.split(".")[0] for name in imported(parsed(SRC / "nn" / "ragged.py"))}
    assert outside - sys.stdlib_module_names == {"torch", "transformers"}, "it travels with checkpoints"
    for folder in ("linalg", "decompose"):
        for file in (SRC / folder).rglob("*.py"):
            assert not any(name.startswith(("transformers", "torch.nn")) for name in imported(parsed(file))), file


def test_files_and_functions_are_short():
    for file in FILES:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= LINES, file
        for node in functions(file):
            # from its first statement: the options of a command are its signature
            assert node.end_lineno - node.body[0].lineno < FUNCTION_LINES, f"{file}: {node.name}"


def test_names_say_something():
    for file in FILES:
        defined = [node.name for node in ast.walk(parsed(file)) if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        parts = [part.removesuffix(".py") for part in file.relative_to(SRC).parts]
        empty = [name for name in parts + defined if EMPTY_NAMES.search(name)]
        assert not empty, f"{file}: {', '.join(empty)}: a name that only says it assists"


def test_nothing_is_pickled():
    for file in FILES:
        assert not {name.split(".")[0] for name in imported(parsed(file))} & PICKLES, file
        called = {ast.unparse(node.func) for node in ast.walk(parsed(file)) if isinstance(node, ast.Call)}
        assert not called & {"torch.load", "torch.save"}, file


def test_files_and_public_functions_say_what_they_are_for():
    for file in FILES:
        tree = parsed(file)
        assert ast.get_docstring(tree) or not tree.body, f"{file}: a file starts with what it is for"
        public = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
        silent = [n.name for n in public if not ast.get_docstring(n) and n.end_lineno - n.lineno > 6]
        assert not silent, f"{file}: {', '.join(silent)}: no docstring"


def test_the_top_holds_six_files_and_functions_take_six_parameters():
    """Not counted: options of commands, and signatures that transformers and scikit-learn give."""
    assert len(list(SRC.glob("*.py"))) <= 6
    for file in FILES:
        if layer_of(module_name(file)) in ("cli", "nn") or file.parent.name == "architectures":
            continue
        for node in functions(file):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            assert len([name for name in names if name not in ("self", "cls")]) <= 6, f"{file}: {node.name}"


def test_no_two_files_of_tests_have_one_name():
    """pytest refuses the second."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)
