"""Statistics come back from disk bit for bit; what is broken is said to be."""

import dataclasses
import json

import pytest
import torch

from calibrated import stock
from families import MODEL_TYPES
from slimformer.calibrate.store import Provenance, begin, open_statistics, write_block, write_weights
from slimformer.errors import PlanDoesNotFit

PROVENANCE = Provenance(
    model="tiny", fingerprint="abc", model_type="bert", data="builtin", data_hash="def", seed=3, seq_len=16,
    tokens={"fit": 300, "select": 100}, dtype="float32", n_blocks=3, versions={"torch": "2"},
)  # fmt: skip


def written(folder, found):
    begin(folder, PROVENANCE)
    for block in found.blocks:
        write_block(folder, block)
    return open_statistics(folder)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_moments_come_back_bit_for_bit(model_type, tmp_path):
    found = stock(model_type)
    statistics = written(tmp_path, found)
    for i, block in enumerate(found.blocks):
        read = statistics.block(i)
        assert (read.block, read.error_weight) == (block.block, block.error_weight)
        assert read.sites.keys() == block.sites.keys()
        for name, splits in block.sites.items():
            assert read.sites[name].keys() == splits.keys()
            for split, m in splits.items():
                again = read.sites[name][split]
                assert again.count == m.count
                assert torch.equal(again.sum, m.sum)
                assert torch.equal(again.gram, m.gram)


def test_provenance_and_weights_come_back(tmp_path):
    begin(tmp_path / "new" / "folder", PROVENANCE)
    write_weights(tmp_path / "new" / "folder", {"blocks.0.ffn.hidden": 1 / 3})
    statistics = open_statistics(tmp_path / "new" / "folder")
    assert statistics.provenance == PROVENANCE
    assert statistics.weights() == {"blocks.0.ffn.hidden": 1 / 3}


def test_a_folder_without_statistics_is_refused(tmp_path):
    with pytest.raises(PlanDoesNotFit, match="holds no statistics"):
        open_statistics(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model": "x"}'])
def test_broken_statistics_are_refused(tmp_path, text):
    begin(tmp_path, PROVENANCE)
    (tmp_path / "stats.json").write_text(text)
    with pytest.raises(PlanDoesNotFit, match="make them with `slimformer calibrate`"):
        open_statistics(tmp_path)


def test_another_format_is_refused(tmp_path):
    begin(tmp_path, PROVENANCE)
    (tmp_path / "stats.json").write_text(json.dumps({**dataclasses.asdict(PROVENANCE), "slimformer_stats": 99}))
    with pytest.raises(PlanDoesNotFit, match="statistics of format 99, this version reads 2"):
        open_statistics(tmp_path)


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_broken_moments_are_refused(tmp_path, damage):
    statistics = written(tmp_path, stock("bert"))
    path = tmp_path / "moments" / "block-001.safetensors"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:200])
    with pytest.raises(PlanDoesNotFit, match=r"block-001.*cannot be read .*run `slimformer calibrate` again"):
        statistics.block(1)
    assert statistics.block(0).block == 0
