"""Ragged models can be pickled: to a file, to other processes, with the package and without it."""

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from test_sentence import MODULES
from transformers import PreTrainedModel

import slimformer
from families import MODEL_TYPES, tiny, tiny_batches, tiny_ragged, tiny_tokenizer
from fresh import run
from ranked import ranked
from slimformer.checkpoint.save import Belongings, save
from slimformer.heads.features import pool, pooled, readings_of
from slimformer.models import describe
from slimformer.nn.ragged import put_bypass
from slimformer.rewrite.sizes import state_sizes
from terminal import texts


def odd(model_type: str, head: str | None = None) -> PreTrainedModel:
    """A model with ranks and, where neurons have a gate, with linear paths."""
    small = ranked(tiny(model_type, head), "nothing left")
    architecture = describe(small)
    if architecture.sites[1].gated:
        for block, (rank, bias) in zip(architecture.blocks, [(8, True), (32, False)], strict=False):
            module, path = small.get_submodule(block.path), block.neurons[0].part.module
            put_bypass(module, path, width=32, rank=rank, bias=bias)
        state_sizes(small, "ragged")
    return small.eval()


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family_comes_back_from_a_pickle(model_type: str) -> None:
    small = tiny_ragged(tiny(model_type)) if model_type == "minimal" else odd(model_type)
    again = pickle.loads(pickle.dumps(small))
    inputs = tiny_batches(small, 1)[0].inputs
    with torch.no_grad():
        assert torch.equal(again(**inputs)[0], small(**inputs)[0])
    assert [type(part) for part in again.modules()] == [type(part) for part in small.modules()]


@pytest.mark.parametrize(("model_type", "head"), [("llama", "causal"), ("gpt2", "causal"), ("bert", "bare")])
def test_a_model_that_was_just_made_can_be_pickled_and_the_given_one_still_can(model_type: str, head: str) -> None:
    """States asked of transformers by `output_hidden_states` leave hooks behind that no pickle takes."""
    dense = tiny(model_type, head)
    result = slimformer.compress(dense, texts(60), macs=0.7, processor=tiny_tokenizer(), tokens=600, timing=False)
    inputs = tiny_batches(dense, 1)[0].inputs
    with torch.no_grad():
        for model in (result.model, dense, pickle.loads(pickle.dumps(result)).model):
            torch.testing.assert_close(pickle.loads(pickle.dumps(model))(**inputs)[0], model(**inputs)[0])


def test_reading_features_leaves_no_hooks() -> None:
    model = tiny("bert", "bare")
    readings = readings_of(model, layers=(0, 1, 3))
    batch = tiny_batches(model, 1)[0]
    found = pooled(model, batch, readings)
    pickle.dumps(model)
    states = model(**batch.inputs, output_hidden_states=True).hidden_states
    for reading, features in found.items():
        torch.testing.assert_close(features, pool(states[reading.layer], batch.mask, reading.pool))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A decoder, and an encoder as sentence-transformers keep theirs."""
    root = tmp_path_factory.mktemp("pickled")
    save(odd("llama"), root / "decoder", Belongings(tiny_tokenizer()), verify=False)
    encoder = root / "encoder"
    save(odd("bert", "bare"), encoder, Belongings(tiny_tokenizer()), verify=False)
    (encoder / "modules.json").write_text(json.dumps(MODULES[:2]))
    (encoder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (encoder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return {"decoder": root / "decoder", "encoder": encoder}


def sent(who: str, folder: Path, *routes: str) -> dict[str, float]:
    environment = {**os.environ, "HF_MODULES_CACHE": str(folder.parent / "modules")}
    ran = run([Path(__file__).with_name("pickler.py"), who, folder, *routes], environment, after="transformers")
    assert ran.returncode == 0, ran.stderr[-3000:]
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("who", ["stranger", "friend"])
def test_copies_files_and_spawned_processes_give_the_same(who: str, folders: dict[str, Path]) -> None:
    routes = ("pickle", "deepcopy", "torch", "process")
    assert sent(who, folders["decoder"], *routes) == dict.fromkeys(routes, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("who", ["stranger", "friend"])
def test_loaders_and_pools_give_the_same(who: str, folders: dict[str, Path]) -> None:
    assert sent(who, folders["decoder"], "loader") == {"loader": 0.0}
    assert sent(who, folders["encoder"], "pool")["pool"] <= 1e-6
