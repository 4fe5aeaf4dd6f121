"""Two processes under torchrun learn what one learns that takes two batches for a step."""

import json

import pytest
import torch

import slimformer
from calibrate.test_distributed import torchrun
from terminal import done


@pytest.mark.slow
def test_two_processes_learn_what_one_does_from_two_batches_a_step(shelf, tmp_path):
    reading = ("--data", shelf / "text.txt", "--seq-len", 16)
    done(
        "compress", shelf / "llama", *reading, "--tokens", 600, "--macs", 0.5, "--no-timing", "--out", tmp_path / "cut"
    )
    how = (
        *reading,
        "--teacher",
        shelf / "llama",
        "--tokens",
        20_000,
        "--phases",
        "global",
        "--rate",
        1e-3,
        "--no-verify",
    )
    done("heal", tmp_path / "cut", *how, "--set", "heal.accumulate=2", "--out", tmp_path / "one", "--json")
    torchrun("heal", tmp_path / "cut", *how, "--out", tmp_path / "two", "--json")
    one, two = (slimformer.load(tmp_path / name).state_dict() for name in ("one", "two"))
    cut = slimformer.load(tmp_path / "cut").state_dict()
    moved, apart = (max(float((one[name] - other[name]).norm()) for name in one) for other in (cut, two))
    assert moved > 1e-3 and apart < 0.02 * moved
    steps = [
        json.loads((tmp_path / name / "report.json").read_text())["healing"]["global"]["steps"]
        for name in ("one", "two")
    ]
    assert steps[0] == steps[1] > 1
    assert all(torch.isfinite(tensor).all() for tensor in two.values())
