"""A model with fewer tokens: the same bits for texts of kept tokens, and a config that tells the truth."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from families import FAMILIES, STOCK_TYPES, VOCABULARY, heads, tiny, tiny_batches
from slimformer.checkpoint.save import save
from slimformer.rewrite.vocabulary import named_tokens, table_bytes, with_tokens

TEXT_TYPES = [name for name in STOCK_TYPES if not FAMILIES[name].image]
ORDER = [0, 1, 2, 3, 4, *range(5, VOCABULARY, 3)]


def _kept_batch(model: PreTrainedModel) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs of kept tokens in old and in new numbers."""
    inputs = tiny_batches(model, 1)[0].inputs
    places = inputs["input_ids"] % len(ORDER)
    pad = model.config.pad_token_id
    places = places.where(inputs["attention_mask"] > 0, torch.tensor(ORDER.index(pad)))
    return {**inputs, "input_ids": torch.tensor(ORDER)[places]}, {**inputs, "input_ids": places}


@pytest.mark.parametrize("model_type", TEXT_TYPES)
def test_texts_of_kept_tokens_get_the_same_bits(model_type: str) -> None:
    for head in heads(model_type):
        model = tiny(model_type, head)
        small = with_tokens(model, ORDER)
        before, after = _kept_batch(model)
        with torch.no_grad():
            x, y = model.base_model(**before)[0], small.base_model(**after)[0]
            assert torch.equal(x, y)
            out = [each(**given) for each, given in ((model, before), (small, after))]
        if model.get_output_embeddings() is None:
            names = [name for name, value in out[0].items() if isinstance(value, torch.Tensor)]
            assert names and all(torch.equal(out[0][name], out[1][name]) for name in names)
        else:
            assert torch.allclose(out[0].logits[..., ORDER], out[1].logits, atol=1e-6)


@pytest.mark.parametrize("model_type", TEXT_TYPES)
@pytest.mark.parametrize("tied", [True, False])
def test_what_was_tied_stays_tied(model_type: str, tied: bool) -> None:
    model = tiny(model_type, tie_word_embeddings=tied)
    small = with_tokens(model, ORDER)
    table, head = small.get_input_embeddings(), small.get_output_embeddings()
    assert (table.weight is head.weight) == (
        model.get_input_embeddings().weight is model.get_output_embeddings().weight
    )
    assert table.weight.shape[0] == head.weight.shape[0] == table.num_embeddings == head.out_features == len(ORDER)
    assert head.bias is None or len(head.bias) == len(ORDER)
    assert table_bytes(small, torch.float32) * VOCABULARY == table_bytes(model, torch.float32) * len(ORDER)


@pytest.mark.parametrize("model_type", TEXT_TYPES)
def test_the_config_says_the_new_numbers(model_type: str) -> None:
    model = tiny(model_type, pad_token_id=1, bos_token_id=5, eos_token_id=8)
    if model.can_generate():
        model.generation_config.suppress_tokens = [6, 11]
        model.generation_config.bad_words_ids = [[11, 14], [6, 7]]
        model.generation_config.eos_token_id = [8, 2]
    assert {1, 5, 8} <= named_tokens(model)
    small = with_tokens(model, ORDER)
    config = small.config
    assert config.vocab_size == len(ORDER) and model.config.vocab_size == VOCABULARY
    assert [ORDER[i] for i in (config.pad_token_id, config.bos_token_id, config.eos_token_id)] == [1, 5, 8]
    if model.can_generate():
        generation = small.generation_config
        assert [ORDER[i] for i in generation.eos_token_id] == [8, 2]
        assert [ORDER[i] for i in generation.suppress_tokens] == [11]
        assert [[ORDER[i] for i in each] for each in generation.bad_words_ids] == [[11, 14]]


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "mpnet"])
def test_the_number_that_positions_are_counted_from_stays(model_type: str) -> None:
    assert set(range(4)) <= named_tokens(tiny(model_type, pad_token_id=3))


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "llama"])
def test_stock_classes_open_it(model_type: str, tmp_path: Any) -> None:
    small = with_tokens(tiny(model_type), ORDER)
    save(small, tmp_path / "out", verify=False)
    again = type(small).from_pretrained(tmp_path / "out")
    given = _kept_batch(tiny(model_type))[1]
    with torch.no_grad():
        assert torch.equal(again(**given).logits, small(**given).logits)
