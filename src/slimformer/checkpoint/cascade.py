"""Two checkpoints and a threshold in one folder.

    cascade.json    threshold, and what each model costs
    report.json     what they do on held-out data, where that was measured
    small/          an ordinary checkpoint: it opens alone, too
    large/          another

The folder appears whole or not at all, and both models are reloaded in fresh processes before it does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import ConfigDict, Field
from transformers import PreTrainedModel

from slimformer.checkpoint import atomic
from slimformer.checkpoint.load import load
from slimformer.checkpoint.save import Belongings, save, write_texts
from slimformer.errors import ModelBroken, ModelNotFound
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked, parse_own_json, read_text
from slimformer.models import describe
from slimformer.plan.cost import block_cost
from slimformer.plan.plan import LONGEST

FORMAT = 1
FILE = "cascade.json"
ROLES = ("small", "large")


@dataclass(frozen=True)
class Member:
    """One of the two models: the fraction of block MACs asked for, and the fraction kept. The dense model has 1, 1."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    budget: Annotated[float, Field(gt=0, le=1)]
    macs: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class CascadeRecord:
    """What `cascade.json` says. `select` is what the threshold gave on the data it was chosen on."""

    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    threshold: Annotated[float, Field(ge=0)] | None  # in nats; none: the small model keeps everything
    seq_len: Annotated[int, Field(ge=1, le=LONGEST)]  # at which MACs were counted
    fingerprint: str  # of the dense model
    small: Member
    large: Member
    select: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps({"slimformer_cascade": FORMAT, **asdict(self)}, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> CascadeRecord:
        data: Any = parse_own_json(text)
        format = data.pop("slimformer_cascade", None) if isinstance(data, dict) else None
        if format != FORMAT:
            raise ValueError(f"it has format {format!r}, this version reads {FORMAT}")
        return checked(cls, data)

    @property
    def nats(self) -> float:
        """The threshold as a number: infinite where there is none."""
        return math.inf if self.threshold is None else self.threshold

    def with_threshold(self, nats: float) -> CascadeRecord:
        """The same with another threshold; JSON knows no infinity, so that is written as none."""
        return replace(self, threshold=None if math.isinf(nats) else nats)


def save_cascade(
    record: CascadeRecord,
    models: Mapping[str, tuple[PreTrainedModel, Belongings]],
    folder: str | Path,
    *,
    report: dict[str, Any] | None = None,
    force: bool = False,
    verify: bool = True,
) -> None:
    """Write both models ("small", "large"; in the precision they are to be stored in) and the record."""
    texts = {FILE: record.to_json()}
    if report is not None:
        texts["report.json"] = json.dumps(report, indent=1, allow_nan=False)
    with atomic.writing(Path(folder), "cascade", force=force) as partial:
        for role in ROLES:
            model, belongings = models[role]
            save(model, partial / role, belongings, verify=verify)
        write_texts(partial, texts)


def read_cascade(
    folder: str | Path, *, dtype: torch.dtype | None = None, device: str | torch.device = "cpu"
) -> tuple[PreTrainedModel, PreTrainedModel, CascadeRecord]:
    """The small model, the large one, and the record."""
    where = Path(folder)
    record = read_record(where)
    small, large = (load(where / role, dtype=dtype, device=device) for role in ROLES)
    ratio = block_cost(describe(small), record.seq_len).macs / max(1, block_cost(describe(large), record.seq_len).macs)
    if not math.isclose(ratio, record.small.macs / record.large.macs, rel_tol=1e-9):
        raise ModelBroken(
            f"{where / FILE}: the small model is said to cost {record.small.macs / record.large.macs:.4f} of the large "
            f"one, and costs {ratio:.4f}; save the cascade again"
        )
    return small, large, record


def read_record(folder: str | Path) -> CascadeRecord:
    """What `cascade.json` in `folder` says, checked."""
    path = Path(folder) / FILE
    require_unchanged(path.parent, FILE)
    try:
        return CascadeRecord.from_json(read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelNotFound(f"{str(folder)!r} holds no {FILE}, so it is not a cascade") from None
    except (OSError, ValueError) as error:
        raise ModelBroken(f"{path} cannot be used: {' '.join(str(error).split())}; save the cascade again") from error
