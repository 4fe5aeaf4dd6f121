"""Attention by rank is the dense attention with the coordinates that were cut at zero: in every family, under every
mask, with every cache, by either kernel, at the cost that is stated."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertLMHeadModel, DynamicCache, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from dealing import dealt
from families import LENGTH, MODEL_TYPES, VOCABULARY, tiny, tiny_batches
from ranked import DEALT, SETTINGS, WIDTH, furthest, logits, padded, ranked, settings, tiny_ranked, zeroed
from slimformer.models import FAMILIES, describe
from slimformer.models.ranks import heads_of
from slimformer.nn.ragged import RankAttention
from slimformer.plan.cost import block_cost, kv_cache_bytes, outside_macs
from slimformer.rewrite.ranks import install

CAUSAL = [t for t in MODEL_TYPES if FAMILIES[t].causal]
EVERY_CASE = [(t, setting) for t in MODEL_TYPES for setting in settings(t)]
DECODERS = [(t, setting) for t, setting in DEALT if t in CAUSAL]
HOW = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
CACHES = {"dynamic": {}, "static": {"cache_implementation": "static"}}


def full(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with our attention in every block, nothing cut."""
    same = copy.deepcopy(model)
    for i in range(3):
        install(same, heads_of(describe(model), i), qk=WIDTH, vo=WIDTH)
    return same


def attentions(model: PreTrainedModel) -> list[RankAttention]:
    return [module for module in model.modules() if isinstance(module, RankAttention)]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_full_ranks_are_the_stock_attention(model_type):
    for kernel in ("sdpa", "eager"):
        model = tiny(model_type)
        model.set_attn_implementation(kernel)
        same, inputs = full(model), padded(model)
        assert len(attentions(same)) == 3 and not attentions(model)
        assert furthest(logits(model, inputs), logits(same, inputs)) < 1e-6, kernel


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_full_ranks_are_the_stock_attention_in_double_precision(model_type):
    model = tiny(model_type).double()
    assert furthest(logits(model, padded(model)), logits(full(model), padded(model))) < 1e-10


@pytest.mark.parametrize(("model_type", "setting"), EVERY_CASE)
def test_what_is_cut_is_what_is_zero(model_type, setting):
    model = tiny(model_type).double()
    inputs = padded(model)
    small, dense = ranked(model, setting), zeroed(model, setting)
    assert small.num_parameters() < model.num_parameters()
    assert furthest(logits(dense, inputs), logits(small, inputs)) < 1e-10
    assert furthest(logits(model, inputs), logits(small, inputs)) > 1e-3, "nothing would have been noticed"
    inputs.pop("attention_mask", None)  # kernels mask the future by themselves, and group queries by themselves
    assert furthest(logits(dense, inputs), logits(small, inputs)) < 1e-10


@pytest.mark.parametrize(("model_type", "setting"), DEALT)
def test_both_kernels_agree_and_attentions_can_be_seen(model_type, setting):
    small = tiny_ranked(model_type, setting).double()
    eager = copy.deepcopy(small)
    eager.set_attn_implementation("eager")
    inputs = padded(small)
    assert furthest(logits(eager, inputs), logits(small, inputs)) < 1e-10
    seen = eager(**inputs, output_attentions=True).attentions
    assert [a.shape[1] for a in seen] == [module.heads for module in attentions(small)]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_without_queries_attention_is_uniform_over_what_the_mask_allows(model_type):
    small = tiny_ranked(model_type, "nothing left")
    small.set_attn_implementation("eager")
    inputs = padded(small)
    seen = small(**inputs, output_attentions=True).attentions[0]
    real = inputs.get("attention_mask", torch.ones(len(seen), seen.shape[-1])).bool()
    allowed = real[:, None, None, :].expand_as(seen)
    if FAMILIES[model_type].causal:
        allowed = allowed & torch.ones(seen.shape[-2:], dtype=torch.bool).tril()
    uniform = allowed / allowed.sum(-1, keepdim=True)
    assert torch.allclose(seen.transpose(1, 2)[real], uniform.transpose(1, 2)[real])


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_without_values_only_the_bias_is_written(model_type):
    small = tiny_ranked(model_type, "nothing left")
    reader, heard = small.get_submodule(describe(small)["blocks.1.attn.heads"].reader), []
    reader.register_forward_hook(lambda _module, _inputs, output: heard.append(output))
    logits(small, padded(small))
    bias = reader.bias if reader.bias is not None else torch.zeros(32)
    assert torch.equal(heard[0], bias.expand_as(heard[0]))


def prompts(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, VOCABULARY, (3, 6))
    mask = (torch.arange(6) >= torch.tensor([[0], [2], [4]])).long()
    return {"input_ids": ids.where(mask.bool(), torch.tensor(model.config.pad_token_id)), "attention_mask": mask}


@pytest.mark.parametrize(("model_type", "setting"), DECODERS)
def test_the_cache_changes_nothing_not_even_with_padding_on_the_left(model_type, setting):
    small = tiny_ranked(model_type, setting).double()
    given = prompts(small)
    without = small.generate(**given, use_cache=False, **HOW)
    for cache in CACHES.values():
        assert torch.equal(small.generate(**given, **cache, **HOW), without)
    assert without.shape == (3, 14)


@pytest.mark.parametrize("setting", SETTINGS)
def test_beams_reorder_the_cache(setting):
    small = tiny_ranked("llama", setting).double()
    given = prompts(small)
    with_cache, without = (small.generate(**given, use_cache=use, num_beams=3, **HOW) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize(("setting", "model_type"), dealt(SETTINGS, ["mistral", "qwen2"]))
def test_sliding_windows_are_kept(model_type, setting):
    qwen = {"use_sliding_window": True, "max_window_layers": 1} if model_type == "qwen2" else {}
    model = tiny(model_type, sliding_window=4, **qwen).double()
    small, wide = ranked(model, setting), tiny_ranked(model_type, setting).double()
    inputs = padded(model)
    assert furthest(logits(zeroed(model, setting), inputs), logits(small, inputs)) < 1e-10
    assert furthest(logits(wide, inputs), logits(small, inputs)) > 1e-3
    given = prompts(small)
    without = small.generate(**given, use_cache=False, **HOW)
    for cache in CACHES.values():
        assert torch.equal(small.generate(**given, **cache, **HOW), without)


@pytest.mark.parametrize(
    ("model_type", "windows"), [("mistral", [4, 4, 4]), ("qwen2", [None, 4, 4]), ("llama", [None] * 3)]
)
def test_kernels_are_told_of_the_window(model_type, windows, monkeypatch):
    """Flash kernels get no mask, only this number."""
    sizes = {"llama": {}, "mistral": {"sliding_window": 4}}
    qwen = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}
    same, told = full(tiny(model_type, **sizes.get(model_type, qwen))), []
    stock = ALL_ATTENTION_FUNCTIONS.get_interface

    def listening(kind, default):
        return lambda *args, **how: told.append(how.get("sliding_window")) or stock(kind, default)(*args, **how)

    monkeypatch.setattr(ALL_ATTENTION_FUNCTIONS, "get_interface", listening)
    logits(same, padded(same))
    assert told == windows


def test_an_encoder_used_as_a_decoder_keeps_its_cache():
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    config = BertConfig(**sizes, vocab_size=VOCABULARY, is_decoder=True, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    small = ranked(BertLMHeadModel(config).eval().double(), "narrow values")
    given = prompts(small)
    with_cache, without = (small.generate(**given, use_cache=use, **HOW) for use in (True, False))
    assert torch.equal(with_cache, without)


@pytest.mark.parametrize(("model_type", "setting"), DECODERS)
def test_the_cache_is_as_large_as_stated(model_type, setting):
    for model in (tiny(model_type), tiny_ranked(model_type, setting)):
        cache = model(input_ids=torch.randint(5, VOCABULARY, (1, 11)), past_key_values=DynamicCache()).past_key_values
        held = sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))
        assert kv_cache_bytes(describe(model), 11, 4) == held
        assert cache.get_seq_length() == 11


def test_encoders_have_no_cache():
    assert kv_cache_bytes(describe(tiny("bert")), 11, 4) == 0


@pytest.mark.parametrize(("model_type", "setting"), DEALT)
def test_macs_and_parameters_are_those_counted(model_type, setting):
    model, small = tiny(model_type), tiny_ranked(model_type, setting)
    small.set_attn_implementation("eager")
    batch = tiny_batches(small, 1, rows=4)[0].inputs
    if "attention_mask" in batch:
        batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    with FlopCounterMode(display=False, depth=99) as counter, torch.no_grad():
        small(**batch)
    architecture, T = describe(small), 17 if FAMILIES[model_type].image else LENGTH
    path = f"{type(small).__name__}.{architecture.stacks[0].path}."
    counts = {name: sum(ops.values()) / 2 for name, ops in counter.get_flop_counts().items()}
    blocks = sum(n for name, n in counts.items() if name.startswith(path) and "." not in name.removeprefix(path))
    assert block_cost(architecture, T).macs == blocks / (4 * T)
    assert outside_macs(small, architecture, T) == outside_macs(model, describe(model), T)
    gone = block_cost(describe(model), T).params - block_cost(architecture, T).params
    assert gone == model.num_parameters() - small.num_parameters()


@pytest.mark.parametrize(("model_type", "checkpointing"), dealt(MODEL_TYPES, [False, True]))
def test_gradients_reach_every_weight(model_type, checkpointing):
    """With dropout, which stock modules keep in different places."""
    small = tiny_ranked(model_type, "narrow values").train()
    assert all(module.training for module in attentions(small))
    if checkpointing:
        small.gradient_checkpointing_enable()
    small(**padded(small)).logits.square().mean().backward()
    assert [name for name, parameter in small.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "gpt2", "opt", "llama", "vit"])
def test_dropout_of_attention_is_kept(model_type):
    name = {"bert": "attention_probs_dropout_prob", "gpt2": "attn_pdrop", "vit": "attention_probs_dropout_prob"}
    model = tiny(model_type, **{name.get(model_type, "attention_dropout"): 0.25})
    assert [module.attention_dropout for module in attentions(full(model))] == [0.25] * 3


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_half_precision_runs(model_type):
    small = tiny_ranked(model_type, "narrow keys")
    exact, half = logits(small, padded(small)), logits(small.half(), padded(small))
    assert half.dtype == torch.float16 and furthest(exact, half.float()) < 0.1


@pytest.mark.parametrize("model_type", ["bert", "llama", "vit"])
def test_it_can_be_traced_in_one_graph(model_type):
    small = tiny_ranked(model_type, "narrow keys")
    torch._dynamo.reset()  # the models of other tests count as recompilations
    traced = torch.compile(copy.deepcopy(small), backend="eager", fullgraph=True)
    inputs = padded(small)
    inputs.pop("attention_mask", None)
    assert furthest(logits(small, inputs), logits(traced, inputs)) < 1e-6


def test_whoever_listens_goes_on_listening():
    model = tiny("llama")
    model.set_attn_implementation("eager")
    inputs = padded(model)
    model(**inputs, output_attentions=True)  # transformers hooks the modules that are there now
    install(model, heads_of(describe(model), 1), qk=WIDTH, vo=WIDTH)
    assert len(model(**inputs, output_attentions=True).attentions) == 3


@pytest.mark.parametrize(
    ("model_type", "ranks", "words"),
    [
        ("qwen3", {"qk": 4, "vo": 8, "planes": [0, 1]}, "normed over all 8 coordinates; qk cannot be 4"),
        ("qwen3", {"qk": 8, "vo": 8, "planes": [1, 0, 2, 3]}, "normed over all 8 coordinates"),
        ("llama", {"qk": 4, "vo": 8, "planes": None}, "qk 4 takes 2 rotary planes for every head, not planes None"),
        ("llama", {"qk": 3, "vo": 8, "planes": [1]}, "qk 3 takes 1.5 rotary planes"),
        ("llama", {"qk": 4, "vo": 8, "planes": [1, 4]}, "rotary planes 0 … 3"),
        ("llama", {"qk": 2, "vo": 8, "planes": [[0], [1], [2]]}, "planes for 3 key/value heads, and 2 of these"),
        ("bert", {"qk": 4, "vo": 8, "planes": [0, 1]}, "has no rotary planes"),
        ("bert", {"qk": -1, "vo": 8, "planes": None}, "a rank is 0 or more"),
        ("bert", {"qk": 4, "vo": 0, "planes": None}, "without values queries are of no use"),
    ],
)  # fmt: skip
def test_ranks_that_cannot_be_are_refused(model_type, ranks, words):
    (module, *_) = attentions(full(tiny(model_type)))
    before = module.ranks
    with pytest.raises(ValueError, match=words):
        module.set_ranks(heads=4, kv_heads=module.kv_heads, **ranks)
    assert module.ranks == before
