"""The table of a Linformer layer: every rival at every length, and a batch that fits while the next does not."""

from __future__ import annotations

import json

import pytest

from slimformer.lab.speed import can_tell_memory, inputs_of, largest_batch, layer_of
from terminal import done, refused


def test_every_length_has_its_rivals():
    line = ("lab", "speed", "--lengths", "64,96", "--k", "16,80", "--width", "32", "--room", "1")
    said = json.loads(done(*line, "--json").out)
    found = [(row["n"], row["layer"]) for row in said["rows"]]
    usual = ["exact", "written out", "svd k 16", "k 16"]
    assert found == [*((64, name) for name in usual), *((96, name) for name in [*usual, "k 80"])]
    assert all(row["speedup"] == 1 for row in said["rows"] if row["layer"] == "exact")
    assert all(row["seconds"] > 0 for row in said["rows"])
    assert "× faster" in done(*line).out


@pytest.mark.skipif(not can_tell_memory(), reason="the system keeps no high-water mark of memory")
def test_the_largest_batch_grows_with_the_room():
    layer = layer_of(2, 64, 256, projection="exact")
    small, large = (largest_batch(layer, 256, 64, room * 2**20) for room in (8, 32))
    assert 0 < small["batch"] < large["batch"] and large["peak_bytes"] <= 32 * 2**20 < large["over_bytes"]
    assert inputs_of(3, 5, 64).shape == (3, 5, 64)


def test_what_is_no_number_is_refused():
    assert "--k 'x' is not a list" in refused("lab", "speed", "--k", "x")
    assert "no 3 equal heads" in refused("lab", "speed", "--heads", "3", "--width", "32")
