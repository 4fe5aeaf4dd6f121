"""Fresh processes without a start of Python each: forked from one that has imported libraries and nothing else.

What a save is verified by takes five seconds to start and a tenth of one to work. `Nursery` starts once, imports what
the script would import first, and forks for every script: the child has the libraries and nothing of slimformer or of
the tests. `tests/checkpoint/test_saving.py` starts real ones.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

LIBRARIES = {
    "reload.py": ("safetensors.torch", "transformers.modeling_utils", "transformers.models.auto.modeling_auto"),
    "reopen.py": ("safetensors.torch", "torch.export"),  # it must not know transformers
}


class Nursery:
    """A process for every script that is verified with, started when it is first needed."""

    def __init__(self) -> None:
        self._parents: dict[str, subprocess.Popen[str]] = {}

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """What `slimformer.checkpoint.fresh.start` does, for `[python, "-P", script, …]`."""
        script = Path(command[2]).name
        if script not in self._parents:
            parent = [sys.executable, "-P", __file__, *LIBRARIES[script]]
            self._parents[script] = subprocess.Popen(
                parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        stdin, stdout = self._parents[script].stdin, self._parents[script].stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps([command[2:], environment]) + "\n")
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
        argv, environment = json.loads(line)
        print(json.dumps(_forked(argv, environment)), file=answers, flush=True)


def _forked(argv: list[str], environment: dict[str, str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
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
            module.HF_MODULES_CACHE = environment["HF_MODULES_CACHE"]
    sys.argv = argv
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _serve(sys.argv[1:])
