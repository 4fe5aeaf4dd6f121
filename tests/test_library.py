"""The public library: every name has types, a docstring and an example that runs; the shell is the same code."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
from importlib import import_module
from pathlib import Path

import pytest

import slimformer
from families import tiny, tiny_tokenizer
from fresh import run
from slimformer.calibrate.store import Statistics
from slimformer.cli.app import COMMANDS
from slimformer.errors import SlimformerError
from terminal import done, save_tiny, write_table, write_texts
from test_layering import SRC, imported, parsed

FUNCTIONS = [name for name in slimformer.__all__ if inspect.isfunction(getattr(slimformer, name))]
# It takes a run of parts that are not public; docs/methods/cascade.md shows it whole.
WITHOUT_EXAMPLE = {"SlimformerError", "make_cascade"}
CLASSES = [name for name in slimformer.__all__ if name not in FUNCTIONS]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples read: tiny models, text, a table, statistics, and a smaller model of each kind."""
    root = tmp_path_factory.mktemp("library")
    save_tiny(root / "llama", "llama")
    save_tiny(root / "bert", "bert", "classify")
    write_texts(root / "text.txt")
    write_table(root / "table.tsv")
    slimformer.calibrate(root / "llama", str(root / "text.txt"), tokens=600, out=root / "stats")
    slimformer.cut(root / "stats", macs=0.6).save(root / "smaller", verify=False)
    short = {"tokens": 600, "timing": False}
    slimformer.compress(root / "bert", str(root / "table.tsv"), macs=0.6, **short).save(root / "small-bert")
    done("cascade", root / "bert", "--macs", "0.5,1", "--data", root / "table.tsv", "--tokens", 600, "--tolerance", 1,
         "--out", root / "cascade", "-q")  # fmt: skip
    return root


@pytest.mark.parametrize("name", [name for name in slimformer.__all__ if name not in WITHOUT_EXAMPLE])
def test_the_example_of_every_name_runs(name, place, monkeypatch, trusting):
    monkeypatch.chdir(place)
    thing = getattr(slimformer, name)
    (found,) = doctest.DocTestFinder(recurse=False).find(thing, name, module=False, globs={"slimformer": slimformer})
    assert found.examples, f"slimformer.{name} has no example"
    assert not [each for each in found.examples if each.options], "an example that is skipped shows nothing"
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(found, out=said.append, clear_globs=False)
    assert not result.failed, "".join(said)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_types(name):
    signature = inspect.signature(getattr(slimformer, name))
    assert signature.return_annotation is not inspect.Signature.empty
    bare = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    assert not bare
    named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    assert len(named) <= 6


def test_names_of_the_shell_are_names_of_the_library():
    """Those of files and of the lab have no function of their own here; a cascade is `make_cascade`."""
    without = {"families", "lab", "steps", "recipes", "report", "eval", "cascade"}
    commands = {getattr(each, "__name__", None) or each.info.name for group in COMMANDS.values() for each in group}
    assert {name.rstrip("_") for name in commands} - without <= set(FUNCTIONS)


def test_a_command_calls_the_function_of_its_name():
    for name in ("calibrate", "plan", "apply", "cut", "frontier", "sweep", "inspect", "attention", "bench", "export"):
        home = getattr(slimformer, name).__module__
        assert f"{home}.{name}" in set(imported(parsed(SRC / "cli" / f"{name}.py"))), name


def test_shell_and_library_make_the_same_files(place, tmp_path):
    done("cut", place / "stats", "--macs", 0.6, "--out", tmp_path / "by-shell", "--no-verify", "-q")
    for name in ("model.safetensors", "plan.json", "config.json"):
        ours, theirs = (folder / name for folder in (place / "smaller", tmp_path / "by-shell"))
        assert ours.read_bytes() == theirs.read_bytes(), name
    said = json.loads(done("frontier", place / "stats", "--macs", "0.8,0.6", "--json").out)
    assert said["points"] == [point.to_json() for point in slimformer.frontier(place / "stats", (0.6, 0.8))]


def test_the_function_keeps_its_name_beside_a_folder_of_that_name(tmp_path):
    """`slimformer.plan` is the function in whatever order things are imported; the folder is private."""
    folders = sorted({path.name for path in SRC.iterdir() if path.is_dir()} & set(FUNCTIONS))
    assert "plan" in folders
    code = f"""
import importlib, sys
for name in {folders!r}:
    module = importlib.import_module("slimformer." + name)
    assert module is sys.modules["slimformer." + name] and hasattr(module, "__path__")
import slimformer.plan.asked
from slimformer import plan
import slimformer
for name in {folders!r}:
    assert callable(getattr(slimformer, name)), name
assert plan is slimformer.plan and slimformer.plan.__name__ == "plan"
from slimformer import *
assert compress is slimformer.compress
"""
    child = run(["-c", code], cwd=tmp_path)
    assert child.returncode == 0, child.stderr


def test_the_package_itself_reaches_folders_by_from_alone():
    """`slimformer.plan.x` as an expression would ask the function for it."""
    folders = {path.name for path in SRC.iterdir() if path.is_dir()} & set(FUNCTIONS)
    for file in SRC.rglob("*.py"):
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("slimformer.")]
                assert not {name.split(".")[1] for name in names} & folders, file


def test_models_in_memory_and_statistics_at_hand_do_as_well(place, tmp_path):
    model, text = tiny("llama"), (place / "text.txt").read_text().split("\n\n")
    known = slimformer.calibrate(model, text, processor=tiny_tokenizer(), tokens=600, out=tmp_path / "stats")
    assert isinstance(known, Statistics) and known.provenance.n_blocks == 3
    decided = slimformer.plan(known, model=model, macs=0.7)
    one = slimformer.apply(known, decided, model=model)
    two = slimformer.cut(known, model=model, macs=0.7)
    assert one.plan.sizes == two.plan.sizes == decided.sizes
    found = slimformer.sweep(known, [0.7], model=model, data=text, processor=tiny_tokenizer())
    assert found.points[0]["kept"] == {
        name: size.units for name, size in two.plan.sizes.items() if name in found.points[0]["kept"]
    }
    report = slimformer.evaluate(two.model, model, text, processor=tiny_tokenizer(), timing=False)
    assert report.macs_kept <= 0.7 and report.metrics


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda place: slimformer.plan(place / "stats"), "one budget is needed"),
        (lambda place: slimformer.plan(place / "stats", macs=60), "did you mean 0.6"),
        (lambda place: slimformer.plan(place / "nothing", macs=0.5), "holds no statistics"),
        (lambda place: slimformer.plan(7, macs=0.5), "stats=7 is not a folder of statistics"),
        (lambda place: slimformer.cut(place / "stats", macs=0.5, format="nope"), "there is no format 'nope'"),
        (lambda place: slimformer.apply(place / "stats", 3), "plan=3 is not a Plan"),
        (lambda place: slimformer.frontier(place / "stats", "0.5"), "not a list of fractions"),
        (lambda place: slimformer.frontier(place / "stats", [50]), "did you mean 0.5"),
        (lambda place: slimformer.sweep(place / "stats", [0.0]), "is not a fraction"),
        (lambda place: slimformer.inspect(place / "llama", ["a", "b", "c", "d", "e"]), "up to 4 stand side by side"),
        (lambda place: slimformer.inspect(place / "llama", lengths=[64]), "give data=…"),
        (lambda place: slimformer.attention(place / "llama", share=2.0), "not a fraction between 0 and 1"),
        (lambda place: slimformer.bench("a", "b", batch_sizes=[0]), "not a list of whole numbers"),
        (lambda place: slimformer.export(place / "llama", to="nope", out="x"), "to='nope' is not known"),
        (lambda place: slimformer.export(place / "llama", to="onnx", out=place / "stats"), "exists already"),
        (lambda place: slimformer.export(place / "llama", to="onnx", out=place), "is not replaced"),
        (lambda place: slimformer.calibrate(place / "llama", out=place / "stats"), "exists already"),
        (lambda place: slimformer.evaluate_task("imdb", "a", "b"), "there is no task"),
    ],
)  # fmt: skip
def test_refusals_are_one_line(call, says, place):
    with pytest.raises(SlimformerError) as error:
        call(place)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_the_page_of_the_library_is_what_the_code_says(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    api = import_module("api")
    assert api.FILE.read_text(encoding="utf-8") == api.page(), "run `python benchmarks/api.py`"
