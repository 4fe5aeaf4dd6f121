"""A model of the hub is opened at the revision that is named, and the report says so; code is trusted when asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from fresh import run
from hub_stand_in import TOKEN, commit_of, standing_in
from terminal import files, save_tiny, write_texts

NAME = "me/tiny"


def compressed(url: str, place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, because the address of the hub is read when its library is imported."""
    environment = {
        **os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(place / "hub"),
    }  # fmt: skip
    data = ("--data", str(write_texts(place / "text.txt")), "--tokens", "600", "--only-data", "--no-timing", "-q")
    command = ("compress", NAME, "--macs", "0.6", "--no-refine", "--device", "cpu", *data, "--out", place / "out")
    return run(["-m", "slimformer", *command, *more], environment)


def test_a_revision_is_opened_and_named_with_the_commit_the_hub_gave(tmp_path):
    key, model = f"{NAME}@second", files(save_tiny(tmp_path / "llama", "llama"))
    with standing_in(models={key: model}) as hub:
        ended = compressed(hub.url, tmp_path, "--revision", "second")
        assert ended.returncode == 0, ended.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["opening"] == {"revision": "second", "commit": commit_of(key), "device": "cpu"}
    assert "second" in (tmp_path / "out" / "README.md").read_text()
    assert commit_of(key) in (tmp_path / "out" / "report.html").read_text()


def test_a_revision_the_hub_does_not_have_is_one_line(tmp_path):
    with standing_in() as hub:
        ended = compressed(hub.url, tmp_path, "--revision", "third")
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1
    assert "at revision 'third'" in ended.stderr and not (tmp_path / "out").exists()
