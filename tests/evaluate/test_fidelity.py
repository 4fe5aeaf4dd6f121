"""Fidelity: nothing lost gives 0 and 1, padding never counts, the formulas are the textbook's."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import asdict

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite
from slimformer.evaluate.accuracy import accuracy
from slimformer.evaluate.fidelity import _cka, compared, logit_divergence, state_similarity
from slimformer.linalg.moments import Moments

VOCABULARY, CLASSES = 50, 5
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
BERT = BertConfig(**SIZES, vocab_size=VOCABULARY, max_position_embeddings=32, num_labels=CLASSES)
SPAN = BertConfig(**SIZES, vocab_size=VOCABULARY, max_position_embeddings=32, num_labels=2)
LLAMA = LlamaConfig(**SIZES, vocab_size=VOCABULARY, num_key_value_heads=2, max_position_embeddings=32)
GPT2 = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
VIT = ViTConfig(**SIZES, image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES)

HEADS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LLAMA),
    "gpt2": lambda: GPT2LMHeadModel(GPT2),
    "bert classifier": lambda: BertForSequenceClassification(BERT),
    "bert tagger": lambda: BertForTokenClassification(BERT),
    "bert reader": lambda: BertForQuestionAnswering(SPAN),
    "vit classifier": lambda: ViTForImageClassification(VIT),
}
BARE: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertModel(BERT),
    "vit": lambda: ViTModel(VIT),
    "llama with head": HEADS["llama"],
}
TEXT = [name for name in HEADS if "vit" not in name]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models spend their time waiting for other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pair(make: Callable[[], PreTrainedModel]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model, and one a little off."""
    torch.manual_seed(0)
    dense = make()
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.mul_(3)
    small = copy.deepcopy(dense)
    with torch.no_grad():
        for parameter in small.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return dense, small


def text(lengths: tuple[int, ...] = (9, 12, 4, 12), fill: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (len(lengths), max(lengths)), generator=generator)
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Batch({"input_ids": ids.masked_fill(~mask, fill), "attention_mask": mask.long()}, mask)


def images() -> Batch:
    return Batch({"pixel_values": torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))}, None)


def batch_for(name: str) -> Batch:
    return images() if "vit" in name else text()


def rows_of(batch: Batch) -> list[Batch]:
    n = len(next(iter(batch.inputs.values())))
    mask = batch.mask
    return [
        Batch({k: v[i : i + 1] for k, v in batch.inputs.items()}, None if mask is None else mask[i : i + 1])
        for i in range(n)
    ]


@pytest.mark.parametrize("name", HEADS)
def test_identical_models_do_not_diverge(name: str) -> None:
    dense, _ = pair(HEADS[name])
    result = logit_divergence(dense, copy.deepcopy(dense), [batch_for(name)])
    assert result.kl == 0 and result.agreement == 1
    assert set(result.kl_per_document) == {0.0}


@pytest.mark.parametrize("name", HEADS)
def test_other_weights_diverge_and_the_direction_matters(name: str) -> None:
    dense, small = pair(HEADS[name])
    there, back = (logit_divergence(*models, [batch_for(name)]) for models in [(dense, small), (small, dense)])
    assert there.kl > 0 and back.kl > 0 and there.kl != back.kl
    assert min(there.kl_per_document) >= 0


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("llama", (9, 12, 4, 12)),
        ("bert tagger", (9, 12, 4, 12)),
        ("bert classifier", (1, 1, 1, 1)),
        ("bert reader", (2, 2, 2, 2)),
        ("vit classifier", (1, 1, 1, 1)),
    ],
)
def test_what_is_counted(name: str, positions: tuple[int, ...]) -> None:
    result = logit_divergence(*pair(HEADS[name]), [batch_for(name)])
    assert result.positions_per_document == positions and result.positions == sum(positions)
    weighted = sum(kl * n for kl, n in zip(result.kl_per_document, positions, strict=True))
    assert result.kl == pytest.approx(weighted / result.positions)


@pytest.mark.parametrize("name", TEXT)
def test_divergence_does_not_see_padding(name: str) -> None:
    models = pair(HEADS[name])
    assert logit_divergence(*models, [text(fill=7)]) == logit_divergence(*models, [text(fill=0)])


@pytest.mark.parametrize("name", [name for name in TEXT if name != "bert classifier"])
def test_rows_of_padding_only_are_left_out(name: str) -> None:
    result = logit_divergence(*pair(HEADS[name]), [text((9, 0, 4))])
    assert len(result.kl_per_document) == 2


@pytest.mark.parametrize("name", TEXT)
def test_divergence_is_that_of_rows_without_padding(name: str) -> None:
    models = pair(HEADS[name])
    together = logit_divergence(*models, [text()])
    short = [
        Batch({k: v[:, row.mask[0]] for k, v in row.inputs.items()}, row.mask[:, row.mask[0]])
        for row in rows_of(text())
        if row.mask is not None
    ]
    alone = logit_divergence(*models, short)
    assert alone.kl_per_document == pytest.approx(together.kl_per_document, rel=1e-3)
    assert alone.agreement == together.agreement


@pytest.mark.parametrize("name", HEADS)
def test_divergence_does_not_depend_on_batching(name: str) -> None:
    models, batch = pair(HEADS[name]), batch_for(name)
    together, alone = logit_divergence(*models, [batch]), logit_divergence(*models, rows_of(batch))
    assert alone.kl_per_document == pytest.approx(together.kl_per_document, rel=1e-3)


def test_divergence_equals_torch() -> None:
    p, q = torch.randn(2, 3, 100, VOCABULARY, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
    theirs = nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum((1, 2))
    row, position, columns = compared(p, q, torch.ones(3, 100, dtype=torch.bool))
    assert torch.stack([row, position], 1).tolist() == [[i, t] for i in range(3) for t in range(100)]
    kl, agreed, count = columns.view(3, 100, 3).sum(1).T
    torch.testing.assert_close(kl, theirs)
    torch.testing.assert_close(agreed, (p.argmax(-1) == q.argmax(-1)).sum(1).double())
    assert count.tolist() == [100.0] * 3


def test_what_cannot_be_compared_is_explained() -> None:
    dense, _ = pair(HEADS["bert classifier"])
    with pytest.raises(ValueError, match=r"\(4, 1, 5\) and \(4, 12, 5\) are not of the same task"):
        logit_divergence(dense, BertForTokenClassification(BERT), [text()])
    one = BertForSequenceClassification(BertConfig(**{**BERT.to_dict(), "id2label": {0: "score"}}))
    with pytest.raises(ValueError, match=r"\(4, 1\) do not tell two or more outcomes apart"):
        logit_divergence(one, one, [text()])
    with pytest.raises(ValueError, match="no positions to compare"):
        logit_divergence(dense, dense, [])
    broken = copy.deepcopy(dense)
    nn.init.constant_(broken.classifier.weight, torch.nan)
    with pytest.raises(NotFinite, match="divergence is not finite"):
        logit_divergence(dense, broken, [text()])


@pytest.mark.parametrize("name", BARE)
def test_identical_states_are_wholly_similar(name: str) -> None:
    dense, _ = pair(BARE[name])
    result = state_similarity(dense, copy.deepcopy(dense), [batch_for(name), batch_for(name)])
    numbers = (result.cosine_pooled, result.cosine_token, result.cka, *result.pooled_per_document)
    assert numbers == pytest.approx((1.0,) * 11)
    assert result.tokens == 2 * (4 * 5 if name == "vit" else 37)


@pytest.mark.parametrize("name", BARE)
def test_other_states_are_less_similar_however_they_are_batched(name: str) -> None:
    models, batch = pair(BARE[name]), batch_for(name)
    together, alone = (state_similarity(*models, batches) for batches in ([batch], rows_of(batch)))
    assert together.cka < 1 and together.cosine_token is not None and together.cosine_token < 1
    for key, value in asdict(together).items():
        assert asdict(alone)[key] == pytest.approx(value, rel=1e-4), key


def test_similarity_does_not_see_padding() -> None:
    models = pair(BARE["bert"])
    assert state_similarity(*models, [text(fill=7)]) == state_similarity(*models, [text(fill=0)])


def test_similarity_equals_the_textbook() -> None:
    dense, small = pair(BARE["bert"])
    batch = text((12, 12, 12, 12))
    with torch.no_grad():
        X, Y = (model.eval()(**batch.inputs).last_hidden_state.double() for model in (dense, small))
    result = state_similarity(dense, small, [batch])
    pooled = nn.functional.cosine_similarity(X.mean(1), Y.mean(1))
    assert result.pooled_per_document == pytest.approx(pooled.tolist())
    assert result.cosine_token == pytest.approx(float(nn.functional.cosine_similarity(X, Y, dim=-1).mean()))
    assert result.cka == pytest.approx(kernel_cka(X.flatten(0, 1), Y.flatten(0, 1)))


def kernel_cka(X: Tensor, Y: Tensor) -> float:
    """CKA from centred n × n kernels: HSIC(K, L) / √(HSIC(K, K) HSIC(L, L))."""
    H = torch.eye(len(X), dtype=X.dtype) - 1 / len(X)
    K, L = H @ X @ X.T @ H, H @ Y @ Y.T @ H
    return float((K * L).sum() / ((K * K).sum() * (L * L).sum()).sqrt())


def cka(X: Tensor, Y: Tensor) -> float:
    return _cka(Moments.of(torch.cat([X, Y], 1)).second(centred=True), X.shape[1])


def test_cka_equals_that_of_kernels_also_for_other_widths() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(40, 6, dtype=torch.float64, generator=generator) + 3
    Y = X @ torch.randn(6, 4, dtype=torch.float64, generator=generator) ** 2 - 1
    assert cka(X, Y) == pytest.approx(kernel_cka(X, Y))
    Q, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator))
    assert cka(X, 2 * X @ Q + 5) == pytest.approx(1.0)  # rotated, scaled and shifted: the same
    assert cka(X, torch.ones_like(X)) == 0.0


def test_states_of_other_widths_have_no_cosine() -> None:
    narrow = BertModel(BertConfig(**{**SIZES, "hidden_size": 16}, vocab_size=VOCABULARY))
    result = state_similarity(BertModel(BERT), narrow, [text()])
    assert result.cosine_pooled is None and result.cosine_token is None and result.pooled_per_document == ()
    assert 0 < result.cka < 1


def test_no_states_and_broken_states_are_named() -> None:
    dense, _ = pair(BARE["bert"])
    with pytest.raises(ValueError, match="no states to compare"):
        state_similarity(dense, dense, [])
    broken = copy.deepcopy(dense)
    nn.init.constant_(broken.encoder.layer[1].output.dense.bias, torch.nan)
    with pytest.raises(NotFinite, match="last hidden states"):
        state_similarity(dense, broken, [text()])


def labelled(batch: Batch, labels: Tensor) -> Batch:
    return Batch(batch.inputs, batch.mask, labels)


@pytest.mark.parametrize("name", ["bert classifier", "vit classifier"])
def test_accuracy_counts_what_the_model_would_say(name: str) -> None:
    model, _ = pair(HEADS[name])
    batch = batch_for(name)
    with torch.no_grad():
        said = model.eval()(**batch.inputs).logits.argmax(1)
    wrong = torch.tensor([0, 1, 0, 0])
    result = accuracy(model, [labelled(batch, said), labelled(batch, (said + wrong) % CLASSES)])
    assert result.correct == (True, True, True, True, True, False, True, True)
    assert (result.value, result.examples) == (7 / 8, 8)


def test_accuracy_without_proper_labels_is_refused() -> None:
    model, _ = pair(HEADS["bert classifier"])
    with pytest.raises(ValueError, match="needs batches with labels"):
        accuracy(model, [text()])
    with pytest.raises(ValueError, match=r"labels \[-1, 5\] are not among the 5 classes"):
        accuracy(model, [labelled(text(), torch.tensor([0, -1, 5, 1]))])
    with pytest.raises(ValueError, match="one label for each example"):
        accuracy(model, [labelled(text(), torch.zeros(4, 12))])
    with pytest.raises(ValueError, match="no examples"):
        accuracy(model, [])


def test_training_mode_comes_back() -> None:
    dense, small = pair(HEADS["gpt2"])
    dense.train()
    small.eval()
    logit_divergence(dense, small, [text()])
    assert dense.training and not small.training
