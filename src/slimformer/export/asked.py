"""What an export is to be, checked without a model."""

from __future__ import annotations

from dataclasses import dataclass

from slimformer.errors import CannotExport
from slimformer.messages.words import option

TARGETS = ("onnx", "torch", "gguf")


@dataclass(frozen=True)
class Target:
    """A runtime (onnx, torch or gguf), and how the file for it is written; options of another runtime are refused.

    `seq_len` fixes the length of sequences, `int8` is of ONNX, `quant` (f32, f16, q8_0) of GGUF.
    """

    to: str
    int8: bool = False
    quant: str | None = None
    seq_len: int | None = None

    def __post_init__(self) -> None:
        _require_sensible(self.to, self.int8, self.quant, self.seq_len)


def _require_sensible(to: str, int8: bool, quant: str | None, seq_len: int | None) -> None:
    """Refuse a target that is not known, and options of another one."""
    if to not in TARGETS:
        raise CannotExport(f"{option('to', to)} is not known; choose from {', '.join(TARGETS)}")
    if int8 and to != "onnx":
        hint = f"; give {option('quant', 'q8_0')}" if to == "gguf" else ""
        raise CannotExport(f"{option('int8', True)} is for {option('to', 'onnx')}, not for {to}{hint}")
    if quant is not None and to != "gguf":
        hint = f"; give {option('int8', True)}" if to == "onnx" else ""
        raise CannotExport(f"{option('quant')} is for {option('to', 'gguf')}, not for {to}{hint}")
    if seq_len is not None and to == "gguf":
        raise CannotExport(f"{option('seq_len')} is for onnx and torch; a GGUF file takes any length")
