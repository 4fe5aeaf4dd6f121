"""A family nobody wrote down is found on the model itself: what the file would say, and nothing false."""

from dataclasses import replace

import pytest
import torch
from transformers import AlbertConfig, AlbertModel

import slimformer
from families import LENGTH, VOCABULARY, tiny
from slimformer.errors import UnknownArchitecture
from slimformer.inspect.discovery import discover, discovery_note
from slimformer.inspect.proofs import LAWS, prove
from slimformer.inspect.responses import Bench, calls_of, probe_inputs
from slimformer.messages.notes import OpeningNote
from slimformer.models import FAMILIES, describe
from slimformer.models.families import bring_family

# With grouped queries, fused by role, fused head by head, halves of one matrix, post-norm, images.
QUICK = ("llama", "modernbert", "gpt_neox")
SLOW = ("bert", "distilbert", "gpt2", "opt", "vit", "qwen3", "electra", "gemma2", "dinov2", "granite")


def cut(model):
    return {(site.name, site.units, site.group) for site in describe(model) if not site.stays}


@pytest.mark.parametrize("model_type", [*QUICK, *(pytest.param(t, marks=pytest.mark.slow) for t in SLOW)])
def test_blind_it_finds_the_sites_of_the_file(model_type, monkeypatch):
    model = tiny(model_type)
    known, causal = cut(model), FAMILIES[model_type].causal
    monkeypatch.delitem(FAMILIES, model_type)
    found = discover(model, fresh=False)
    bring_family(model.config, found.family)
    assert cut(model) == known and found.family.causal == causal
    assert {proof.law for proof in found.proofs} == set(LAWS) and all(proof.holds for proof in found.proofs)


def test_blind_it_finds_heads_beside_experts_and_leaves_these(monkeypatch):
    known = {site for site in cut(tiny("mixtral")) if site[0].endswith(".heads")}
    model = tiny("mixtral")
    monkeypatch.delitem(FAMILIES, "mixtral")
    found = discover(model, fresh=False)
    bring_family(model.config, found.family)
    assert cut(model) == known


UNPROVED = {"olmo2": "o_proj", "mpnet": "does not run", "phi3": "one matrix"}


@pytest.mark.parametrize(("model_type", "reason"), UNPROVED.items())
def test_what_cannot_be_proved_is_not_offered_and_the_reason_is_said(model_type, reason, monkeypatch):
    model = tiny(model_type)
    known = cut(model)
    monkeypatch.delitem(FAMILIES, model_type)
    found = discover(model, fresh=False)
    bring_family(model.config, found.family)
    assert cut(model) <= known and {name.split(".")[2] for name, *_ in cut(model)} == {"ffn"}
    assert any(reason in each for each in found.refused)


def test_a_row_reaches_the_unit_it_writes_and_no_other():
    model = tiny("llama")
    (call,) = calls_of(model, probe_inputs(model), ["model.layers.1"])["model.layers.1"]
    bench = Bench(model.model.layers[1], call)
    assert bench.reach_of("mlp.up_proj", 7).columns == (7,)
    assert bench.reach_of("self_attn.q_proj", 9).columns == tuple(range(8, 16))
    assert bench.reach_of("self_attn.k_proj", 9).columns == tuple(range(16, 32))  # two queries share it
    assert bench.reach_of("self_attn.v_proj", 9).columns == (17, 25)


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"by_head": True}, "rows"),  # other rows than those of a head would be cut
        ({"derived": ()}, "copies"),  # a count that goes stale
    ],
)
def test_a_file_that_is_wrong_is_not_proved(change, law):
    model = tiny("gpt2")
    family = FAMILIES["gpt2"]
    (stack,) = family.stacks
    parts = (replace(stack.parts[0], **change), stack.parts[1])
    bring_family(model.config, replace(family, stacks=(replace(stack, parts=parts),)))
    wrong = [proof for proof in prove(model, fresh=False) if not proof.holds]
    assert law in {proof.law for proof in wrong} and {proof.part for proof in wrong} == {"attn"}


def test_compress_discovers_what_it_does_not_know_and_says_so(monkeypatch, tmp_path):
    tiny("distilbert").save_pretrained(tmp_path / "dense")
    monkeypatch.delitem(FAMILIES, "distilbert")
    ids = torch.randint(5, VOCABULARY, (80, LENGTH), generator=torch.Generator().manual_seed(0))
    with pytest.warns(OpeningNote, match="nobody has written down models of type 'distilbert'; found and proved"):
        result = slimformer.compress(tmp_path / "dense", ids, macs=0.6, tokens=400, timing=False)
    assert result.plan.macs <= 0.6 and any("found and proved" in note for note in result.report.warnings)
    result.save(tmp_path / "small")
    assert describe(slimformer.load(tmp_path / "small")).sites == describe(result.model).sites


def test_one_block_that_runs_many_times_is_refused_with_the_reason():
    config = AlbertConfig(
        vocab_size=VOCABULARY, embedding_size=16, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=48,
    )  # fmt: skip
    with pytest.raises(UnknownArchitecture, match=r"nothing of models of type 'albert' could be proved.*run once each"):
        discover(AlbertModel(config).eval())


def test_of_a_type_that_has_a_file_no_more_is_said_than_that_it_was_not_looked_at():
    found = discover(tiny("llama"))
    assert discovery_note("llama", found).startswith("the file of models of type 'llama' was not looked at; found and")
    assert discovery_note("odd", found).startswith("nobody has written down models of type 'odd'; found and proved")
