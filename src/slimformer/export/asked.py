"""What an export is to be, checked without a model."""

from __future__ import annotations

from dataclasses import dataclass

from slimformer.errors import CannotExport
from slimformer.messages.words import option

TARGETS = ("onnx", "torch", "gguf")
RUNTIMES = ("torch", "onnxruntime", "openvino")  # to measure in


@dataclass(frozen=True)
class Target:
    """A runtime (onnx, torch or gguf), and how the file for it is written; options of another runtime are refused.

    `seq_len` fixes the length of sequences, `int8` and `int4` (in the file; computing is int8) are of ONNX, `quant`
    (f32, f16, q8_0) of GGUF.
    """

    to: str
    int8: bool = False
    quant: str | None = None
    seq_len: int | None = None
    int4: bool = False

    def __post_init__(self) -> None:
        _require_sensible(self.to, self.int8, self.quant, self.seq_len)
        if self.int4 and (self.to != "onnx" or self.int8):
            raise CannotExport(
                f"{option('int4', True)} is for {option('to', 'onnx')} and stands in place of {option('int8', True)}; "
                "give one of the two"
            )

    @property
    def bits(self) -> int | None:
        """Of weights in an ONNX file; none for single precision."""
        return 4 if self.int4 else 8 if self.int8 else None


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
