"""ONNX files and torch programs: the outputs of the model at any batch and length, ragged or not."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from conftest import skip_or_fail
from families import MODEL_TYPES, heads, tiny, tiny_compressed, tiny_ragged, tiny_tokenizer
from ranked import ranked
from slimformer.checkpoint.sentence import Pooling, pooling_of, with_dense
from slimformer.decompose.rounding import Grid, round_nearest
from slimformer.errors import CannotExport, ExportFailed, SequenceTooLong
from slimformer.export import onnx_file
from slimformer.export.asked import Target
from slimformer.export.compare import TOLERANCE, difference, require_alike, require_close
from slimformer.export.graph import Graph, outputs_of, sample
from slimformer.export.onnx_int4 import codes_and_scales
from slimformer.export.torch_file import write_program
from slimformer.export.write import export_model
from slimformer.models.load import Loaded
from slimformer.rewrite.quantize import quantized


def needs_onnx() -> None:
    missing = [name for name in onnx_file.PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        skip_or_fail(f"{', '.join(missing)} of the extra onnx are not installed")


KINDS = {
    "dense": lambda model: model,
    "plain": lambda model: tiny_compressed(model, 0.6, format="plain"),
    "ragged": tiny_ragged,
    "ranks of nothing": lambda model: ranked(model, "nothing left"),
}


def test_a_ragged_decoder_as_a_program_and_a_fresh_process_that_runs_it(tmp_path):
    graph = Graph(ranked(tiny("llama", num_hidden_layers=3), "narrow keys")).eval()
    found = write_program(graph, tmp_path)
    assert found.largest <= TOLERANCE * found.scale
    assert len({length for _, length in found.shapes}) > 3
    program = torch.export.load(tmp_path / "model.pt2").module()
    with pytest.raises(Exception, match=r"(?i)sequence|<= 64|shape"):
        program(*sample(graph.model, 1, 65).values())  # more positions than there are


def test_a_ragged_encoder_in_onnx_runtime_and_in_int8(tmp_path):
    needs_onnx()
    import onnx

    graph = Graph(tiny_ragged(tiny("bert", "bare")), Pooling("mean", True)).eval()
    found = onnx_file.write_onnx(graph, tmp_path)
    assert found.largest <= TOLERANCE * found.scale
    session = onnx_file.open_session(tmp_path / "model.onnx")
    assert [each.name for each in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [each.name for each in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    assert [each.shape for each in session.get_inputs()] == [["batch", "sequence"]] * 3
    whole = (tmp_path / "model.onnx").stat().st_size
    onnx_file.quantize(tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx").graph.initializer
    scales = {each.name: list(each.dims) for each in written if each.name.endswith("_scale")}
    tables = [dims for name, dims in scales.items() if "embeddings" in name]
    assert tables and all(dims in ([], [1]) for dims in tables), "one scale for a table"
    assert any(dims > [1] for name, dims in scales.items() if "embeddings" not in name), "one for each output"
    rough = difference(graph, onnx_file.runner(tmp_path / "model.onnx", graph))
    require_alike(rough)
    assert found.largest < rough.largest
    assert (tmp_path / "model.onnx").stat().st_size < whole


def test_four_bits_take_half_of_the_file_and_keep_a_grid_that_is_there(tmp_path):
    needs_onnx()
    import onnx

    model = tiny("bert", "bare", vocab_size=400, hidden_size=64, intermediate_size=256)
    on_grid = quantized(model, Grid(4, 64), method="nearest", tables=True).model
    for name, each in (("off", model), ("on", on_grid)):
        for bits in (8, 4):
            (tmp_path / f"{name}{bits}").mkdir()
            onnx_file.write_onnx(Graph(each, Pooling("mean", True)).eval(), tmp_path / f"{name}{bits}", bits=bits)
    gaps, graph = {}, Graph(on_grid, Pooling("mean", True)).eval()
    for bits in (8, 4):
        gaps[bits] = difference(graph, onnx_file.runner(tmp_path / f"on{bits}" / "model.onnx", graph)).largest
    assert gaps[4] < 1.5 * gaps[8], "codes are those of the model: only products are rounded further, as in int8"
    written = {bits: onnx.load(tmp_path / f"off{bits}" / "model.onnx") for bits in (8, 4)}
    sizes = {bits: sum(len(t.raw_data) for t in each.graph.initializer) for bits, each in written.items()}
    assert sizes[4] < 0.7 * sizes[8]
    kinds = [node.op_type for node in written[4].graph.node]
    assert "GatherBlockQuantized" in kinds and kinds.count("MatMulInteger") == len(
        [node for node in written[8].graph.node if node.op_type == "MatMulInteger"]
    )


def test_codes_and_scales_are_those_of_the_grid_weights_are_on():
    W = torch.randn(8, 96, generator=torch.Generator().manual_seed(0))
    for group in (16, 32):
        rounded = round_nearest(W, Grid(4, group))
        Q, s = codes_and_scales(rounded.W.numpy())
        assert s.shape == (8, 96 // group)
        assert (Q.reshape(8, -1, group) * s[..., None]).reshape(8, 96) == pytest.approx(rounded.W.numpy(), rel=1e-6)


def test_the_outputs_of_another_model_are_noticed():
    graph, other = Graph(tiny("bert")).eval(), Graph(tiny("bert", seed=1)).eval()
    require_close(difference(graph, lambda inputs: outputs_of(graph, inputs)))
    found = difference(graph, lambda inputs: outputs_of(other, inputs))
    with pytest.raises(ExportFailed, match="other outputs"):
        require_close(found)
    with pytest.raises(ExportFailed, match="too much"):
        require_alike(found)


def test_padding_is_told_apart_and_masks_matter():
    graph = Graph(tiny("bert")).eval()

    def unmasked(inputs):
        return outputs_of(graph, {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])})

    with pytest.raises(ExportFailed):
        require_close(difference(graph, unmasked))


@pytest.mark.parametrize(("kind", "normalize"), [("mean", True), ("cls", False)])
def test_embeddings_are_those_of_sentence_transformers(kind, normalize, tmp_path):
    sentences = pytest.importorskip("sentence_transformers", reason="sentence-transformers is an extra")
    model, tokenizer = tiny("bert", "bare"), tiny_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    parts = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")][: 3 if normalize else 2]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(parts)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    for _, path in parts[1:]:
        (tmp_path / path).mkdir()
    modes = {f"pooling_mode_{name}": name.startswith(kind) for name in ("cls_token", "mean_tokens", "max_tokens")}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    assert pooling_of(tmp_path) == Pooling(kind, normalize)
    texts = ["w5 w6 w7 w8", "w9 w10"]
    given = tokenizer(texts, padding=True, return_tensors="pt")
    given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    found = outputs_of(Graph(model, pooling_of(tmp_path)), given)["sentence_embedding"]
    expected = sentences.SentenceTransformer(str(tmp_path), device="cpu").encode(texts, convert_to_tensor=True)
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_linear_module_after_the_pooling_belongs_to_the_embedding(tmp_path):
    sentences = pytest.importorskip("sentence_transformers", reason="sentence-transformers is an extra")
    model, tokenizer = tiny("bert", "bare"), tiny_tokenizer()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    names = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "3_Normalize")]
    modules = [{"path": path, "type": f"sentence_transformers.models.{name}"} for name, path in names]
    for _, path in names[1:]:
        (tmp_path / path).mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True})
    )
    for name, content in with_dense(modules, torch.randn(8, 32, generator=torch.Generator().manual_seed(0))).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    given = tokenizer(["w5 w6 w7 w8", "w9 w10"], padding=True, return_tensors="pt")
    given["token_type_ids"] = torch.zeros_like(given["input_ids"])
    found = outputs_of(Graph(model, pooling_of(tmp_path)), given)["sentence_embedding"]
    assert found.shape == (2, 8)
    opened = sentences.SentenceTransformer(str(tmp_path), device="cpu")
    expected = opened.encode(["w5 w6 w7 w8", "w9 w10"], convert_to_tensor=True)
    assert torch.allclose(found, expected, atol=1e-5)
    said = json.loads((tmp_path / "2_Dense" / "config.json").read_text())
    (tmp_path / "2_Dense" / "config.json").write_text(
        json.dumps({**said, "activation_function": "torch.nn.modules.activation.Tanh"})
    )
    assert pooling_of(tmp_path) is None, "what is more than a product is not exported as one"


def test_other_pipelines_have_no_embedding(tmp_path):
    assert pooling_of(None) is None
    assert pooling_of(tmp_path) is None
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "a.Transformer", "path": ""}]))
    assert pooling_of(tmp_path) is None


@pytest.mark.parametrize(
    ("how", "error", "says"),
    [
        ({"to": "tflite"}, CannotExport, "onnx, torch, gguf"),
        ({"to": "torch", "int8": True}, CannotExport, "to='onnx'"),
        ({"to": "onnx", "quant": "q8_0"}, CannotExport, "int8=True"),
        ({"to": "torch", "int4": True}, CannotExport, "to='onnx'"),
        ({"to": "onnx", "int4": True, "int8": True}, CannotExport, "one of the two"),
        ({"to": "gguf", "seq_len": 8}, CannotExport, "any length"),
        ({"to": "torch", "seq_len": 65}, SequenceTooLong, "64 positions"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_work(how, error, says, tmp_path):
    with pytest.raises(error, match=says):
        export_model(Loaded("mine", tiny("llama"), None), tmp_path / "out", Target(**how))
    assert not list(tmp_path.iterdir())


def test_without_the_packages_the_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotExport, match=r"slimformer\[onnx\]"):
        onnx_file.require_packages()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_family_leaves_as_it_is(model_type, kind, tmp_path):
    if kind == "plain" and model_type in ("bert", "roberta", "distilbert", "opt", "gpt2"):
        pytest.skip("neurons only; the ragged case holds them")
    graph = Graph(KINDS[kind](tiny(model_type))).eval()
    write_program(graph, tmp_path)
    needs_onnx()
    onnx_file.write_onnx(graph, tmp_path)
    onnx_file.write_onnx(graph, tmp_path, bits=8)


@pytest.mark.slow
@pytest.mark.parametrize(("model_type", "head"), [(t, h) for t in ("distilbert", "gpt2", "vit") for h in heads(t)[1:]])
def test_every_head_leaves_as_it_is(model_type, head, tmp_path):
    needs_onnx()
    onnx_file.write_onnx(Graph(tiny_ragged(tiny(model_type, head))).eval(), tmp_path)


@pytest.mark.slow
def test_a_length_can_be_fixed(tmp_path):
    needs_onnx()
    graph = Graph(tiny("bert")).eval()
    onnx_file.write_onnx(graph, tmp_path, seq_len=24)
    assert onnx_file.open_session(Path(tmp_path) / "model.onnx").get_inputs()[0].shape == ["batch", 24]
    write_program(graph, tmp_path, seq_len=24)


def test_what_torch_cannot_trace_is_one_line(tmp_path):
    model = tiny("llama", "classify")
    model.config.pad_token_id = None  # then it refuses batches
    with pytest.raises(CannotExport, match=r"torch cannot export this model: .*padding"):
        write_program(Graph(model).eval(), tmp_path)
