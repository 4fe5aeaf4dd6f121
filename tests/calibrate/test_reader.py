"""Documents become batches of the kind a model reads."""

from __future__ import annotations

import pytest
import torch

from families import tiny
from slimformer.calibrate.document import Document
from slimformer.calibrate.reader import Reader
from slimformer.calibrate.text import packed_batches, padded_batches
from slimformer.models import describe
from vocabularies import of_bytes

DOCUMENTS = [Document(f"{i} a story of {i} words") for i in range(20)]


@pytest.mark.parametrize("model_type", ["llama", "bert"])
def test_causal_models_get_windows_and_others_get_rows(model_type: str) -> None:
    model, tokenizer = tiny(model_type), of_bytes()
    found = Reader(model, tokenizer, describe(model), 16, 8).batches(DOCUMENTS, 200)
    way = packed_batches if model_type == "llama" else padded_batches
    wanted = way(DOCUMENTS, tokenizer, seq_len=16, tokens=200, batch_size=8)
    assert [batch.inputs.keys() for batch in found] == [batch.inputs.keys() for batch in wanted]
    for batch, other in zip(found, wanted, strict=True):
        assert torch.equal(batch.inputs["input_ids"], other.inputs["input_ids"])
