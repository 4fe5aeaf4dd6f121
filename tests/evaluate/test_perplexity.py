"""Perplexity: every token once, padding never, the same number whichever way the work is cut."""

import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from slimformer.calibrate.text import Batch
from slimformer.errors import NotFinite
from slimformer.evaluate.perplexity import _of_stream, evaluating, perplexity
from slimformer.evaluate.sample import generate_text

VOCABULARY = 61
MODULE = sys.modules["slimformer.evaluate.perplexity"]  # the name in the package is the function


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tiny models spend their time waiting for other threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def llama() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def gpt2() -> PreTrainedModel:
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2
    )
    return GPT2LMHeadModel(config)


@pytest.fixture(params=[llama, gpt2], ids=["llama", "gpt2"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    torch.manual_seed(0)
    made = request.param()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4)  # random heads are near uniform; sharper ones tell mistakes apart
    return made


@pytest.fixture
def stream() -> Tensor:
    return torch.randint(VOCABULARY, (97,), generator=torch.Generator().manual_seed(1))


class Uniform(nn.Module):
    """Every token has the same probability."""

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCABULARY))


def padded(rows: list[Tensor], *, left: bool = False, fill: int = 0) -> Batch:
    length = max(map(len, rows))
    ids = torch.full((len(rows), length), fill)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(length - len(row), None) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = row, True
    return Batch({"input_ids": ids, "attention_mask": mask.long()}, mask, None)


def rows(ids: Tensor) -> Batch:
    return Batch({"input_ids": ids}, None, None)


def by_hand(model: PreTrainedModel, stream: Tensor, window: int, stride: int) -> list[float]:
    """−log p of every token but the first, one forward pass for each."""
    model.eval()
    last = len(stream) - 1
    width = min(window, last)
    nll = []
    for t in range(1, len(stream)):
        moves = math.ceil(max(0, t - width) / stride)
        end = min(width + moves * stride, last)  # the first window that reaches this token
        with torch.no_grad():
            logits = model(input_ids=stream[None, end - width : t]).logits[0, -1]
        nll.append(-float(logits.double().log_softmax(-1)[stream[t]]))
    return nll


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 5), (16, 1), (7, 3), (200, 200), (96, 10)])
def test_equals_a_loop_over_tokens(model: PreTrainedModel, stream: Tensor, window: int, stride: int) -> None:
    if window > 64:
        stream = stream[:50]  # gpt2 has 64 positions
    expected = by_hand(model, stream, window, stride)
    result = perplexity(model, stream, window=window, stride=stride)
    assert result.tokens == len(expected)
    assert result.nll == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert result.ppl == pytest.approx(math.exp(result.nll))


@pytest.mark.parametrize("length", [2, 3, 16, 17, 18, 33, 97])
@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 4), (16, 15), (5, 1), (1, 1)])
def test_each_token_is_predicted_exactly_once(length: int, window: int, stride: int) -> None:
    targets = [
        target
        for part in _of_stream(Uniform(), torch.arange(length), window, stride)
        for target in part.targets[part.counted].tolist()
    ]
    assert sorted(targets) == list(range(1, length))


@pytest.mark.parametrize("stride", [1, 4, 9])
def test_context_is_at_least_window_minus_stride(stride: int) -> None:
    first, *others = (row for part in _of_stream(Uniform(), torch.arange(60), 10, stride) for row in part.counted)
    assert first.all()
    for counted in others:
        assert int(counted.nonzero()[0]) + 1 >= 10 - stride + 1


def test_stride_equal_to_window_means_windows_on_their_own(model: PreTrainedModel, stream: Tensor) -> None:
    alone = stream.unfold(0, 17, 16)  # 16 tokens read, 16 predicted: a row shows one token more
    moving = perplexity(model, stream, window=16, stride=16)
    packed = perplexity(model, [rows(alone)])
    assert moving.tokens_per_window == packed.tokens_per_window
    assert moving.nll_per_window == pytest.approx(packed.nll_per_window, rel=1e-5)


def test_packed_windows_predict_all_but_their_first_token(model: PreTrainedModel, stream: Tensor) -> None:
    windows = stream[:96].view(6, 16)
    result = perplexity(model, [rows(windows)])
    with torch.no_grad():
        theirs = model.eval()(input_ids=windows, labels=windows).loss
    assert result.tokens_per_window == (15,) * 6
    assert result.nll == pytest.approx(float(theirs), rel=1e-5)


def test_batching_does_not_matter(model: PreTrainedModel, stream: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = stream[:96].view(6, 16)
    whole = perplexity(model, [rows(windows)])
    moving = perplexity(model, stream, window=16, stride=4)
    one_by_one = perplexity(model, [rows(window[None]) for window in windows])
    monkeypatch.setattr(MODULE, "LOGITS", 2 * 16 * VOCABULARY)
    monkeypatch.setattr(MODULE, "at_once", lambda _scores: 7)
    assert perplexity(model, [rows(windows)]).nll_per_window == pytest.approx(whole.nll_per_window, rel=1e-5)
    assert one_by_one.nll_per_window == pytest.approx(whole.nll_per_window, rel=1e-5)
    again = perplexity(model, stream, window=16, stride=4)
    assert again.nll_per_window == pytest.approx(moving.nll_per_window, rel=1e-5)


def test_a_forward_pass_returns_no_more_logits_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "LOGITS", 2 * 16 * VOCABULARY)
    model, sizes = llama(), []
    model.register_forward_hook(lambda _module, _inputs, output: sizes.append(output.logits.numel()))
    perplexity(model, [rows(torch.zeros(5, 16, dtype=torch.long))])
    assert [size // (16 * VOCABULARY) for size in sizes] == [2, 2, 1]


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padding_never_counts(stream: Tensor, left: bool) -> None:
    torch.manual_seed(0)
    model = llama()
    parts = [stream[:12], stream[12:17], stream[17:18], stream[18:40]]
    result = perplexity(model, [padded(parts, left=left)])
    refilled = perplexity(model, [padded(parts, left=left, fill=9)])
    alone = perplexity(model, [rows(part[None]) for part in parts])
    assert result.tokens == 11 + 4 + 0 + 21
    assert result.tokens_per_window == (11, 4, 21)  # a row of one token predicts nothing
    assert refilled.nll_per_window == result.nll_per_window
    assert alone.nll_per_window == pytest.approx(result.nll_per_window, rel=1e-4)


def test_uniform_logits_give_the_size_of_the_vocabulary(stream: Tensor) -> None:
    assert perplexity(Uniform(), stream, window=10, stride=3).ppl == pytest.approx(VOCABULARY)
    assert perplexity(Uniform(), [rows(stream[None])]).ppl == pytest.approx(VOCABULARY)


def test_mean_follows_from_the_windows(model: PreTrainedModel, stream: Tensor) -> None:
    result = perplexity(model, stream, window=16, stride=10)
    pairs = zip(result.nll_per_window, result.tokens_per_window, strict=True)
    assert sum(nll * tokens for nll, tokens in pairs) / result.tokens == pytest.approx(result.nll)


def test_dropout_is_off_and_the_mode_comes_back(stream: Tensor) -> None:
    model = gpt2()
    model.train()
    model.transformer.wte.eval()
    first = perplexity(model, stream, window=16)
    assert first == perplexity(model, stream, window=16)
    assert model.training and model.transformer.h[0].training and not model.transformer.wte.training


def test_mode_comes_back_after_an_error() -> None:
    model = nn.Dropout()
    with pytest.raises(RuntimeError), evaluating(model):
        assert not model.training
        raise RuntimeError
    assert model.training


def test_broken_logits_are_named(stream: Tensor) -> None:
    model = llama()
    nn.init.constant_(model.lm_head.weight, math.nan)
    with pytest.raises(NotFinite, match="nll of 96 tokens is nan"):
        perplexity(model, stream, window=16)


def test_wrong_windows_are_explained(stream: Tensor) -> None:
    with pytest.raises(ValueError, match="needs a `window`"):
        perplexity(Uniform(), stream)
    with pytest.raises(ValueError, match="stride 9 is not in 1…8"):
        perplexity(Uniform(), stream, window=8, stride=9)
    with pytest.raises(ValueError, match="one row of 2 or more tokens, not \\(6, 16\\)"):
        perplexity(Uniform(), stream[:96].view(6, 16), window=8)
    with pytest.raises(ValueError, match="windows already"):
        perplexity(Uniform(), [rows(stream[None])], window=8)
    with pytest.raises(ValueError, match="no token to predict"):
        perplexity(Uniform(), [])


class Letters:
    """A tokenizer whose tokens are single letters."""

    pad_token_id, eos_token_id = None, 2

    def __call__(self, text: str, return_tensors: str) -> dict[str, Tensor]:
        ids = torch.tensor([[ord(letter) - 60 for letter in text]])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def decode(self, ids: Tensor, skip_special_tokens: bool) -> str:
        return "".join(chr(int(i) + 60) for i in ids)


def test_sampled_text_is_the_greedy_continuation(model: PreTrainedModel) -> None:
    tokenizer = Letters()
    model.generation_config.update(do_sample=True, temperature=5.0, repetition_penalty=3.0, eos_token_id=None)
    text = generate_text(model, tokenizer, "HELLO", 8)  # type: ignore[arg-type]
    ids = tokenizer("HELLO", "pt")["input_ids"]
    for _ in range(8):
        with torch.no_grad():
            ids = torch.cat([ids, model.eval()(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    assert text == tokenizer.decode(ids[0], True)
    assert text.startswith("HELLO") and len(text) == 13
