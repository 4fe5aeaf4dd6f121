"""Minimal attention: every form is what its formula says, starts at the right scale, and can be trained."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageClassification, AutoModelForSequenceClassification

import slimformer  # noqa: F401  registers the architecture
from dealing import pairs
from slimformer.nn.minimal import MinimalAttention, collapse
from slimformer.nn.minimal_config import QK, VO, MinimalConfig, attention_parameters, parameter_count
from slimformer.nn.minimal_model import MinimalForImageClassification

each_form = pytest.mark.parametrize(  # every qk and every vo, but not every pair
    ("qk", "vo"), [*((qk, "full") for qk in QK), *(("collapsed", vo) for vo in VO[1:]), ("symmetric", "none")]
)
every_qk = pytest.mark.parametrize("qk", QK)
one_and_four = pytest.mark.parametrize("heads", [1, 4])
POSITIVE = ("shared", "symmetric")  # W_qk = T Tᵀ


def configured(**fields) -> MinimalConfig:
    usual = {"hidden_size": 32, "num_hidden_layers": 2, "image_size": 8, "patch_size": 2, "num_labels": 10}
    return AutoConfig.for_model("minimal", **{**usual, **fields})


def attention(dtype=torch.float64, seed: int = 0, **fields) -> MinimalAttention:
    """Attention with weights as at the start, and biases that are not zero."""
    torch.manual_seed(seed)
    model = AutoModelForImageClassification.from_config(configured(**fields))
    found = model.minimal.layers[0].attention.to(dtype).eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return found


def inputs(rows: int = 4, length: int = 17, width: int = 32) -> torch.Tensor:
    """What a norm gives."""
    x = torch.randn(rows, length, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return torch.nn.functional.layer_norm(x, (width,))


@pytest.mark.parametrize(("qk", "vo", "heads", "more"), pairs(QK, VO, (1, 4), (
    {}, {"mlp_ratio": 0, "pool": "mean"}, {"shaped": True, "qkv_bias": False},
    {"do_layer_norm_before": False, "mlp_ratio": 1.5, "num_channels": 3},
    {"vocab_size": 30, "max_position_embeddings": 12},
)))  # fmt: skip
def test_parameters_are_those_of_the_formula(qk, vo, heads, more):
    config = configured(qk=qk, vo=vo, num_attention_heads=heads, **more)
    auto = AutoModelForImageClassification if config.reads_images else AutoModelForSequenceClassification
    model = auto.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config)
    inside = model.minimal.layers[0].attention.parameters()
    assert sum(p.numel() for p in inside) == attention_parameters(config)


def test_parameters_of_one_head_are_those_of_the_paper():
    D = 32
    sizes = {qk: attention_parameters(configured(qk=qk, vo="none", num_attention_heads=1, qkv_bias=False)) for qk in QK}
    assert sizes["full"] == 2 * D * D
    assert sizes["collapsed"] == sizes["shared"] == D * D
    assert sizes["symmetric"] == sizes["symmetric-indefinite"] == D * (D + 1) // 2


@one_and_four
def test_a_full_attention_collapses_without_loss(heads):
    full = attention(num_attention_heads=heads)
    config = configured(qk="collapsed", vo="collapsed", num_attention_heads=heads)
    small = collapse(full, config)
    x = inputs()
    assert torch.allclose(small(x)[0], full(x)[0], atol=1e-9)
    saved = sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in small.parameters())
    assert saved == 2 * (32 * 32 // heads + 32)  # d² a head and a bias, for keys and for values


def test_collapsed_with_one_head_is_the_product_of_queries_and_keys():
    full = attention(num_attention_heads=1)
    small = collapse(full, configured(qk="collapsed", vo="collapsed", num_attention_heads=1))
    product = full.q_proj.weight.mT @ full.k_proj.weight
    assert torch.allclose(small.scores.map.weight.mT, product, atol=1e-12)
    assert torch.equal(small.scores.keys(inputs()), inputs())


@pytest.mark.parametrize(("qk", "vo", "heads"), pairs(QK, VO, (1, 4)))
def test_every_form_is_full_attention_with_its_factors(qk, vo, heads):
    """Without biases what `factors` states is all there is."""
    found = attention(qk=qk, vo=vo, num_attention_heads=heads, qkv_bias=False)
    if vo != "none":
        torch.nn.init.zeros_(found.o_proj.bias)
    x = inputs()
    W_q, W_k, W_v, W_o = found.factors()
    scores = torch.einsum("bid,hrd,hre,bje->bhij", x, W_q, W_k, x) * found.scaling
    expected = torch.einsum("bhij,bje,hre,hrd->bid", scores.softmax(-1), x, W_v, W_o)
    assert torch.allclose(found(x)[0], expected, atol=1e-10)


@every_qk
@one_and_four
def test_symmetric_is_symmetric_and_the_others_are_not(qk, heads):
    found = attention(qk=qk, num_attention_heads=heads)
    if qk == "symmetric-skew":
        torch.nn.init.normal_(found.scores.right)
    q, k, _ = found.project(inputs())
    scores = q @ k.mT
    symmetric = qk in (*POSITIVE, "symmetric-indefinite")
    assert torch.allclose(scores, scores.mT, atol=1e-10) == symmetric  # biases included
    W_q, W_k, _, _ = found.factors()
    least = torch.linalg.eigvalsh(W_q.mT @ W_k).min()
    if symmetric:
        assert (least > -1e-9) == (qk in POSITIVE)


@every_qk
@one_and_four
def test_symmetric_forms_are_general_enough(qk, heads):
    """Rank d in every head: nothing is lost beyond the symmetry."""
    W_q, W_k, _, _ = attention(qk=qk, num_attention_heads=heads).factors()
    assert all(torch.linalg.matrix_rank(W).tolist() == [32 // heads] * heads for W in (W_q, W_k))


def diagonal_mass(found: MinimalAttention, x: torch.Tensor) -> float:
    q, k, _ = found.project(x)
    P = (q @ k.mT * found.scaling).softmax(-1).detach()
    return float(P.diagonal(dim1=-1, dim2=-2).mean())


@pytest.mark.parametrize(("qk", "heads", "shaped", "width"), pairs(QK, (1, 4), (False, True), (32, 128)))
def test_attention_at_the_start_is_not_the_identity(qk, heads, shaped, width):
    torch.manual_seed(0)
    config = configured(qk=qk, num_attention_heads=heads, hidden_size=width, shaped=shaped, num_hidden_layers=1)
    found = MinimalForImageClassification(config).double().minimal.layers[0].attention
    x = inputs(width=width)
    assert diagonal_mass(found, x) < 0.25
    q, k, _ = found.project(x)
    scores = (q @ k.mT * found.scaling).detach()
    assert float(scores.detach().abs().max()) < 12
    if not shaped or qk in POSITIVE:
        own = float(scores.diagonal(dim1=-1, dim2=-2).mean())
        assert 0.5 < (own if qk in POSITIVE else float(scores.std())) < 2


def test_the_bound_on_the_diagonal_would_catch_unit_variance():
    """T ~ N(0, 1), as a public implementation has it: tokens see themselves alone."""
    found = attention(qk="symmetric", num_attention_heads=1, hidden_size=64)
    torch.nn.init.normal_(found.scores.triangle)
    assert diagonal_mass(found, inputs(width=64)) > 0.999


def test_shaped_attention_starts_as_the_identity_and_takes_its_scalars():
    found = attention(qk="full", vo="none", num_attention_heads=4, shaped=True)
    torch.nn.init.zeros_(found.q_proj.bias)
    x = inputs()
    assert torch.allclose(found(x)[0], x, atol=1e-12)
    torch.nn.init.normal_(found.q_proj.weight)
    with torch.no_grad():
        found.shape.copy_(torch.tensor([0.5, 2.0, 0.25])[:, None].expand(3, 4))
    q, k, v = found.project(x)
    P = (q @ k.mT * found.scaling).softmax(-1)
    expected = 0.5 * torch.eye(17, dtype=torch.float64) + 2.0 * P - 0.25 / 17
    assert torch.allclose(found(x)[0], (expected @ v).transpose(1, 2).flatten(2), atol=1e-10)


HALF = """
import resource, sys, torch
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
torch.ones(64, 64, dtype=torch.bfloat16) @ torch.ones(64, 64, dtype=torch.bfloat16)
sys.path.insert(0, {tests!r})
from nn.test_minimal import backward_is_finite
import itertools
from slimformer.nn.minimal_config import QK, VO
for qk, vo in itertools.product(QK, VO):
    assert backward_is_finite(torch.bfloat16, qk=qk, vo=vo), (qk, vo)
"""


def backward_is_finite(dtype: torch.dtype, **fields) -> bool:
    """Of loss and of every gradient."""
    torch.manual_seed(0)
    model = AutoModelForImageClassification.from_config(configured(**fields)).to(dtype)
    out = model(pixel_values=torch.randn(4, 1, 8, 8).to(dtype), labels=torch.arange(4))
    out.loss.backward()
    grads = [p.grad for p in model.parameters() if p.numel()]
    return bool(out.loss.isfinite()) and all(g is not None and bool(g.isfinite().all()) for g in grads)


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_gradients_are_finite(qk, vo, dtype):
    assert backward_is_finite(dtype, qk=qk, vo=vo)
    assert backward_is_finite(dtype, qk=qk, vo=vo, num_attention_heads=1, shaped=True, mlp_ratio=0)


def test_gradients_are_finite_in_bfloat16(request):
    """In a process of its own: some processors end it at the first bfloat16 product."""
    code = HALF.format(tests=str(request.config.rootpath / "tests"))
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if child.returncode < 0:
        pytest.skip(f"bfloat16 products end a process here (signal {-child.returncode})")
    assert child.returncode == 0, child.stderr


@dataclass(frozen=True)
class Digits:
    pixels: torch.Tensor
    labels: torch.Tensor


@pytest.fixture(scope="module")
def digits() -> Digits:
    datasets = pytest.importorskip("sklearn.datasets")
    found = datasets.load_digits()
    pixels = torch.tensor(found.images, dtype=torch.float32)[:, None] / 8 - 1
    return Digits(pixels[:256], torch.tensor(found.target[:256]))


@each_form
def test_a_few_steps_on_digits_lower_the_loss(qk, vo, digits):
    torch.manual_seed(0)
    config = configured(qk=qk, vo=vo, mlp_ratio=0 if vo != "none" else 1, num_attention_heads=1)
    model = AutoModelForImageClassification.from_config(config).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(20):
        at = torch.arange(64) + 64 * (step % 4)
        loss = model(pixel_values=digits.pixels[at], labels=digits.labels[at]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-4:]) / 4 < 0.8 * losses[0]
