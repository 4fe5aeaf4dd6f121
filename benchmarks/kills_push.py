"""`slimformer push`, killed (SIGKILL) while it talks to a hub on this machine: one commit is there, or none.

Half of the kills come at a random moment, half after a random request. The folder that is sent must stay as it is.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hub_stand_in import TOKEN, Hub, standing_in
from terminal import files

NAME = "me/smaller"


def kill_push(times: int, folder: Path, draw: random.Random) -> dict[str, Any]:
    """Kill it so many times, then let it go through; what happened, in numbers."""
    before = files(folder)
    seconds, whole = _unharmed(folder)
    requests, count, wrong = len(whole.asked), 0, list[str]()
    while count < times:
        after, at = (draw.uniform(0, seconds), sys.maxsize) if count % 2 else (600.0, draw.randint(1, requests))
        with standing_in() as hub:
            count += _killed(folder, hub, after, at)
        sent = (hub.commits, hub.files)
        if sent not in ((0, {}), (1, whole.files)):
            wrong.append(f"{hub.commits} commits of {len(hub.files)} files")
        if files(folder) != before:
            wrong.append("the folder is another")
    _, again = _unharmed(folder)
    wrong += [] if again.files == whole.files else ["another push sends other files"]
    return {
        "kills": count, "over_a_result": 0, "bad": len(wrong), "wrong": wrong[:5], "seconds": seconds,
        "next_run": 0, "left": [name for name in files(folder) if name not in before], "refused": None,
    }  # fmt: skip


def _start(folder: Path, hub: Hub) -> subprocess.Popen[bytes]:
    """A process of its own, because the address of the hub is read when Python starts."""
    environment = {
        **os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "slimformer", "push", str(folder), NAME, "--base-model", "me/large", "-q"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def _unharmed(folder: Path) -> tuple[float, Hub]:
    began = time.perf_counter()
    with standing_in() as hub:
        child = _start(folder, hub)
        _, log = child.communicate()
    if child.returncode:
        raise SystemExit(f"push does not go through unharmed: {log.decode()}")
    return time.perf_counter() - began, hub


def _killed(folder: Path, hub: Hub, after: float, at: int) -> bool:
    """Whether it was killed before it ended: after so many seconds, or so many requests, whichever is first."""
    child, began = _start(folder, hub), time.perf_counter()
    while child.poll() is None and time.perf_counter() - began < after and len(hub.asked) < at:
        time.sleep(0.002)
    child.kill()
    child.communicate()
    time.sleep(0.1)  # what the hub was asked last is answered by a thread of its own
    return child.returncode < 0
