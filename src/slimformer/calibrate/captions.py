"""Images with their captions, for two towers that are compared: a table of both, or a folder that holds one.

A table (jsonl, tsv, csv or parquet) has a column of images, paths from its own folder, and one of text. A folder has
one under the name `captions` or `metadata` in it. A document is an image with its caption; pairs that share either stay
in one split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.document import Document
from slimformer.calibrate.folder import digest
from slimformer.calibrate.images import processed_images
from slimformer.calibrate.tables import open_table
from slimformer.calibrate.tasks import spread
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, DataUnreadable
from slimformer.messages.words import option
from slimformer.models.batch import Batch

IMAGES, TEXTS = ("image", "file_name", "path"), ("caption", "text", "sentence", "name")
TABLES = tuple(f"{name}{end}" for name in ("captions", "metadata") for end in (".jsonl", ".csv", ".tsv", ".parquet"))
TOGETHER = 32  # pairs of a batch: each image is matched with the captions of the others, too


def read_captioned(source: Any, *, samples: int | None = None) -> list[Document]:
    """Images with their captions, at most `samples` of them."""
    if not isinstance(source, str | Path) or not Path(source).exists():
        raise DataNotFound(
            f"two towers are calibrated on images with captions; name a table of both, or a folder with images and "
            f"a {TABLES[0]}, with {option('data')}"
        )
    file = _table_of(Path(source))
    table = open_table(file, None)
    if table is None:
        raise DataUnreadable(f"{file} is no table; give a jsonl, tsv, csv or parquet file with image and caption")
    image, text = (_column(file, table.columns, names) for names in (IMAGES, TEXTS))
    rows = [(str(row.get(image) or ""), str(row.get(text) or "").strip()) for row in table.rows([image, text])]
    pairs = [(file.parent / path, caption) for path, caption in rows if path and caption]
    if not pairs:
        raise DataEmpty(f"{file} has no row with both an image and a caption")
    return [
        Document(str(path.resolve()), caption, group=digest(path, "image")) for path, caption in spread(pairs, samples)
    ]


def captioned_batches(
    documents: Sequence[Document], model: PreTrainedModel, processor: Any, *, batch_size: int = TOGETHER
) -> list[Batch]:
    """Pixels and tokens as the processor of the model makes them; captions are cut off where its positions end."""
    tokenizer = getattr(processor, "tokenizer", None)
    if tokenizer is None or not hasattr(processor, "image_processor"):
        raise DataUnreadable(
            "two towers read with an image processor and a tokenizer, and the model comes without one of them; put "
            "preprocessor_config.json and tokenizer.json beside config.json (from Python: give both as `processor`)"
        )
    most, masked = model.config.text_config.max_position_embeddings, "attention_mask" in tokenizer.model_input_names
    padding = True if masked else "max_length"  # what masks none (SigLIP) was trained on texts of full length
    starts = range(0, len(documents), batch_size)
    parts = [documents[start : start + batch_size] for start in starts]
    if len(parts) > 1 and len(parts[-1]) < 2:  # one pair alone always matches
        parts.pop()
    batches = []
    for part in parts:
        texts = [document.pair or "" for document in part]
        encoded = tokenizer(texts, truncation=True, max_length=most, padding=padding, return_tensors="pt")
        inputs: dict[str, Tensor] = {name: value for name, value in encoded.items() if isinstance(value, Tensor)}
        inputs |= processed_images([document.text for document in part], processor.image_processor)
        numbers = [start if each.number is None else each.number for start, each in enumerate(part)]
        batches.append(Batch(inputs, None, documents=torch.tensor(numbers)))
    return batches


def _table_of(source: Path) -> Path:
    if source.is_file():
        return source
    table = next((source / name for name in TABLES if (source / name).is_file()), None)
    if table is None:
        raise DataNotFound(f"{source} holds no captions; put a {TABLES[0]} with image and caption into it")
    return table


def _column(file: Path, columns: Sequence[str], names: Sequence[str]) -> str:
    column = next((name for name in names if name in columns), None)
    if column is None:
        raise ColumnNotFound(f"{file} has none of the columns {', '.join(names)}; it has: {', '.join(columns)}")
    return column
