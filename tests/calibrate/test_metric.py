"""The metric: half of E ‖R W δ‖² is the divergence that a small error δ of what a block writes causes."""

import pytest
import torch

from calibrated import stock
from families import MODEL_TYPES, heads, tiny, tiny_batches
from slimformer.calibrate import metric as metric_file
from slimformer.calibrate.collect import collect
from slimformer.calibrate.metric import fisher_metric
from slimformer.calibrate.store import begin, open_statistics, write_block
from slimformer.decompose.metric import metric_root
from slimformer.models import describe
from slimformer.models.hooks import nudged
from slimformer.models.outputs import harm
from slimformer.models.walk import real_rows, stack_rows

PAIRED = ("bart", "t5")  # an encoder and a decoder: the way back leads through cross-attention


def test_the_root_squares_to_the_shrunk_metric_and_shrinking_keeps_the_trace():
    X = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    G = X.mT @ X  # singular: fewer rows than columns
    R = metric_root(G, shrink=0.25)
    torch.testing.assert_close(R.mT @ R, 0.75 * G + 0.25 * G.trace() / 8 * torch.eye(8, dtype=G.dtype))
    assert (R.mT @ R).trace() == pytest.approx(float(G.trace()))
    assert torch.equal(metric_root(torch.zeros(3, 3)), torch.eye(3))


@pytest.mark.parametrize("kind", [*MODEL_TYPES, *PAIRED])
def test_every_site_has_a_metric_and_the_model_is_left_as_it_was(kind):
    model = tiny(kind)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.requires_grad_(False)  # nothing may depend on weights that want gradients
    found = fisher_metric(model, tiny_batches(model, 1))
    assert found.keys() == describe(model).by_name.keys()
    assert all(bool(R.isfinite().all()) and float(R.diagonal().min()) > 0 for R in found.values())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.parameters())


def test_the_same_seed_gives_the_same_metric():
    model = tiny("gpt2")
    a, b, c = (fisher_metric(model, tiny_batches(model, 1), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)


def by_one_backward_pass(model, batches) -> dict[str, torch.Tensor]:
    """Σ g gᵀ over outputs, from the gradients of the whole model at once."""
    architecture, generator, outputs = describe(model), torch.Generator().manual_seed(0), 0
    sites = list(architecture)
    sums = {site.name: torch.zeros(site.outer, site.outer, dtype=torch.float64) for site in sites}
    for part in metric_file.first_tokens(batches):
        with torch.enable_grad(), nudged(model, [site.reader for site in sites]) as zeros:
            loss, count = metric_file.surprise(model(**part.inputs), part.mask, generator)
            gradients = [torch.autograd.grad(loss, zeros[site.reader], retain_graph=True) for site in sites]
        for site, runs in zip(sites, gradients, strict=True):
            g = real_rows(torch.cat(runs), stack_rows(part, runs[0], architecture.layout(site))).float()
            sums[site.name] += (g.mT @ g).double()
        outputs += count
    return {name: metric_root(G / outputs) for name, G in sums.items()}


@pytest.mark.parametrize(("kind", "head"), [(kind, head) for kind in (*MODEL_TYPES, *PAIRED) for head in heads(kind)])
def test_the_backward_walk_gives_the_bits_of_one_backward_pass(kind, head):
    """Branches of the residual stream meet inside blocks, so gradients are added up in the same order."""
    model = tiny(kind, head)
    batches = tiny_batches(model, 2)
    found, expected = fisher_metric(model, batches), by_one_backward_pass(model, batches)
    assert found.keys() == expected.keys()
    for name in expected:
        if kind in PAIRED:  # gradients of several blocks meet at the end of the encoder, and add up in another order
            torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
        else:
            assert torch.equal(found[name], expected[name])


@pytest.mark.parametrize("kind", ["llama", "bert", "vit"])
def test_half_the_quadratic_form_is_the_divergence_of_a_small_independent_error(kind, monkeypatch):
    """Errors that are independent from token to token, so that nothing but the form itself is tested."""
    monkeypatch.setattr(metric_file, "metric_root", lambda G: G)  # as it is: neither shrunk nor rooted
    monkeypatch.setattr(metric_file, "TOKENS", 10**9)
    model = stock(kind).model  # in double precision
    batches = tiny_batches(model, 6) * 20  # drawn again and again
    metric = fisher_metric(model, batches)
    site = describe(model).sites[2]
    generator = torch.Generator().manual_seed(0)
    predicted, measured = [], []
    for batch in batches[:6] * 4:
        with torch.no_grad():
            dense = model(**batch.inputs)
            noise = {}

            def push(_module, _args, output, noise=noise):
                noise["δ"] = 1e-3 * torch.randn(output.shape, dtype=output.dtype, generator=generator)
                return output + noise["δ"]

            handle = model.get_submodule(site.reader).register_forward_hook(push)
            small = model(**batch.inputs)
            handle.remove()
        moved, _ = harm(dense, small, batch.mask)
        rows = noise["δ"].flatten(0, -2)
        rows = rows if batch.mask is None else rows[batch.mask.flatten()]
        measured.append(moved)
        predicted.append(0.5 * float(((rows @ metric[site.name]) * rows).sum()) / len(rows))
    assert sum(predicted) == pytest.approx(sum(measured), rel=0.15)


def test_the_metric_is_kept_beside_the_moments(tmp_path):
    model = tiny("opt")
    batches = tiny_batches(model, 1)
    metric = fisher_metric(model, batches)
    known = stock("opt")
    begin(tmp_path, _provenance(known))
    for block in collect(model, describe(model), {"fit": batches, "select": batches}, metric):
        write_block(tmp_path, block)
    for i in range(describe(model).n_blocks):
        read = open_statistics(tmp_path).block(i)
        assert read.metric.keys() == {site.name for site in describe(model).blocks[i].sites}
        assert all(torch.equal(read.metric[name], metric[name]) for name in read.metric)


def _provenance(known):
    from slimformer.calibrate.store import Provenance

    return Provenance(
        model="tiny", fingerprint="0", model_type="opt", data="random", data_hash="0", seed=0, seq_len=8,
        tokens={"fit": 1, "select": 1}, dtype="float32", n_blocks=known.architecture.n_blocks, versions={},
    )  # fmt: skip
