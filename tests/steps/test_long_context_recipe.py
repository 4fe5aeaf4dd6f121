"""The recipe long-context: layers by held-out error, a folder that opens in a fresh process, refusals in one line."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForMaskedLM

import slimformer
from families import VOCABULARY, tiny, tiny_tokenizer
from slimformer.calibrate.text import Batch
from slimformer.errors import CannotGroup, SlimformerError
from slimformer.models import describe
from slimformer.nn.long_context import FIELD, attention_modules, install
from slimformer.steps.long_context import LongContext, layer_errors, require_groupable, sequence_length_for
from slimformer.steps.long_context_fit import fit_projections
from terminal import done, refused, save_tiny


def token_rows(n: int, rows: int = 48) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (rows, n), generator=torch.Generator().manual_seed(0))


def grouped(model_type: str, length: int = 48, **how):
    asked = {"recipe": "long-context", "seq_len": length, "timing": False, **how}
    return slimformer.compress(tiny(model_type), token_rows(length), **asked)


def test_the_limit_decides_how_many_layers_are_grouped():
    every = grouped("llama", k=16, window=16, keep_exact=0).report.long_context
    harm = every["harm_select"]
    some = grouped("llama", k=16, window=16, max_kl=0.7 * harm).report.long_context
    assert sum(each["grouped"] for each in every["layers"]) == 3 and every["harm_report"] > 0
    chosen = [each["error"] for each in some["layers"] if each["grouped"]]
    left = [each["error"] for each in some["layers"] if not each["grouped"]]
    assert 0 < len(chosen) < 3 and max(chosen) <= min(left) and some["harm_select"] <= 0.7 * harm
    with pytest.raises(CannotGroup, match="no layer can be grouped: the mildest alone"):
        grouped("llama", k=16, window=16, max_kl=1e-12)
    with pytest.raises(CannotGroup, match="leaves none of 3"):
        grouped("llama", k=16, window=16, keep_exact=3)


def test_an_errors_order_is_the_better_of_both():
    found = grouped("llama", k=16, window=16, keep_exact=0)
    table = getattr(found.model.config, FIELD)
    told = {str(each["layer"]): each["second_order"] for each in found.report.long_context["layers"]}
    assert {layer: said["second_order"] for layer, said in table["layers"].items()} == told
    assert all(0 < each["error"] < 1.5 for each in found.report.long_context["layers"])


@pytest.mark.parametrize("kind", ["cluster", "mean", "least-squares", "learned"])
def test_encoders_by_every_kind(kind):
    found = grouped("bert", k=8, kind=kind, keep_exact=1, steps=3).report.long_context
    assert found["kind"] == kind and sum(each["grouped"] for each in found["layers"]) == 2
    assert found["window"] is None and found["harm_report"] > 0


def test_training_and_least_squares_bring_attention_nearer():
    model, data = tiny("bert"), token_rows(32, 16)
    batches = [Batch({"input_ids": rows}, None) for rows in data.split(8)]
    errors = {}
    for kind in ("learned", "least-squares"):
        small = tiny("bert")
        said = {str(i): {} for i in range(3)}
        setattr(small.config, FIELD, {"format": 1, "kind": kind, "k": 8, "length": 32, "layers": said})
        install(small)
        before = [each.error for each in layer_errors(small, batches)]
        fit_projections(small, kind, batches, steps=15)
        errors[kind] = [each.error for each in layer_errors(small, batches)]
        assert all(new < old for new, old in zip(errors[kind], before, strict=True))
        kept = {name: p for name, p in small.named_parameters() if "projected" not in name}
        assert all(torch.equal(p, kept[name]) for name, p in model.named_parameters())


def test_projections_are_saved_where_they_are_used(tmp_path):
    found = grouped("bert", k=8, kind="learned", keep_exact=1, steps=2)
    found.model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    modules = attention_modules(again, describe(again).family)
    assert sum(hasattr(module, "projected") for module in modules) == 2
    rows = token_rows(48, 2)
    torch.testing.assert_close(again(input_ids=rows).logits, found.model(input_ids=rows).logits)
    with pytest.raises(CannotGroup, match="start from the dense model"):
        require_groupable(again, describe(again), LongContext(k=8))


def test_the_shell_makes_a_folder_that_a_fresh_process_opens_to_the_same_outputs(tmp_path):
    """Verified on a text long enough to be grouped; with samples and times, so generation runs, too."""
    dense, text = tmp_path / "dense", tmp_path / "text.txt"
    tiny("llama", max_position_embeddings=80).save_pretrained(dense)
    tiny_tokenizer().save_pretrained(dense)
    words = [f"w{i % 50}" for i in range(6000)]
    text.write_text("\n\n".join(" ".join(words[i : i + 100]) for i in range(0, 6000, 101)))
    args = ("--recipe", "long-context", "--k", "8", "--window", "16", "--keep-exact", "1", "--data", text)
    found = json.loads(done("compress", dense, *args, "--tokens", "1000", "--json", "--out", tmp_path / "long").out)
    assert found["long_context"]["k"] == 8 and found["recipe"] == "long-context" and found["seq_len"] == 80
    assert json.loads((tmp_path / "long" / "report.json").read_text()) == found
    small = slimformer.load(tmp_path / "long")
    assert sum(module.grouping is not None for module in attention_modules(small, describe(small).family)) == 2
    card = (tmp_path / "long" / "README.md").read_text()
    assert "import slimformer" in card and "8 groups of keys" in card


@pytest.mark.parametrize(
    ("model_type", "wanted", "says"),
    [
        ("llama", LongContext(k=1), "k 1: attention needs two groups"),
        ("llama", LongContext(k=16, kind="magic"), "no kind 'magic'"),
        ("llama", LongContext(k=16, kind="learned"), "a decoder would see the future"),
        ("llama", LongContext(k=9), "no common block"),
        ("vit", LongContext(k=16), "images have few patches"),
    ],
)
def test_refusals(model_type, wanted, says):
    model = tiny(model_type)
    with pytest.raises(CannotGroup, match=says):
        require_groupable(model, describe(model), wanted)


def test_sliding_windows_cut_models_and_short_texts_are_refused():
    sliding = tiny("mistral", sliding_window=8)
    with pytest.raises(CannotGroup, match="slide a window"):
        require_groupable(sliding, describe(sliding), LongContext(k=16))
    llama = tiny("llama")
    with pytest.raises(CannotGroup, match="nothing to gain; give a smaller k="):
        sequence_length_for(llama, describe(llama), LongContext(k=64), None)
    with pytest.raises(SlimformerError, match="keeps every weight"):
        slimformer.compress(llama, token_rows(48), recipe="long-context", macs=0.5)


def test_the_shell_refuses_in_one_line(tmp_path):
    model = save_tiny(tmp_path / "x", "llama")
    said = refused("compress", model, "--macs", "0.5", "--k", "8", "--out", tmp_path / "y")
    assert "--k is for the step long_context, and the recipe 'balanced' has none" in said
    line = refused("compress", model, "--recipe", "long-context", "--head-data", model, "--out", tmp_path / "y")
    assert "has both long_context and head; leave head out: the weights stay" in line
    line = refused("compress", model, "--recipe", "long-context", "--macs", "0.5", "--out", tmp_path / "y")
    assert "takes no --macs; it keeps every weight, so leave it out" in line
