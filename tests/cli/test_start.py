"""Help, the version and refusals are there before torch would be: nothing heavy is imported for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from slimformer.cli.app import COMMANDS, app

HEAVY = ("torch", "transformers", "numpy", "scipy", "datasets", "pyarrow", "safetensors")
HELP = [
    ["--help"], ["--version"], ["recipes", "--help"], ["recipes", "show", "--help"], ["lab", "run", "--help"],
    *([name, "--help"] for name in typer.main.get_command(app).commands),  # type: ignore[attr-defined]
]  # fmt: skip

# Runs command lines one after the other, as the program would; prints how each ended and what it had imported.
SEVERAL = f"""
import contextlib, io, json, sys
from slimformer.cli.app import app
from slimformer.cli.terminal import run

ended = []
for line in json.loads(sys.argv[1]):
    sys.argv = ["slimformer", *line]
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        code = run(app)
    ended.append([code, said.getvalue(), [name for name in {HEAVY!r} if name in sys.modules]])
print(json.dumps(ended))
"""


def several(lines: list[list[str]], folder: Path) -> list[Any]:
    child = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(lines)],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "COLUMNS": "120"},
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    return list(zip(lines, json.loads(child.stdout), strict=True))


def test_help_and_version_import_nothing_heavy(tmp_path):
    for line, (code, said, heavy) in several(HELP, tmp_path):
        assert (code, said, heavy) == (0, "", []), line


REFUSED = {
    "compress x": "one budget is needed",
    "compress x --macs 60 --out y": "did you mean 0.6?",
    "compress x --macs half --out y": "is not a number",
    "compress x --macs 0.5 --out y --bogus": "No such option",
    "compress x --macs 0.5 --out y --recipe nope": "there is no recipe 'nope'",
    "compress x --macs 0.5 --out y --format nope": "choose from ragged, plain",
    "compress x --macs 0.5 --out y --for nope": "sentence-transformers, onnx, llama.cpp, vllm",
    "compress x --macs 0.5 --out y --dtype int8": "choose from float32",
    "compress x --macs 0.5 --out y --memory lots": "is not a size",
    "compress x --macs 0.5 --out y --track nope": "there is no tracker",
    "compress x --macs 0.5 --out taken": "exists already",
    "compress x --macs 0.5 --out y --data nope.txt": "there is no file 'nope.txt'",
    "compress x --macs 0.5 --out y --data sst3": "neither a file nor a data set",
    "compress x --macs 0.5 --out y --eval-data nope.txt": "there is no file 'nope.txt'",
    "compress ./nope --macs 0.5 --out y": "there is no folder './nope'",
    "compress ./nope --macs 0.5 --dry-run": "there is no folder './nope'",
    "compress demo:nope --macs 0.5 --out y": "there is no demo model",
    "calibrate ./nope --out y": "there is no folder",
    "calibrate x --out taken": "exists already",
    "plan nope --macs 0.5": "holds no statistics",
    "plan nope --macs 60": "did you mean 0.6?",
    "apply nope plan.json --out y": "holds no statistics",
    "cut nope --macs 0.5 --out y": "holds no statistics",
    "frontier nope --macs 0.5,60": "did you mean 0.6?",
    "sweep nope": "holds no statistics",
    "cascade x --macs 0.5 --out y": "names no two cuts",
    "cascade ./nope --out y": "there is no folder",
    "inspect ./nope": "there is no folder",
    "inspect x --lengths 64": "give --data",
    "attention x --share 2": "a fraction between 0 and 1",
    "eval ./nope --against x": "there is no folder",
    "eval x --against ./nope": "there is no folder",
    "eval x --against y --task imdb": "there is no task",
    "bench x --against y --batch-sizes none": "is not a list of whole numbers",
    "quantize ./nope --out y": "there is no folder",
    "sparsify x --out taken": "exists already",
    "heal ./nope --teacher x --out y": "there is no folder",
    "compress x --macs 0.5 --heal soon --out y": "is no time",
    "probe x --data nope.tsv": "there is no file 'nope.tsv'",
    "probe x --data nope.tsv --pool best": "--pool 'best' is not known",
    "adapt x --data nope.txt": "there is no file 'nope.txt'",
    "adapt x --data builtin --method best": "there is no method 'best'",
    "match --source x --target y": "name them with --data",
    "match --source a.npy --target b.npy --method best": "--method 'best' is not known",
    "export x --to nope --out y": "--to nope is not known",
    "export x --to onnx --out taken": "exists already",
    "lab run nope.yaml": "nope.yaml",
    "recipes show nope": "there is no recipe",
}  # fmt: skip


def test_refusals_come_before_torch(tmp_path):
    (tmp_path / "taken").mkdir()
    for line, (code, said, heavy) in several([text.split() for text in REFUSED], tmp_path):
        assert heavy == [], line
        assert code == 2, (line, said)
        assert REFUSED[" ".join(line)] in said, (line, said)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_help_shows_the_groups_in_their_order(tmp_path, monkeypatch):
    child = subprocess.run(
        [sys.executable, "-m", "slimformer", "--help"],
        capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    lines = child.stdout.splitlines()
    groups = [line.strip("╭─╮ ") for line in lines if line.startswith("╭─")]
    assert groups == ["Options", *COMMANDS]
    assert list(COMMANDS) == ["Shrink", "Look", "Solve heads", "Long texts and lab", "Share"]
    shown = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] not in " -"]
    names = [
        getattr(command, "__name__", None) or command.info.name for group in COMMANDS.values() for command in group
    ]
    assert shown == [name.rstrip("_") for name in names]


@pytest.mark.parametrize(("words", "offered"), [("comp", ["compress"]), ("push --dry", ["--dry-run"])])
def test_the_shell_can_complete(words, offered):
    typed = f"slimformer {words}"
    child = subprocess.run(
        [sys.executable, "-m", "slimformer"],
        capture_output=True, text=True,
        env={
            **os.environ, "_SLIMFORMER_COMPLETE": "complete_bash", "COMP_WORDS": typed,
            "COMP_CWORD": str(len(typed.split()) - 1),
        },
    )  # fmt: skip
    assert child.stdout.split() == offered, child.stderr
