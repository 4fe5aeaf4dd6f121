"""Messages in the words of their reader: names of arguments in Python, flags in the shell, from one text."""

from __future__ import annotations

import ast
import re

import pytest
import torch

import slimformer
from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import either, option, shell_words
from slimformer.plan.asked import BUDGETS, require_one
from slimformer.plan.budget import budget_of
from terminal import compress, refused
from test_layering import FILES, SRC

OF_THE_SHELL = re.compile(r"cli|__main__\.py")
FLAG = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"(slimformer|pip|torchrun|tensorboard) [\w .-]*--[a-z-]+")
LIBRARY = [
    file for file in FILES if file.stem != "words" and not OF_THE_SHELL.fullmatch(file.relative_to(SRC).parts[0])
]


def test_the_library_names_no_flags():
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for file in LIBRARY:
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        docstrings = {id(node.body[0].value) for node in nodes if isinstance(node, documented) and _says(node)}
        texts = [node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        said = [each.value for each in texts if id(each) not in docstrings]
        flags = [text for text in said if FLAG.search(COMMAND.sub("", text))]
        assert not flags, f"{file}: say it with `option`"


def _says(node: ast.AST) -> bool:
    return bool(node.body) and isinstance(node.body[0], ast.Expr)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "python", "shell"),
    [
        ("seq_len", 64, "seq_len=64", "--seq-len 64"),
        ("macs", 0.5, "macs=0.5", "--macs 0.5"),
        ("format", "ragged", "format='ragged'", "--format ragged"),
        ("force", True, "force=True", "--force"),
        ("refine", False, "refine=False", "--no-refine"),
        ("dtype", torch.float32, "dtype=torch.float32", "--dtype float32"),
        ("model_class", "AutoModel", "model_class='AutoModel'", "--class AutoModel"),
    ],
)
def test_an_option_is_said_as_its_reader_types_it(name, value, python, shell):
    assert option(name, value) == python and option(name) == f"{name}=…"
    with shell_words():
        assert option(name, value) == shell
    assert option(name, value) == python


def test_the_same_refusal_in_both_words(shelf, tmp_path):
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "x", "--macs", 0.05))
    assert "--macs 0.05 cannot be reached" in line
    with pytest.raises(BudgetOutOfReach, match=r"^macs=0.05 cannot be reached"):
        slimformer.compress(shelf / "llama", str(shelf / "text.txt"), macs=0.05)


def test_one_budget_of_six():
    with pytest.raises(BudgetOutOfReach, match=r", latency=…, total_macs=…, max_kl=… or size=… \(found none\)"):
        require_one(dict.fromkeys(BUDGETS))
    with pytest.raises(BudgetOutOfReach, match=r"\(found macs=0.5 and size=9\)"):
        slimformer.compress("x", macs=0.5, size=9)
    assert either("k") == "k=…"


@pytest.mark.parametrize("by", ["macs", "params", "latency"])
def test_percents_are_understood(by, shelf):
    with pytest.raises(BudgetOutOfReach, match=r"did you mean 0.6\?"):
        budget_of(**{by: 60})
    assert "did you mean 0.6?" in refused("compress", shelf / "llama", f"--{by}", "60", "--dry-run")
    assert "did you mean 0.6?" in refused("compress", shelf / "llama", f"--{by}", "60%", "--dry-run")
    with pytest.raises(BudgetOutOfReach) as error:
        budget_of(**{by: 600})
    assert "did you mean" not in str(error.value)
