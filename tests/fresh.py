"""Fresh processes without a start of Python each: forked from one that has imported libraries and nothing else.

What a save is verified by takes five seconds to start and a tenth of one to work. `Nursery` starts once, imports what
the script would import first, and forks for every script: the child has the libraries and nothing of slimformer or of
the tests. `tests/checkpoint/test_saving.py` starts real ones. `run` does the same for tests of their own.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIBRARIES = {
    "transformers": ("safetensors.torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    "torch": ("safetensors.torch", "torch.export"),
}
KNOWN = {"reload.py": "transformers", "reopen.py": "torch"}  # by what verifies; the second must not know transformers


class Nursery:
    """A process for every choice of libraries, started when it is first needed."""

    def __init__(self) -> None:
        self._parents: dict[str, subprocess.Popen[str]] = {}

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """What `slimformer.checkpoint.fresh.start` does, for `[python, "-P", script, …]`."""
        return self.run(command[2:], environment, after=KNOWN[Path(command[2]).name])

    def run(
        self, arguments: Sequence[object], environment: dict[str, str] | None = None, *, after: str = "torch",
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """As a process of `python ARGUMENTS` (a script, `-c` or `-m`) that has imported the libraries `after`."""
        if after not in self._parents:
            alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._parents[after] = subprocess.Popen(
                [sys.executable, "-P", __file__, *LIBRARIES[after]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=alone,
            )  # fmt: skip
        stdin, stdout = self._parents[after].stdin, self._parents[after].stdout
        assert stdin is not None and stdout is not None
        command = list(map(str, arguments))
        stdin.write(json.dumps([command, dict(environment or os.environ), str(cwd or Path.cwd())]) + "\n")
        stdin.flush()
        code, out, err = json.loads(stdout.readline())
        return subprocess.CompletedProcess(command, code, out, err)

    def close(self) -> None:
        for parent in self._parents.values():
            assert parent.stdin is not None
            parent.stdin.close()
            parent.wait()


def _serve(libraries: list[str]) -> None:
    import importlib

    for name in libraries:
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever is printed here is no answer
    for line in sys.stdin:
        print(json.dumps(_forked(*json.loads(line))), file=answers, flush=True)


def _forked(argv: list[str], environment: dict[str, str], cwd: str) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            os.chdir(cwd)
            os._exit(_run(argv, environment))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return code, texts[0], texts[1]


def _run(argv: list[str], environment: dict[str, str]) -> int:
    os.environ.clear()
    os.environ.update(environment)
    for name in ("transformers.utils.hub", "transformers.utils", "transformers.dynamic_module_utils"):
        module: Any = sys.modules.get(name)
        if module is not None and hasattr(module, "HF_MODULES_CACHE"):  # read from the environment at import
            module.HF_MODULES_CACHE = environment.get("HF_MODULES_CACHE", module.HF_MODULES_CACHE)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    try:
        if argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        elif argv[0] == "-c":
            sys.argv, sys.modules["__main__"] = ["-c", *argv[2:]], types.ModuleType("__main__")
            exec(compile(argv[1], "<string>", "exec"), vars(sys.modules["__main__"]))
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


NURSERY = Nursery()
run = NURSERY.run

if __name__ == "__main__":
    _serve(sys.argv[1:])
