"""Codes in words of 32 bits come back as they were, here and where transformers reads them."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import slimformer
from families import STOCK_TYPES, tiny, tiny_batches, tiny_ragged
from fresh import run
from slimformer.checkpoint import reload
from slimformer.checkpoint.load import load
from slimformer.checkpoint.pack import NO_ZERO_POINTS, packed, require_reader, stored_bytes, stored_tensors
from slimformer.checkpoint.save import save
from slimformer.checkpoint.tensor_file import file_bytes
from slimformer.compress import quantize
from slimformer.decompose.rounding import Grid
from slimformer.decompose.sparse import Pattern
from slimformer.errors import ExtraNotInstalled, ModelBroken, UnknownArchitecture, UnknownMethod
from slimformer.evaluate.speed import file_size
from slimformer.models.load import find_model, load_model
from slimformer.models.packed import pack, unpack
from slimformer.rewrite.quantize import Sparse, quantized, sparsified

reader = pytest.mark.skipif(
    importlib.util.find_spec("compressed_tensors") is None, reason="the extra quant is not installed"
)
FRESH = """
import json, sys, torch, transformers
from safetensors.torch import load_file, save_file
for folder, kind, remote in json.loads(sys.argv[2]):
    model = getattr(transformers, kind).from_pretrained(folder, trust_remote_code=remote).eval()
    with torch.no_grad():
        found = model(load_file(sys.argv[1])["ids"])
    save_file({"out": found["logits"] if "logits" in found else found[0]}, folder + "/found.safetensors_")
assert "slimformer" not in sys.modules
"""


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("d", [1, 7, 8, 33, 64])
def test_codes_come_back(bits, d):
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
    Q = torch.randint(low, high, (5, d), generator=torch.Generator().manual_seed(d)).to(torch.int8)
    words = pack(Q, bits)
    assert words.dtype == torch.int32 and words.shape == (5, -(-d * bits // 32))
    assert torch.equal(unpack(words, bits, d), Q)


def written(folder, family="llama", grid=None, *, ragged=False, head=None, tables=False, **config):
    model = tiny(family, head, **config)
    model = tiny_ragged(model) if ragged else model
    found = quantized(model, grid or Grid(4, 16), tiny_batches(model, 1), method="nearest", tables=tables)
    save(found.model, folder, packed=packed(found, found.model), verify=False)
    return found


@pytest.mark.parametrize("grid", [Grid(4, 16), Grid(8), Grid(4, 16, symmetric=False)], ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_packed_folder_opens_here_without_the_extra(tmp_path, grid, ragged):
    found = written(tmp_path / "m", grid=grid, ragged=ragged)
    for opened in (load(tmp_path / "m"), load_model(tmp_path / "m").model):
        assert getattr(opened.config, "quantization_config", None) is None
        for name, tensor in found.model.state_dict().items():
            assert torch.equal(opened.state_dict()[name], tensor), name


@pytest.mark.parametrize("grid", [Grid(4, 16), Grid(8), Grid(4, 16, symmetric=False)], ids=str)
@pytest.mark.parametrize(("family", "ragged"), [("llama", False), ("llama", True), ("bert", False), ("vit", False)])
def test_bytes_are_those_of_the_file(tmp_path, grid, family, ragged):
    found = written(tmp_path / "m", family, grid, ragged=ragged)
    assert stored_bytes(found, torch.float32) == file_size(tmp_path / "m")


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("family", "ragged"), [("llama", False), ("llama", True), ("bert", False), ("opt", False)])
def test_tables_are_packed_and_open_here_as_what_was_measured(tmp_path, family, ragged, tied):
    how = {"ragged": ragged, "tables": True, "vocab_size": 300, "tie_word_embeddings": tied}
    found = written(tmp_path / "m", family, Grid(4, 16), **how)
    assert stored_bytes(found, torch.float32) == file_size(tmp_path / "m")
    opened = load(tmp_path / "m")
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(opened.state_dict()[name], tensor), name
    head = opened.get_output_embeddings().weight
    assert (head is opened.get_input_embeddings().weight) == tied and len(head.unique()) < head.numel() / 2


def test_with_tables_all_layers_have_groups_of_one_width():
    assert Grid(4, 64).shared([384, 1536, 320]).group == 64
    assert Grid(4, 64).shared([384, 1536, 96]).group == 48, "of 64 no more than half is given up"
    assert Grid(4, 64).shared([384, 1000]).group is None and Grid(8).shared([384, 7]).group is None
    model = tiny_ragged(tiny("bert", vocab_size=300))
    apart, together = (
        quantized(model, Grid(4, 16), method="nearest", tables=tables).layers.values() for tables in (False, True)
    )
    assert len({each.Q.shape[1] // each.s.shape[1] for each in apart}) > 1, "else the model shows nothing"
    assert len({each.grid.group for each in together}) == 1


def test_a_model_without_tables_has_none_to_store_in_fewer_bits():
    with pytest.raises(UnknownMethod, match="tables=True"):
        quantize(tiny("vit"), torch.randn(8, 3, 16, 16), bits=8, tables=True)


@pytest.mark.parametrize("family", STOCK_TYPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_so_they_are_where_nothing_is_packed(tmp_path, family, dtype):
    model = tiny(family).to(dtype)
    model.save_pretrained(tmp_path)
    assert file_bytes(stored_tensors(model, dtype, {})) == file_size(tmp_path)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ({"shape": torch.tensor([48])}, "do not fit each other"),
        ({"shape": torch.tensor([48, 2**40])}, "do not fit each other"),
        ({"shape": torch.tensor([48, -32])}, "do not fit each other"),
        ({"shape": torch.tensor([48.0, float("nan")])}, "do not fit each other"),
        ({"scale": torch.zeros(48, 0)}, "do not fit each other"),
        ({"scale": torch.zeros(48)}, "do not fit each other"),
        ({"scale": torch.zeros(48, 5)}, "do not fit each other"),
        ({"packed": torch.zeros(48, 4)}, "do not fit each other"),
        ({"packed": torch.zeros(48, 3, dtype=torch.int32)}, "do not fit each other"),
        ({"packed": torch.zeros(48, dtype=torch.int32)}, "do not fit each other"),
        ({"zero_point": torch.zeros(3, 3, dtype=torch.int32)}, "do not fit each other"),
        ({"g_idx": torch.zeros(32, dtype=torch.int32)}, "act-order"),
    ],
)
def test_packed_weights_that_do_not_fit_are_refused(tmp_path, spoil, says):
    written(tmp_path / "m")
    layer = "model.layers.0.mlp.up_proj.weight"
    file = tmp_path / "m" / "model.safetensors"
    (tmp_path / "m" / "slimformer.json").unlink(missing_ok=True)  # as if the change were meant
    tensors = load_file(file) | {f"{layer}_{part}": tensor for part, tensor in spoil.items()}
    save_file(tensors, file, metadata={"format": "pt"})
    for opening in (load, load_model):
        with pytest.raises((ModelBroken, UnknownArchitecture), match=says) as error:
            opening(tmp_path / "m")
        assert "up_proj" in str(error.value)


@pytest.mark.parametrize(
    "weights", [{"num_bits": 3}, {"num_bits": 0}, {"num_bits": "x"}, {"num_bits": 8}, {}, None], ids=str
)
@pytest.mark.parametrize("targets", ["own", ["Linear"], ["re:(((*"], [3]], ids=str)
def test_bits_that_are_not_those_of_the_file_are_refused(tmp_path, weights, targets):
    written(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    (tmp_path / "m" / "slimformer.json").unlink(missing_ok=True)  # as if the change were meant
    config = json.loads(path.read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["weights"] = weights
        group["targets"] = group["targets"] if targets == "own" else targets
    path.write_text(json.dumps(config))
    with pytest.raises(ModelBroken, match=r"with how many bits|do not fit each other at 8 bits"):
        load_model(tmp_path / "m")


def test_a_format_that_knows_linear_layers_alone_says_so():
    model = tiny("gpt2")
    with pytest.raises(UnknownArchitecture, match="Conv1D"):
        packed(quantized(model, Grid(4), method="nearest"), model)


def test_packed_weights_are_not_read_block_by_block(tmp_path):
    written(tmp_path / "m")
    with pytest.raises(ModelBroken, match="packed in fewer bits"):
        find_model(tmp_path / "m")


def test_without_the_extra_it_is_refused_before_the_work(monkeypatch):
    monkeypatch.setattr("slimformer.checkpoint.pack.find_spec", lambda _name: None)
    with pytest.raises(ExtraNotInstalled, match="slimformer\\[quant\\]"):
        require_reader()


def test_steps_that_transformers_cannot_read_are_refused_before_the_work(monkeypatch):
    monkeypatch.setattr(transformers, "__version__", NO_ZERO_POINTS[0])
    with pytest.raises(ExtraNotInstalled, match="symmetric=False"):
        require_reader(symmetric=False)
    require_reader()


@reader
def test_plain_from_pretrained_in_a_fresh_process_gives_the_same_logits(tmp_path):
    tables = {"tables": True, "vocab_size": 300}
    cases = {
        "four": ("llama", Grid(4, 16), {}), "eight": ("bert", Grid(8), {}),
        "opt": ("opt", Grid(4, 16), {}), "ragged": ("llama", Grid(4, 16), {"ragged": True}),
        "tables": ("bert", Grid(8), tables), "tied": ("llama", Grid(4, 16), {**tables, "tie_word_embeddings": True}),
        "ragged tables": ("llama", Grid(8), {**tables, "ragged": True}),
        "ragged tables in four": ("bert", Grid(4, 16), {**tables, "ragged": True}),
    }  # fmt: skip
    if transformers.__version__ not in NO_ZERO_POINTS:
        cases["lopsided"] = ("opt", Grid(4, 16, symmetric=False), {})
    ids = torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(0))
    save_file({"ids": ids}, tmp_path / "ids")
    asked, wanted = [], {}
    for name, (family, grid, how) in cases.items():
        folder = tmp_path / name
        found = written(folder, family, grid, **how)
        with torch.no_grad():
            wanted[folder] = found.model(ids).logits
        kind = "AutoModelForMaskedLM" if family == "bert" else "AutoModelForCausalLM"
        asked.append((str(folder), kind, "ragged" in how))
    run(["-c", FRESH, tmp_path / "ids", json.dumps(asked)], after="transformers").check_returncode()
    for folder, logits in wanted.items():
        assert torch.allclose(load_file(folder / "found.safetensors_")["out"], logits, atol=1e-5), folder.name


@reader
@pytest.mark.parametrize("tables", [False, True])
def test_a_save_is_verified_by_reloading(tmp_path, tables):
    model = tiny("llama", vocab_size=300)
    found = quantized(model, Grid(4, 16), tiny_batches(model, 1), tables=tables)
    save(found.model, tmp_path / "m", packed=packed(found, found.model))
    assert "quantization_config" in json.loads((tmp_path / "m" / "config.json").read_text())


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("method", ["gptq", "nearest"])
def test_a_sparse_model_is_sparse_in_fewer_bits(symmetric, method):
    model = tiny("llama")
    sparse = sparsified(model, Pattern(0.5, 2, 4), method="magnitude").model
    found = quantized(sparse, Grid(4, 16, symmetric), tiny_batches(model, 2), method=method)
    for name in found.layers:
        before, after = (each.get_submodule(name).weight for each in (sparse, found.model))
        assert bool((after[before == 0] == 0).all()), name
        assert int(((after != 0).view(len(after), -1, 4).sum(-1) > 2).sum()) == 0, name


def test_the_share_of_zeros_counts_weights_not_layers():
    found = sparsified(tiny("llama"), Pattern(0.5, 2, 4), method="magnitude")
    name = next(iter(found.zeros))
    weights = {name: found.model.get_submodule(name).weight for name in found.zeros}
    uneven = Sparse(found.model, {**found.zeros, name: 0.0})
    zero = sum(0.5 * weight.numel() for weight in weights.values()) - 0.5 * weights[name].numel()
    assert uneven.share == pytest.approx(zero / sum(weight.numel() for weight in weights.values()))


@reader
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [8, 4])
def test_half_precision_is_verified_with_the_weights_a_reader_has(tmp_path, monkeypatch, dtype, bits):
    def here(folder, sample):  # as in a fresh process, without paying for one
        opened = reload.open_fresh(folder)
        weights = reload.checksums(opened)  # it is unpacked when it first runs
        return reload.outputs_of(opened, sample), weights

    monkeypatch.setattr("slimformer.checkpoint.verify._reload", here)
    model = tiny("llama")
    ids = torch.randint(5, 60, (24, 16), generator=torch.Generator().manual_seed(0))
    model.to(dtype).save_pretrained(tmp_path / "half")
    found = quantize(tmp_path / "half", ids, bits=bits, group=0, method="nearest", timing=False)
    found.save(tmp_path / "narrow")
    again = load_model(tmp_path / "narrow")
    assert again.dtype == dtype
    for name, tensor in found.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@reader
def test_a_model_with_grouped_keys_keeps_them_and_its_card_says_what_it_needs(tmp_path):
    ids = torch.randint(5, 60, (24, 128), generator=torch.Generator().manual_seed(0))
    how = {"seq_len": 128, "timing": False}
    dense, groups = tiny("llama", max_position_embeddings=128), {"k": 16, "window": 32, "keep_exact": 0}
    grouped = slimformer.compress(dense, ids, recipe="long-context", **groups, **how)
    grouped.save(tmp_path / "long", verify=False)
    narrow = quantize(tmp_path / "long", ids, bits=8, group=0, **how)
    narrow.save(tmp_path / "narrow")
    again = load(tmp_path / "narrow")
    with torch.no_grad():
        torch.testing.assert_close(again(ids[:1]).logits, narrow.model(ids[:1]).logits, atol=1e-5, rtol=1e-5)
    assert "import slimformer" in (tmp_path / "narrow" / "README.md").read_text()
