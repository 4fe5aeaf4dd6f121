"""Check a `deci` file, which transformers does not read: its sizes and weights, what a model of these computes, tokens.

Where llama.cpp itself is there (the package xllamacpp), it opens the file and goes on with a text as the model does.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.errors import ExportFailed
from slimformer.export.gguf_file import FILE, Written, heads_of, names_in_file, unpermuted
from slimformer.export.gguf_sizes import BlockSizes
from slimformer.export.llama_cpp import has_llama_cpp, run_llama_cpp

CHECKED = (
    "sizes are said block by block, so this file is for llama.cpp alone (deci); it was read back by the package gguf"
)
RUN = f"{CHECKED}, and llama.cpp goes on with tokens as the model does"
PROMPT, GREEDY = 8, 12  # tokens to begin with, and to go on with
MARGIN = 0.05  # between the two most likely tokens: nearer ones may change places, rounded otherwise


def read_ragged(folder: Path, model: PreTrainedModel, written: Written) -> PreTrainedModel:
    """A model of the same class with what the file holds, and nothing else: weights that are missing stay NaN."""
    import gguf

    reader = gguf.GGUFReader(folder / FILE)
    _require_sizes(reader, written.sizes)
    there = {tensor.name: tensor for tensor in reader.tensors}
    names = names_in_file(model, written.sizes)
    read = copy.deepcopy(model).float()
    with torch.no_grad():
        for key, parameter in read.named_parameters():
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            if name not in there:
                parameter.fill_(torch.nan)
                continue
            array = gguf.quants.dequantize(there[name].data, there[name].tensor_type)
            parameter.copy_(unpermuted(array.reshape(parameter.shape), heads_of(key, written.sizes)))
    return read.eval()


def _require_sizes(reader: Any, sizes: BlockSizes) -> None:
    wanted = {
        "attention.head_count": sizes.heads, "attention.head_count_kv": sizes.kv_heads,
        "feed_forward_length": sizes.neurons,
    }  # fmt: skip
    for key, numbers in wanted.items():
        field = reader.get_field(f"{sizes.arch}.{key}")
        if field is None or tuple(field.contents()) != numbers:
            raise ExportFailed(f"the GGUF file is read back with other sizes: {key}; it was not kept")


@torch.no_grad()
def require_same_words(folder: Path, rounded: PreTrainedModel, quant: str) -> str:
    """What was checked: where llama.cpp is there, that it opens the file and chooses the same tokens as a model with
    the weights of the file. With q8_0 it rounds what flows through the model, too, so that only opening counts."""
    if not has_llama_cpp():
        return CHECKED
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, rounded.config.vocab_size, (1, PROMPT), generator=generator)
    try:
        (answer,) = run_llama_cpp(folder / FILE, ids.tolist(), new_tokens=GREEDY)
    except RuntimeError as error:
        raise ExportFailed(f"llama.cpp does not open the GGUF file: {error}; it was not kept") from error
    for token in answer["tokens"] if quant != "q8_0" else []:
        likely = rounded(input_ids=ids.to(rounded.device)).logits[0, -1].log_softmax(-1).topk(2)
        if float(likely.values[0] - likely.values[1]) < MARGIN:
            break
        if int(likely.indices[0]) != token:
            raise ExportFailed(
                f"llama.cpp goes on with token {token} where the model has {int(likely.indices[0])}; it was not kept"
            )
        ids = torch.cat((ids, torch.tensor([[token]])), 1)
    return RUN
