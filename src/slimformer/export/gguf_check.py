"""Read a GGUF file back, through transformers where it can: the same weights, the same outputs, the same tokens."""

from __future__ import annotations

import copy
import logging
import tempfile
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from slimformer.errors import CannotExport, ExportFailed
from slimformer.export.compare import Difference, difference, require_close
from slimformer.export.gguf_file import FILE, Written, write_vocabulary
from slimformer.export.gguf_ragged import read_ragged, require_same_words
from slimformer.export.graph import Graph, outputs_of
from slimformer.export.vocabulary import vocabulary
from slimformer.messages.words import option

TEXT = "Once upon a time, there was a little girl. She didn't know: was it so? Yes (indeed) it was!"


def check_gguf(
    model: PreTrainedModel, tokenizer: Any, folder: Path, written: Written, quant: str
) -> tuple[Difference, list[str]]:
    """Compare with a copy of the model that has the rounded weights; the difference returned is to the model itself,
    and with it notes on what was checked.

    Cost: two copies of the weights in memory, one forward pass of three models for each shape.
    """
    read = read_ragged(folder, model, written) if written.sizes.ragged else _read(folder, model, written)
    tensors = read.state_dict()
    for key, tensor in written.weights.items():
        if key not in tensors or not torch.equal(tensors[key].float(), tensor):
            raise ExportFailed(f"the GGUF file is read back with other weights: {key}; it was not kept")
    # transformers builds the model of a file anew; Mistral comes back as LLaMA, which computes the same
    rounded = _with_weights(model, written)
    opened = Graph(read)
    require_close(difference(Graph(rounded), lambda inputs: outputs_of(opened, inputs)))
    _require_same_tokens(tokenizer, folder, model.config.vocab_size if written.sizes.ragged else None)
    notes = [require_same_words(folder, rounded, quant)] if written.sizes.ragged else []
    return difference(Graph(model), lambda inputs: outputs_of(opened, inputs)), notes


def _read(folder: Path, model: PreTrainedModel, written: Written) -> Any:
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise CannotExport(
            f"reading GGUF back needs accelerate; run: pip install accelerate, or give {option('verify', False)}"
        ) from error
    logging.getLogger("transformers.modeling_gguf_pytorch_utils").setLevel(logging.ERROR)
    given = {"config": copy.deepcopy(model.config)} if written.needs_config else {}
    try:
        with redirect_stderr(StringIO()):  # a progress bar that no setting turns off
            read: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=FILE, dtype=torch.float32, **given)
    except Exception as error:  # what is wrong shows deep inside gguf, in many ways
        reason = " ".join(str(error).split())[:200]
        raise ExportFailed(f"transformers does not read the GGUF file back: {reason}; it was not kept") from error
    return read.eval()


def _with_weights(model: PreTrainedModel, written: Written) -> PreTrainedModel:
    rounded = copy.deepcopy(model).float()
    rounded.load_state_dict(written.weights, strict=False)
    rounded.tie_weights()
    return rounded.eval()


def _require_same_tokens(tokenizer: Any, folder: Path, alone: int | None) -> None:
    """The same text in the same tokens. Where transformers does not know the kind of file, the vocabulary of this size
    is written once more, `alone`, into one of a kind it knows."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            place = folder if alone is None else _vocabulary_alone(tokenizer, alone, Path(scratch))
            read = AutoTokenizer.from_pretrained(place, gguf_file=FILE)
        left, right = (each(TEXT, add_special_tokens=False).input_ids for each in (tokenizer, read))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ExportFailed(f"transformers does not read the tokenizer of the GGUF file: {reason}") from error
    if left != right:
        raise ExportFailed("the tokenizer of the GGUF file splits a text otherwise than that of the model")


def _vocabulary_alone(tokenizer: Any, size: int, folder: Path) -> Path:
    import gguf

    writer = gguf.GGUFWriter(str(folder / FILE), "llama")
    write_vocabulary(writer, vocabulary(tokenizer, size))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return folder
