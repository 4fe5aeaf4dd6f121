"""Arguments of public functions are checked before anything is done, in one line, by one table."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import slimformer
from families import tiny, tiny_tokenizer
from slimformer.compress import Arguments, quantize, sparsify
from slimformer.errors import SlimformerError, UnknownArchitecture, WrongArgument
from slimformer.messages import arguments
from slimformer.models.load import Loaded
from slimformer.models.opening import OPTIONS
from slimformer.recipe import cut_settings
from slimformer.run import Run
from slimformer.steps.cascade import Cascade, CascadeResult
from slimformer.steps.result import Result

MODEL = tiny("bert", "classify")
GIVEN: dict[str, Any] = {  # arguments that pass, for those that must be given
    "model": "nowhere/at/all", "data": "builtin", "folder": "nowhere/at/all", "memory": 10**9,
    "run": Run(Loaded("tiny", MODEL, None), MODEL), "settings": cut_settings("uniform"), "select_batches": [],
}  # fmt: skip
PUBLIC = {
    "compress": slimformer.compress, "load": slimformer.load,
    "compress_streamed": slimformer.compress_streamed, "make_cascade": slimformer.make_cascade,
    "load_cascade": slimformer.load_cascade, "quantize": quantize, "sparsify": sparsify,
}  # fmt: skip
BAD: dict[str, list[Any]] = {
    "tokens": [-3, 0, 1.5, 4096.0, "4096", True, float("nan"), torch.tensor(3)],
    "samples": [0, "all"], "seq_len": [1, 64.5, "64"], "seed": [-1, "0", None],
    "macs": ["0.5", True, [0.5], 0.5j], "params": ["half"], "latency": [b"1"],
    "total_macs": ["1"], "max_kl": ["0.1", float("nan")],
    "data": [None, 7, True, {}, b"x"], "model": [torch.nn.Linear(2, 2), None, 7, [], tiny],
    "device": [0, None], "dtype": ["float32", torch.int8, float], "revision": ["", 7],
    "family": [3, torch.nn.Linear],
    "model_class": ["", torch.nn.Linear],
    "trust_remote_code": [1, "yes", None], "columns": [7, [1]], "eval_data": ["other.txt", 7], "head_data": [7],
    "heal": ["10m"],
    "vocab": ["16000", 0, 1.5, -3], "vocab_data": [7],
    "recipe": [None, 7], "format": [None, 1], "refine": [1, "no"], "timing": [None], "size": ["60MB", 0],
    "bits": ["8", 0], "only_data": [1, "no"],
    "runtime": [7, True], "group": [-1], "tables": [1, "yes"],
    "memory": ["4GB", 0, None], "k": [0, 1.0], "window": [-1], "steps": [0], "keep_exact": [-1],
    "budgets": [(0.5,), "0.3,1", (0.3, "1"), None], "tolerance": [-1, "0"], "mean_macs": ["1"], "progress": [7],
    "force": [0], "verify": ["no"], "kind": [7], "method": [None], "pattern": [0.5], "symmetric": [0],
    "folder": [None, 7, "\0"],
    "run": ["demo:minilm"], "settings": [[0.01], "cut.ridge=0.01"], "select_batches": [7],
    "say": ["loud"], "processor": ["bert-base-uncased", 7, print],
}  # fmt: skip


def parameters(function: Any) -> list[str]:
    found = inspect.signature(function).parameters.values()
    named = [p.name for p in found if p.kind is not p.VAR_KEYWORD]
    rest = [p.name for p in found if p.kind is p.VAR_KEYWORD]
    others = {"arguments": Arguments.__annotations__, "opening": OPTIONS}
    return [*named, *(each for name in rest for each in others[name])]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_argument_of_the_wrong_kind_is_one_line(name):
    function = PUBLIC[name]
    must = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind < 4]
    for parameter in parameters(function):
        for value in BAD[parameter]:
            with pytest.raises(WrongArgument) as error:
                function(**{**{name: GIVEN[name] for name in must}, parameter: value})
            said = str(error.value)
            assert parameter in said and "\n" not in said and len(said) < 400


def test_a_number_in_a_text_is_given_back_as_a_number():
    for given, says in (({"macs": "0.5"}, "give macs=0.5"), ({"tokens": 4096.0}, "give tokens=4096")):
        with pytest.raises(WrongArgument, match=says):
            slimformer.compress("x", **given)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (np.ones((8, 16), dtype=np.int64), "one is a ndarray .token ids are given as one tensor of torch"),
        (torch.ones(8, 16, dtype=torch.long, device="meta"), "must be a dense tensor with values"),
        (torch.ones(8, 16, dtype=torch.long).to_sparse(), "must be a dense tensor with values"),
    ],
    ids=["numpy", "meta", "sparse"],
)
def test_token_ids_that_cannot_be_read_are_one_line(data, says):
    with pytest.raises(SlimformerError, match=says):
        slimformer.compress(tiny("llama"), data, macs=0.7, processor=tiny_tokenizer())


def test_a_name_too_long_for_a_file_is_one_line():
    with pytest.raises(SlimformerError, match="neither a folder here"):
        slimformer.load("a" * 5000)


def test_compression_works_where_gradients_are_off():
    ids = torch.randint(5, 60, (60, 16), generator=torch.Generator().manual_seed(0))
    dense = tiny("llama")
    with torch.inference_mode():
        result = slimformer.compress(dense, ids, macs=0.7, tokens=400, timing=False)
    assert not any(parameter.is_inference() for parameter in result.model.parameters())


def test_an_unknown_argument_is_pythons_own_mistake():
    for call in (slimformer.compress, slimformer.load, quantize):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'mac'"):
            call("x", mac=0.5)


@pytest.mark.parametrize("model", [torch.nn.Linear(2, 2), "bert", None], ids=str)
def test_what_is_no_model_cannot_be_described(model):
    with pytest.raises(WrongArgument, match="a model of transformers"):
        slimformer.describe(model)


def test_a_known_type_with_other_modules_is_one_line():
    with pytest.raises(UnknownArchitecture, match="OPTDecoder: its modules are not those of the opt family"):
        slimformer.describe(tiny("opt").get_decoder())


def test_results_are_saved_under_names_of_folders():
    for kind in (Result, CascadeResult):
        with pytest.raises(WrongArgument, match="folder"):
            kind.save(object.__new__(kind), None)
    with pytest.raises(SlimformerError, match="threshold=-1"):
        Cascade(tiny("bert", "classify"), tiny("bert", "classify"), -1, (0.5, 1.0))


def test_every_kind_is_in_the_table_once_and_numbers_of_numpy_pass():
    assert set(BAD) >= set(arguments.KINDS) - {"report"}
    assert arguments.KINDS["tokens"].accepts(np.int64(7)) and arguments.KINDS["macs"].accepts(np.float32(0.5))
    assert arguments.KINDS["folder"].accepts(Path("x"))
