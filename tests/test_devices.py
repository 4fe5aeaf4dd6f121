"""Models on another device than the CPU, on machines that have none (tests/devices/backend.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("kind", ["with_double", "without_double"])
def test_no_path_mixes_devices(kind):
    """In a process of its own: a device cannot be taken back, and torch would use it everywhere."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"devices/{kind}.py"]
    double = {"ELSEWHERE_DOUBLE": str(int(kind == "with_double"))}
    found = subprocess.run(command, cwd=HERE, env=os.environ | double, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-8000:] + found.stderr[-2000:]
