"""Scripts of the package in a Python of their own, which knows nothing of this one."""

from __future__ import annotations

import os
import subprocess
import sys


def run_fresh(script: str, *arguments: object, **environment: str) -> str:
    """Run a script in a fresh process with these variables added; why it failed, in one line, or nothing.

    Cost: starting Python, and what the script imports.
    """
    # -P: the folder of the script stays off the path, so that its neighbours shadow nothing.
    child = start([sys.executable, "-P", script, *map(str, arguments)], {**os.environ, **environment})
    if not child.returncode:
        return ""
    if child.returncode < 0:
        return f"it was killed by signal {-child.returncode}" + (" (out of memory?)" if child.returncode == -9 else "")
    lines = [line.strip() for line in child.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {child.returncode}"


def start(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The child process, when it has ended."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
