"""A folder of recordings to batches of waves, or of features with the text that is written of them.

A recording is cut into pieces as long as the model reads. Encoders (wav2vec 2.0, HuBERT) have a row for each piece; a
model that writes (Whisper) has its features and a target: the transcript, a text file beside the recording under the
same name (`a.flac`, `a.txt`), or where there is none what the model writes itself.

Where a model masks padding, pieces are padded to the longest of their batch; where it does not (the smaller wav2vec 2.0
and HuBERT) padding would change all positions, so pieces of like length are cut to the shortest.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.calibrate.document import Document, Label
from slimformer.calibrate.documents import SOUNDS
from slimformer.calibrate.folder import documents_below
from slimformer.calibrate.pairs import targets_of, writes, written
from slimformer.calibrate.text import LIKE, label_numbers, label_tensor
from slimformer.errors import DataNotFound, DataUnreadable
from slimformer.files.reading import read_text
from slimformer.models.batch import Batch
from slimformer.models.sample_inputs import positions_of, samples_of, start_token

LEAST = 0.5  # of a piece: a shorter rest of a recording is left out
Wave = NDArray[np.float32]


@dataclass(frozen=True)
class _Piece:
    wave: Wave
    label: Label
    document: int
    transcript: str | None  # of recordings that are one piece


def read_sounds(folder: str | Path, *, samples: int | None = None, seed: int = 0) -> list[Document]:
    """The recordings below a folder, at most `samples` of them, chosen by `seed`, with their transcripts as pairs;
    sub-folders name the classes."""
    recordings = documents_below(folder, "recording", SOUNDS, samples=samples, seed=seed)
    return [replace(each, pair=_transcript(Path(each.text))) for each in recordings]


def wave_batches(
    documents: Sequence[Document], model: PreTrainedModel, processor: Any, *, positions: int, tokens: int,
    batch_size: int = 8,
) -> list[Batch]:  # fmt: skip
    """Waves for an encoder, at most so many `positions` of each and `tokens` of all.

    A recording that is to be classified is read from its beginning, as far as a piece goes: a class says nothing about
    a part.
    """
    config, extractor = model.config, extractor_of(processor)
    pieces, left = list[_Piece](), tokens
    for piece in _pieces(documents, extractor, samples_of(config, positions), first=_classifies(model)):
        if (length := positions_of(config, len(piece.wave))) < 1:
            continue
        if (left := left - length) < 0 and pieces:
            break
        pieces.append(piece)
    return [_waves(part, config, extractor, label_numbers(model)) for part in _alike(pieces, batch_size)]


def feature_batches(
    documents: Sequence[Document], model: PreTrainedModel, processor: Any, *, seq_len: int, tokens: int,
    batch_size: int = 8,
) -> list[Batch]:  # fmt: skip
    """Features for a model that writes, with targets of at most `seq_len` tokens; so many `tokens` of all, a recording
    counted by the positions it has in the encoder.

    Cost: where transcripts are missing, a forward pass of the decoder for every token that is written.
    """
    extractor, batches = extractor_of(processor), list[Batch]()
    rows = max(1, tokens // model.config.max_source_positions)
    pieces = _pieces(documents, extractor, extractor.n_samples, first=False)
    known = [piece for _, piece in zip(range(rows), pieces, strict=False)]
    known.sort(key=lambda piece: piece.transcript is None)  # those that lack a target together
    for start in range(0, len(known), batch_size):
        part = known[start : start + batch_size]
        inputs = _features(part, extractor)
        new = written(model, inputs, seq_len) if any(each.transcript is None for each in part) else []
        given = [new[i] if t is None else _tokens(processor, t, model, seq_len)
                 for i, t in enumerate(each.transcript for each in part)]  # fmt: skip
        decoder_ids, targets, real = targets_of(given, model.config)
        numbers = torch.tensor([piece.document for piece in part])
        batches.append(Batch({**inputs, "decoder_input_ids": decoder_ids}, real, documents=numbers, targets=targets))
    return batches


def extractor_of(processor: Any) -> Any:
    """What makes inputs of waves; refused where there is none."""
    extractor = getattr(processor, "feature_extractor", processor)
    if not hasattr(extractor, "sampling_rate"):
        raise DataUnreadable(
            "there is no feature extractor with the model, so it cannot read sounds; put its preprocessor_config.json "
            "beside config.json (from Python: give it as `processor`)"
        )
    return extractor


def require_targets(documents: Sequence[Document], model: PreTrainedModel, processor: Any) -> None:
    """Refuse recordings without transcripts where the model cannot write them, and transcripts nobody can read."""
    lacking = [document for document in documents if document.pair is None]
    if lacking and not writes(model):
        raise DataNotFound(
            f"{type(model).__name__} has no head that writes, and {lacking[0].text} has no transcript beside it; give "
            "each recording one (a.wav, a.txt), or open the model with its head"
        )
    if len(lacking) < len(documents) and not hasattr(processor, "tokenizer"):
        raise DataUnreadable(
            "there is no tokenizer with the model, so it cannot read transcripts; put its tokenizer.json beside "
            "config.json, or take the .txt files away and the model writes its own"
        )


def soundfile() -> Any:
    """The library that reads recordings."""
    try:
        return importlib.import_module("soundfile")
    except (ImportError, OSError) as error:
        raise DataUnreadable("reading recordings needs soundfile: pip install 'slimformer[audio]'") from error


def _transcript(path: Path) -> str | None:
    try:
        return read_text(path.with_suffix(".txt")).strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise DataUnreadable(
            f"the transcript {path.with_suffix('.txt')} is no UTF-8 text; repair or remove it"
        ) from error


def _wave(path: Path, rate: int) -> Wave:
    """All channels of a recording as one."""
    library = soundfile()
    try:
        wave, own_rate = library.read(str(path), dtype="float32", always_2d=True)
    except (RuntimeError, OSError) as error:  # what libsndfile raises is a RuntimeError
        what = "is corrupt or no sound; repair or remove it" if path.exists() else "is no longer there; read it again"
        raise DataUnreadable(f"recording {path} {what}") from error
    if own_rate != rate:
        raise DataUnreadable(
            f"recording {path} has {own_rate:,} samples a second, and the model reads {rate:,}; convert the recordings "
            f"first, for one with `ffmpeg -i in.wav -ar {rate} out.wav`"
        )
    if not np.isfinite(wave).all():
        raise DataUnreadable(f"recording {path} holds NaN or infinite samples; repair or remove it")
    return np.asarray(wave.mean(1), np.float32)


def _pieces(documents: Sequence[Document], extractor: Any, length: int, *, first: bool) -> Iterator[_Piece]:
    for i, document in enumerate(documents):
        wave = _wave(Path(document.text), int(extractor.sampling_rate))
        starts = [n for n in range(0, len(wave), length) if n == 0 or len(wave) - n >= LEAST * length]
        number = i if document.number is None else document.number
        for start in starts[:1] if first else starts:
            whole = document.pair if len(wave) <= length else None
            yield _Piece(wave[start : start + length], document.label, number, whole)


def _alike(pieces: list[_Piece], batch_size: int) -> list[list[_Piece]]:
    """Batches of pieces of like length, in an order that does not depend on it."""
    left, parts = sorted(pieces, key=lambda piece: len(piece.wave)), list[list[_Piece]]()
    while left:
        longest = len(left[-1].wave)
        size = sum(len(piece.wave) >= LIKE * longest for piece in left[-batch_size:])
        parts.append(left[-size:])
        del left[-size:]
    random.Random(0).shuffle(parts)
    return parts


def _waves(part: Sequence[_Piece], config: Any, extractor: Any, label_ids: Mapping[str, int] | None) -> Batch:
    waves = [piece.wave for piece in part]
    if not extractor.return_attention_mask:
        waves = [wave[: min(map(len, waves))] for wave in waves]
    inputs = _made(extractor, waves, padding=True)
    lengths = torch.tensor([[positions_of(config, len(wave))] for wave in waves])
    real = torch.arange(positions_of(config, inputs["input_values"].shape[1])) < lengths
    labels = label_tensor([piece.label for piece in part], label_ids)
    return Batch(inputs, real, labels, torch.tensor([piece.document for piece in part]))


def _features(part: Sequence[_Piece], extractor: Any) -> dict[str, Tensor]:
    return {"input_features": _made(extractor, [piece.wave for piece in part])["input_features"]}


def _made(extractor: Any, waves: Sequence[Wave], **how: Any) -> dict[str, Tensor]:
    features = extractor(list(waves), sampling_rate=extractor.sampling_rate, return_tensors="pt", **how)
    return {name: value for name, value in features.items() if isinstance(value, Tensor)}


def _tokens(processor: Any, transcript: str, model: PreTrainedModel, most: int) -> list[int]:
    """What is to be written, without the token every target begins with."""
    ids: list[int] = processor.tokenizer(transcript)["input_ids"]
    return ids[ids[:1] == [start_token(model.config)] :][:most]


def _classifies(model: PreTrainedModel) -> bool:
    return type(model).__name__.endswith("SequenceClassification")
