"""Both models are measured in other runtimes, in the words of `bench`; what is not there is refused before any work."""

from __future__ import annotations

import importlib.util
import json

import pytest

import slimformer
from conftest import skip_or_fail
from slimformer.errors import ExtraNotInstalled, UnknownMethod
from slimformer.evaluate.bench import random_inputs
from slimformer.export import runtimes
from slimformer.models.load import load_model
from terminal import done, refused, save_tiny

QUICK = {"batch_sizes": [1, 3], "repeats": 2, "seq_len": 8, "threads": 1}


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("runtimes") / "bert", "bert", "bare")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_rates_are_those_of_the_seconds(runtime, bert):
    if importlib.util.find_spec(runtime) is None:
        skip_or_fail(f"{runtime} is not installed")
    found = slimformer.bench(bert, bert, runtime=runtime, **QUICK)
    assert (found.runtime, found.device, found.unit) == (runtime, "cpu", "tokens")
    assert [each.batch for each in found.measurements] == [1, 3]
    for each in found.measurements:
        assert each.phase == "forward" and each.dense_peak_bytes == 0
        assert each.small_rate == pytest.approx(each.batch * 8 / each.small_seconds)
        assert each.small_sequence_rate == pytest.approx(each.batch / each.small_seconds)


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_what_is_timed_there_is_the_model(runtime, bert, tmp_path):
    if importlib.util.find_spec(runtime) is None:
        skip_or_fail(f"{runtime} is not installed")
    loaded = load_model(bert)
    inputs = runtimes._inputs(loaded, 2, 7, 0)
    (states, *_) = _values(runtimes._opened(runtime, loaded, tmp_path / "made", 1)(inputs))
    wanted = loaded.model(**random_inputs(loaded.model, 2, 7)).last_hidden_state.detach().numpy()
    assert states.shape == wanted.shape and abs(states - wanted).max() < 1e-3 * abs(wanted).max()


def _values(found):
    return list(found.values()) if hasattr(found, "values") else found


def test_the_command_says_where_it_measured(bert):
    how = ("--against", bert, "--batch-sizes", 2, "--repeats", 1, "--seq-len", 8, "--runtime", "onnxruntime")
    row = json.loads(done("bench", bert, *how, "--json").out)["measurements"][0]
    assert row["dense_sequence_rate"] == pytest.approx(2 / row["dense_seconds"])
    assert "in onnxruntime" in " ".join(done("bench", bert, *how).out.split())
    assert "choose from torch, onnxruntime, openvino" in refused("bench", bert, "--against", bert, "--runtime", "tvm")


def test_a_runtime_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(ExtraNotInstalled, match=r"slimformer\[openvino\]"):
        runtimes.require_runtime("openvino")
    with pytest.raises(UnknownMethod, match="no runtime"):
        runtimes.require_runtime("tvm")
