"""What is read off a model's weights is what the model does with them, for every family."""

from __future__ import annotations

import pytest
import torch

from families import MODEL_TYPES, tiny, tiny_batches
from ranked import ranked, settings
from slimformer.calibrate.collect import collect
from slimformer.inspect.activations import STREAMS, StreamSpectrum, observe
from slimformer.inspect.compressibility import compressibility
from slimformer.inspect.heads import head_factors
from slimformer.inspect.parameters import parameter_formula
from slimformer.inspect.weights import block_weights, gaussian_matrix
from slimformer.linalg.moments import Moments
from slimformer.models import FAMILIES, describe
from slimformer.models.hooks import listening
from slimformer.plan.cost import full_size, site_cost

every_type = pytest.mark.parametrize("model_type", MODEL_TYPES)


def heard(model, batch, *, inputs=(), outputs=()):
    """What modules were given and what they gave, in one run of the model."""
    found = {}
    ears = [{name: lambda X, name=name: found.__setitem__(name, X) for name in names} for names in (inputs, outputs)]
    with torch.inference_mode(), listening(model, inputs=ears[0], outputs=ears[1]):
        model(**batch.inputs)
    return found


@every_type
def test_the_formula_counts_every_parameter(model_type):
    for model in (tiny(model_type), *(ranked(tiny(model_type), name) for name in settings(model_type)[:2])):
        found = parameter_formula(model, describe(model))
        assert found.exact == sum(p.numel() for p in model.parameters())
        assert all(term.value >= 0 for term in found.terms)


@pytest.mark.parametrize("model_type", ["bert", "gpt2"])
def test_the_textbook_block_has_12_d_squared_and_13_d(model_type):
    wide = {"bert": {"intermediate_size": 128}, "gpt2": {"n_inner": 128}}[model_type]
    model = tiny(model_type, **wide)
    found, values = parameter_formula(model, describe(model)), {}
    for term in found.terms:
        values[term.what] = term.value
    matrices = values["attention matrices"] + values["feed-forward matrices"]
    assert matrices == found.rule_blocks == 12 * 3 * 32**2
    assert values["biases of these"] + values["norms and other vectors in blocks"] == 3 * 13 * 32


def test_an_output_matrix_that_is_not_tied_counts_twice():
    tied, apart = (parameter_formula(m, describe(m)) for m in (tiny("gpt2"), tiny("llama")))
    assert (tied.tied, apart.tied, parameter_formula(tiny("vit"), describe(tiny("vit"))).tied) == (True, False, None)
    assert apart.rule_embeddings == 2 * tied.rule_embeddings


@pytest.mark.parametrize("model_type", [t for t in MODEL_TYPES if not FAMILIES[t].image])  # images are never one token
def test_heads_write_what_their_factors_say(model_type):
    """With one key to attend to, attention is linear: the difference of two outputs is Σ W_oᵀ W_v of the inputs'."""
    model = tiny(model_type)
    architecture, batch = describe(model), tiny_batches(model, 1, length=2)[0]
    batch.inputs["input_ids"], batch.inputs["attention_mask"] = (
        batch.inputs["input_ids"][:, :1],
        torch.ones(8, 1).long(),
    )
    site, path = architecture["blocks.1.attn.heads"], architecture.blocks[1].heads[0].writers[0].module
    found = heard(model, batch, inputs=[path], outputs=[site.reader])
    factors = head_factors(model, architecture, 1)
    x, y = (found[name].reshape(8, -1) for name in (path, site.reader))
    W = torch.einsum("hdi,hdj->ij", factors.W_o, factors.W_v)
    assert torch.allclose((x[1:] - x[:1]) @ W.T, y[1:] - y[:1], atol=1e-4)


@pytest.mark.parametrize("model_type", [t for t in MODEL_TYPES if not FAMILIES[t].causal])
def test_heads_compare_what_their_factors_say(model_type):
    """log P of two tokens, twice differenced, is the bilinear form of W_qᵀ W_k on their difference."""
    model = tiny(model_type)
    model.set_attn_implementation("eager")
    architecture, batch = describe(model), tiny_batches(model, 1)[0]
    attention = architecture.blocks[1].heads[0].module
    path = architecture.blocks[1].heads[0].writers[0].module
    found = heard(model, batch, inputs=[path], outputs=[attention])
    P, x = found[attention][1][0].log(), found[path][0]
    twice = P[:, 0, 0] - P[:, 0, 1] - P[:, 1, 0] + P[:, 1, 1]
    factors, d = head_factors(model, architecture, 1), x[0] - x[1]
    scores = ((factors.W_q @ d) * (factors.W_k @ d)).sum(-1) * model.get_submodule(attention).scaling
    assert torch.allclose(twice, scores, atol=1e-4)


@every_type
def test_weights_are_looked_at_block_by_block(model_type):
    for model in (tiny(model_type), ranked(tiny(model_type), "nothing left")):
        architecture = describe(model)
        for weights in block_weights(model, architecture):
            found = compressibility(weights, architecture.hidden)
            assert 0 < found.keep <= 1
            assert all(0 < spread.rank90 <= spread.rank95 <= spread.rank99 <= 1 for spread in found.groups.values())
            assert all(spread.stable_rank <= spread.effective_rank for spread in found.groups.values())


def test_a_layer_cut_to_rank_is_said_to_be_compressible():
    model = tiny("opt")
    architecture = describe(model)
    before = [compressibility(weights, 32) for weights in block_weights(model, architecture)]
    down = model.get_submodule(architecture["blocks.1.ffn.hidden"].reader)
    U, σ, Vh = torch.linalg.svd(down.weight.detach(), full_matrices=False)
    down.weight.data = (U[:, :4] * σ[:4]) @ Vh[:4]
    after = [compressibility(weights, 32) for weights in block_weights(model, architecture)]
    assert after[1].groups["down"].rank99 <= 4 / 32
    assert after[1].keep < before[1].keep
    assert (after[0], after[2]) == (before[0], before[2])


@every_type
def test_the_mean_of_a_layer_is_weighted_by_what_is_stored(model_type):
    """Keys and values that queries share count once."""
    model = tiny(model_type)
    architecture = describe(model)
    attention, neurons = architecture.blocks[0].sites
    stored = {name: site_cost(site, full_size(site), 0).macs for name, site in (("a", attention), ("f", neurons))}
    found = compressibility(next(iter(block_weights(model, architecture))), architecture.hidden)
    heads = [found.groups[name].keep for name in ("qk", "vo")]
    matrices = [spread.keep for name, spread in found.groups.items() if name not in ("qk", "vo")]
    expected = (stored["a"] * sum(heads) / 2 + stored["f"] * sum(matrices) / len(matrices)) / sum(stored.values())
    assert found.keep == pytest.approx(expected)


def test_random_weights_need_what_random_weights_need():
    σ = gaussian_matrix(300, 1200)
    edges = (1 - 0.5) * 1200**0.5, (1 + 0.5) * 1200**0.5  # Marchenko & Pastur
    assert edges[0] * 0.95 < float(σ[-1]) < float(σ[0]) < edges[1] * 1.05


@every_type
def test_streams_are_those_the_calibration_sees(model_type):
    model = tiny(model_type)
    architecture, batches = describe(model), tiny_batches(model, 2)
    blocks = list(observe(model, architecture, batches))
    for mine, theirs in zip(blocks, collect(model, architecture, {"fit": batches}), strict=True):
        assert tuple(mine.moments) == STREAMS
        for name, kind in (("context", "attn.heads"), ("neurons", "ffn.hidden")):
            gram = theirs.sites[f"blocks.{mine.block}.{kind}"]["fit"].gram
            assert torch.allclose(mine.moments[name].gram, gram, rtol=1e-4, atol=1e-4)


def test_the_spectrum_of_a_stream_is_that_of_its_centred_rows():
    X = torch.randn(50, 6, dtype=torch.float64) + 3
    found = StreamSpectrum.of(Moments.of(X))
    assert torch.allclose(found.values, torch.linalg.svdvals(X - X.mean(0)) / 50**0.5)
    assert found.mean_share == pytest.approx(float(X.mean(0).square().sum() / X.square().sum(1).mean()))
    assert found.to_json()["width"] == 6
