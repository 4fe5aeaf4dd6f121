"""GGUF: read back by transformers to the same weights, outputs and tokens; what it cannot say is refused."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from conftest import SHARED, needs
from families import tiny, tiny_compressed, tiny_plan, tiny_tokenizer
from slimformer.errors import CannotExport, ExportFailed
from slimformer.export import gguf_check, gguf_file
from slimformer.export.asked import Target
from slimformer.export.graph import sample
from slimformer.export.write import export_model
from slimformer.models import describe
from slimformer.models.load import Loaded, load_model
from vocabularies import SIZE, of_bytes, of_pieces

pytest.importorskip("gguf", reason="gguf is an extra")
TEXT = "Once upon a time there was a girl, and she didn't know."


def export(model, folder, tokenizer=None, verify=True, **how):
    return export_model(
        Loaded("mine", model, tokenizer or of_bytes()), folder / "out", Target("gguf", **how), verify=verify
    )


@torch.no_grad()
def logits(model, **inputs):
    return model(**inputs).logits


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_plain_result_is_read_back_to_the_same_outputs(model_type, tmp_path):
    model = tiny(model_type, vocab_size=SIZE)
    small = model if model_type == "qwen2" else tiny_compressed(model, 0.6, format="plain")
    made = export(small, tmp_path, quant="f32")
    # transformers reads no head width of Qwen from the file
    given = {"config": small.config} if made.notes else {}
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=made.file, **given)
    inputs = sample(small, 3, 9)
    kept = inputs["attention_mask"].bool()
    assert torch.allclose(logits(read.eval(), **inputs)[kept], logits(small, **inputs)[kept], atol=1e-5)
    assert made.difference["largest"] <= 1e-4


@pytest.mark.parametrize("make", [of_bytes, of_pieces])
def test_the_tokenizer_comes_back(make, tmp_path):
    tokenizer = make()
    made = export(tiny("llama", vocab_size=SIZE), tmp_path, tokenizer)
    assert not (tmp_path / "out" / "tokenizer.json").exists(), "then that one would be read"
    read = AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file=made.file)
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert len(ids) < len(TEXT), "the tokenizer must have merged something"
    assert read(TEXT, add_special_tokens=False).input_ids == ids
    assert read.decode(ids).strip() == TEXT
    assert (read.bos_token, read.eos_token) == ("<s>", "</s>")


@pytest.mark.parametrize(
    ("tokenizer", "first"), [(of_bytes(), False), (of_pieces(), True), (of_pieces(space_first=False), False)]
)
def test_the_file_says_whether_a_text_begins_with_a_space(tokenizer, first, tmp_path):
    import gguf

    made = export(tiny("llama", vocab_size=SIZE), tmp_path, tokenizer, verify=False)
    field = gguf.GGUFReader(tmp_path / "out" / made.file).get_field("tokenizer.ggml.add_space_prefix")
    assert field is not None and bool(field.contents()) is first


def test_rounded_numbers_are_smaller_and_further_away(tmp_path):
    model = tiny("llama", vocab_size=SIZE)
    made = {quant: export(model, tmp_path / quant, quant=quant) for quant in gguf_file.QUANTS}
    sizes = [made[quant].bytes for quant in ("f32", "f16", "q8_0")]
    far = [made[quant].difference["largest"] for quant in ("f32", "f16", "q8_0")]
    assert sizes == sorted(sizes, reverse=True)
    assert far == sorted(far)
    assert far[0] == 0 < far[1] < far[2]
    assert made["q8_0"].notes, "width 48 is no whole number of blocks of 32"


def test_frequencies_of_their_own_are_written(tmp_path):
    import gguf

    rope = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    model = tiny("llama", vocab_size=SIZE, rope_parameters=rope)
    made = export(model, tmp_path)
    tensors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "out" / made.file).tensors}
    assert tensors["rope_freqs.weight"].tolist() == pytest.approx([4.0] * 4)
    assert any("config" in note for note in made.notes)


def test_rows_that_stay_in_their_order_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "permuted", lambda array, heads: array)
    monkeypatch.setattr(gguf_file, "unpermuted", lambda array, *_: torch.from_numpy(array.astype("float32")))
    with pytest.raises(ExportFailed, match="q_proj"):
        export(tiny("llama", vocab_size=SIZE), tmp_path)
    assert not (tmp_path / "out").exists()


def test_other_tokens_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "vocabulary", lambda _, size: gguf_file_vocabulary(size))
    with pytest.raises(ExportFailed, match="tokenizer"):
        export(tiny("llama", vocab_size=SIZE), tmp_path)


def gguf_file_vocabulary(size):
    """That of another tokenizer."""
    from slimformer.export.vocabulary import vocabulary

    return vocabulary(of_pieces(), size)


def ragged(model_type, **sizes):
    """A cut by whole heads and neurons whose blocks differ."""
    model = tiny(model_type, vocab_size=SIZE, **sizes)
    weights = {site.name: 8.0**site.block for site in describe(model)}
    return tiny_plan(model, 0.5, recipe="uniform", weights=weights)[1]


def by_rank(kind):
    """A model whose config says ranks of attention, or linear paths, in its blocks."""
    small = ragged("llama")
    ranks = {str(i): {} for i in range(3)}
    small.config.slimformer |= {"ranks": ranks} if kind == "attention" else {"bypass": {"ranks": ranks}}
    return small


def without_neurons():
    """A ragged model with a block that has lost all of its neurons."""
    small = ragged("llama")
    mlp = small.model.layers[1].mlp
    mlp.up_proj, mlp.gate_proj = (torch.nn.Linear(32, 0, bias=False) for _ in range(2))
    mlp.down_proj = torch.nn.Linear(0, 32, bias=False)
    return small


def test_a_qwen_with_fewer_heads_is_said_block_by_block(tmp_path):
    """llama.cpp takes the heads of `qwen2` to be as wide together as the model, and would not open it."""
    import gguf

    small = tiny_compressed(tiny("qwen2", vocab_size=SIZE), 0.6, format="plain")
    made = export(small, tmp_path, quant="f32")
    reader = gguf.GGUFReader(tmp_path / "out" / made.file)
    assert reader.get_field("deci.attention.head_count").contents() == [small.config.num_attention_heads] * 3
    assert made.difference["largest"] == 0


@pytest.mark.parametrize("quant", ["f32", "f16", "q8_0"])
@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2"])
def test_blocks_that_differ_are_said_one_by_one(model_type, quant, tmp_path):
    """And every weight is read back: `check_gguf` builds a model of what the file holds, and nothing else."""
    import gguf

    small = ragged(model_type)
    made = export(small, tmp_path, quant=quant)
    reader = gguf.GGUFReader(tmp_path / "out" / made.file)
    sizes = [(len(b.heads), b.heads[0].units, b.neurons[0].units) for b in describe(small).blocks]
    said = {key: reader.get_field(f"deci.{key}").contents() for key in ("attention.head_count", "feed_forward_length")}
    assert said["attention.head_count"] == [heads for _, heads, _ in sizes]
    assert said["feed_forward_length"] == [neurons for *_, neurons in sizes]
    assert len(set(said["feed_forward_length"])) > 1
    assert made.verified and (made.difference["largest"] == 0) == (quant == "f32")
    assert any("llama.cpp" in note for note in made.notes)


def test_a_weight_that_is_not_in_a_ragged_file_is_noticed(tmp_path, monkeypatch):
    whole = gguf_file._tensors
    monkeypatch.setattr(gguf_file, "_tensors", lambda *given: list(whole(*given))[:-3])
    with pytest.raises(ExportFailed):
        export(ragged("llama"), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "tokenizer", "says"),
    [
        (lambda: ragged("qwen3"), of_bytes, "norms of queries and keys .* format='plain'"),
        (lambda: by_rank("attention"), of_bytes, "by rank in 3 blocks.*cut.attention=heads"),
        (lambda: by_rank("ffn"), of_bytes, "linear paths beside the neurons.*cut.ffn=neurons"),
        (lambda: without_neurons(), of_bytes, "1 block of this model has no neurons left"),
        (lambda: tiny("gpt2", vocab_size=SIZE), of_bytes, "onnx or torch"),
        (lambda: tiny("llama", "classify", vocab_size=SIZE), of_bytes, "language models"),
        (lambda: tiny("llama"), tiny_tokenizer, "WordLevel"),
        (lambda: tiny("llama"), of_bytes, "tokens and the model 64"),
        (lambda: tiny("llama"), lambda: None, "tokenizer.json"),
        (lambda: tiny("llama", hidden_act="gelu"), of_bytes, "gelu"),
    ],
)
def test_what_gguf_cannot_say_is_refused(make, tokenizer, says, tmp_path):
    with pytest.raises(CannotExport, match=says):
        export_model(Loaded("mine", make(), tokenizer()), tmp_path / "out", Target("gguf"))
    assert not list(tmp_path.iterdir())


@needs(SHARED / "models" / "stories260K")
def test_a_trained_model_keeps_its_words(tmp_path):
    loaded = load_model(SHARED / "models" / "stories260K")
    made = export_model(loaded, tmp_path / "out", Target("gguf", quant="f32"))
    read = AutoModelForCausalLM.from_pretrained(tmp_path / "out", gguf_file=made.file).eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file=made.file)
    ids = loaded.processor(gguf_check.TEXT, return_tensors="pt").input_ids
    again = tokens(gguf_check.TEXT, return_tensors="pt", add_special_tokens=False).input_ids
    assert ids[0].tolist()[-again.shape[1] :] == again[0].tolist()
    assert torch.allclose(logits(read, input_ids=ids), logits(loaded.model, input_ids=ids), atol=1e-4)
    said = json.loads((tmp_path / "out" / "export.json").read_text())
    assert said["slimformer_export"] == 1
