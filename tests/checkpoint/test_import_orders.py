"""`import slimformer` is light, and teaches the Auto classes whatever is imported first."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module

import pytest

import slimformer
from families import tiny, tiny_ragged
from fresh import run
from slimformer.checkpoint.save import save
from slimformer.start.after_import import after_import
from test_layering import MODULES, SRC, imported, module_name, parsed

OPEN = """
import json, sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(json.dumps(sum(parameter.numel() for parameter in model.parameters())))
"""
ORDERS = {
    "slimformer first": "import slimformer\nfrom transformers import AutoModelForCausalLM",
    "transformers first": "from transformers import AutoModelForCausalLM\nimport slimformer",
    "a part of transformers": "import slimformer\nimport transformers.models.llama.modeling_llama",
    "a file of ours": "import slimformer.nn.long_context",
    "the story": "from slimformer.compress import compress",
}


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    model = tiny_ragged(tiny("llama"))
    folder = tmp_path_factory.mktemp("orders") / "ragged"
    save(model, folder, verify=False)
    return folder, sum(parameter.numel() for parameter in model.parameters())


def python(code: str, *arguments: object) -> str:
    """Code in a process that has imported torch and nothing that imports transformers."""
    child = run(["-c", code, *arguments])
    assert child.returncode == 0, child.stderr[-3000:]
    return child.stdout


@pytest.mark.parametrize("order", ORDERS)
def test_a_ragged_folder_opens_by_auto_classes_in_every_order(order, ragged):
    folder, parameters = ragged
    assert json.loads(python(ORDERS[order] + OPEN, folder)) == parameters


def test_importing_the_package_imports_little():
    code = "import sys, json, slimformer; dir(slimformer); print(json.dumps(sorted(sys.modules)))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {name.split(".")[0] for name in json.loads(child.stdout)}
    assert not found & {"torch", "transformers", "numpy", "scipy", "datasets", "pydantic", "rich"}


def test_a_function_keeps_its_name_whoever_imports_its_file_first():
    told = python("""
import slimformer.compress
from slimformer.compress import compress
import slimformer
assert slimformer.compress is compress
from slimformer.plan.allocate import greedy
from slimformer.plan import allocate
print(callable(allocate), "compress" in dir(slimformer))
""")
    assert told.split() == ["True", "True"]


@pytest.mark.parametrize("package", ["slimformer", "slimformer.models", "slimformer.plan"])
def test_lazy_names_are_those_type_checkers_see(package):
    module = import_module(package)
    checked = next(node for node in parsed(MODULES[package]).body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == dict(module.homes)
    for name, home in seen.items():
        assert getattr(module, name) is getattr(import_module(home), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_all_public_names_are_there():
    assert sorted(slimformer.__all__) == sorted(slimformer.homes)


def test_what_is_taught_is_whole_when_it_is_taught():
    """Files that `import slimformer` imports once transformers is there must not be the first to import it: then they
    would be asked for what they have not defined yet. So their folder imports it before them."""
    (teaching,) = (node for node in parsed(SRC / "__init__.py").body if isinstance(node, ast.FunctionDef))
    waiting = [name for name in imported(teaching) if name in MODULES]
    assert waiting
    taught: dict[str, set[str]] = {}
    while waiting:
        module = waiting.pop()
        if module not in taught:
            taught[module] = at_import(module)
            waiting.extend(name for name in taught[module] if name in MODULES)
    for module, names in sorted(taught.items()):
        folder = module_name(MODULES[module].parent / "__init__.py")
        if "transformers" in names and module != folder:
            assert "transformers" in at_import(folder), f"{module} needs `import transformers` in {folder}"


def at_import(module: str) -> set[str]:
    """Modules that importing a module imports: at the top of its file, of lazy packages where a name lives."""
    nodes = [node for node in parsed(MODULES[module]).body if isinstance(node, ast.Import | ast.ImportFrom)]
    found = set()
    for name in (name for node in nodes for name in imported(node)):
        above, _, last = name.rpartition(".")
        home = getattr(sys.modules.get(above), "homes", {}).get(last)
        found.add(home or (name if name in MODULES else above if above in MODULES else name.split(".")[0]))
    return found


def test_work_is_done_once_after_an_import_and_at_once_after_that(tmp_path, monkeypatch):
    (tmp_path / "late_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    done: list[int] = []

    def work() -> None:
        done.append(sys.modules["late_module"].value)

    for _ in range(2):
        after_import("late_module", work)
    assert done == []
    module = import_module("late_module")
    assert done == [1]
    assert module.__spec__.loader is module.__loader__ and type(module.__loader__).__name__ == "SourceFileLoader"
    after_import("late_module", work)
    assert done == [1, 1]
    monkeypatch.delitem(sys.modules, "late_module")
