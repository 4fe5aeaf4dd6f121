"""What may be asked of an export, told without a model."""

from __future__ import annotations

from slimformer.errors import CannotExport
from slimformer.messages.words import option

TARGETS = ("onnx", "torch", "gguf")


def require_sensible(to: str, int8: bool, quant: str | None, seq_len: int | None) -> None:
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
