"""Folders that hold a model and its new head: a stock classifier, or a sentence-transformers model.

No stock classifier takes the mean over positions. A sentence-transformers folder can say it: transformer, mean pooling,
one dense layer without activation; `SentenceTransformer(folder).encode(texts)` gives the scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AutoModel, PreTrainedModel

from slimformer.checkpoint import save as checkpoint
from slimformer.checkpoint.atomic import writing
from slimformer.heads.attach import config_up_to, rows_of_layer
from slimformer.heads.classify import Probed
from slimformer.heads.head_file import write_head
from slimformer.models.load import Loaded

MODULES = ("Transformer", "Pooling", "Dense")


def save_classifier(
    model: PreTrainedModel, folder: Path, source: Loaded, probed: Probed, *, force: bool = False
) -> None:
    """A classifier with its head, the moments of the head, and probe.json; reloaded in a fresh process."""
    with _folder(model, folder, source, probed, force=force):
        pass


def save_sentence_classifier(
    folder: Path, source: Loaded, probed: Probed, *, seq_len: int, force: bool = False
) -> None:
    """The encoder up to the layer that is read, mean pooling, and the head as a dense layer."""
    W, b = rows_of_layer(probed.head)
    encoder = encoder_up_to(source.model, probed.reading.layer)
    with _folder(encoder, folder, source, probed, force=force) as partial:
        kinds = [
            {
                "idx": i,
                "name": str(i),
                "path": f"{i}_{kind}" if i else "",
                "type": f"sentence_transformers.models.{kind}",
            }
            for i, kind in enumerate(MODULES)
        ]
        _write(partial / "modules.json", kinds)
        _write(partial / "sentence_bert_config.json", {"max_seq_length": seq_len, "do_lower_case": False})
        pooling = {"word_embedding_dimension": W.shape[1], "pooling_mode_mean_tokens": True}
        _write(partial / "1_Pooling" / "config.json", {**pooling, "pooling_mode_cls_token": False})
        dense = {"in_features": W.shape[1], "out_features": W.shape[0], "bias": True}
        activation = {"activation_function": "torch.nn.modules.linear.Identity"}
        _write(partial / "2_Dense" / "config.json", {**dense, **activation})
        tensors = {"linear.weight": W.contiguous(), "linear.bias": b.contiguous()}
        save_file(tensors, partial / "2_Dense" / "model.safetensors", metadata={"format": "pt"})


def encoder_up_to(model: PreTrainedModel, layer: int) -> PreTrainedModel:
    """The model without a head, and with its first `layer` blocks."""
    encoder: Any = AutoModel.from_config(config_up_to(model, layer))
    there = encoder.state_dict()
    encoder.load_state_dict({k: v for k, v in model.base_model.state_dict().items() if k in there}, strict=False)
    return encoder.to(model.dtype).eval()


@contextmanager
def _folder(model: PreTrainedModel, folder: Path, source: Loaded, probed: Probed, *, force: bool) -> Iterator[Path]:
    """Weights, tokenizer and licences of `source`, the head and the report; verified when the block ends."""
    with writing(folder, "classifier", force=force) as partial:
        checkpoint.write_model(model, partial)
        checkpoint.write_belongings(partial, source.processor, source.companions, parts=False)
        write_head(probed.head, partial / "head.safetensors")
        _write(partial / "probe.json", probed.report)
        yield partial
        checkpoint.verify_reload(model, partial)


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
