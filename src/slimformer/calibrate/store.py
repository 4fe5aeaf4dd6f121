"""Statistics on disk: a folder with one safetensors file per block, written as soon as the block is finished.

stats.json                    what model, what data, how many tokens, which seed
moments/block-003.safetensors count, sum and Gram matrix (upper triangle, float64) of every site and split
curves-<method>.json          error curves, once they have been computed
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from slimformer.calibrate.collect import BlockMoments, SiteMoments
from slimformer.errors import PlanDoesNotFit
from slimformer.linalg.moments import Moments

FORMAT = 1


@dataclass(frozen=True)
class Provenance:
    """Where statistics come from: enough to refuse the wrong model and to repeat the run."""

    model: str
    fingerprint: str
    model_type: str
    data: str
    data_hash: str
    seed: int
    seq_len: int
    tokens: dict[str, int]
    dtype: str
    n_blocks: int
    versions: dict[str, str]
    slimformer_stats: int = FORMAT


@dataclass(frozen=True)
class Statistics:
    """Moments of every site, read from disk one block at a time."""

    folder: Path
    provenance: Provenance

    def block(self, i: int) -> BlockMoments:
        path = self.folder / "moments" / f"block-{i:03d}.safetensors"
        try:
            return _unpack(i, load_file(path))
        except (OSError, SafetensorError, KeyError) as error:
            raise PlanDoesNotFit(
                f"{path}: the moments cannot be read ({error}); run `slimformer calibrate` again"
            ) from error

    def weights(self) -> dict[str, float]:
        """What an error at each site counts for: the inverse energy of the residual stream it is added to."""
        path = self.folder / "loudness.json"
        return {str(k): float(v) for k, v in json.loads(path.read_text()).items()}


def begin(folder: Path, provenance: Provenance) -> None:
    (folder / "moments").mkdir(parents=True, exist_ok=True)
    (folder / "stats.json").write_text(json.dumps(asdict(provenance), indent=1))


def write_block(folder: Path, moments: BlockMoments) -> None:
    """Flush a finished block."""
    save_file(_pack(moments), folder / "moments" / f"block-{moments.block:03d}.safetensors")


def write_weights(folder: Path, weights: Mapping[str, float]) -> None:
    (folder / "loudness.json").write_text(json.dumps(dict(weights), indent=1))


def open_statistics(folder: str | Path) -> Statistics:
    """Open a folder that `slimformer calibrate` wrote."""
    folder = Path(folder)
    try:
        data: dict[str, Any] = json.loads((folder / "stats.json").read_text())
        provenance = Provenance(**data)
    except (OSError, ValueError, TypeError) as error:
        raise PlanDoesNotFit(
            f"{str(folder)!r} holds no statistics ({error}); make them with `slimformer calibrate`"
        ) from error
    if provenance.slimformer_stats != FORMAT:
        raise PlanDoesNotFit(
            f"{str(folder)!r} has statistics of format {provenance.slimformer_stats}, this version reads {FORMAT}"
        )
    return Statistics(folder, provenance)


def _pack(moments: BlockMoments) -> dict[str, Tensor]:
    out = {"loudness": torch.tensor([moments.loudness], dtype=torch.float64)}
    for site, splits in moments.sites.items():
        for split, m in splits.items():
            rows, columns = torch.triu_indices(m.width, m.width)
            out[f"{site}/{split}/count"] = torch.tensor([m.count])
            out[f"{site}/{split}/sum"] = m.sum.cpu()
            out[f"{site}/{split}/gram"] = m.gram.cpu()[rows, columns]
    return out


def _unpack(i: int, tensors: Mapping[str, Tensor]) -> BlockMoments:
    sites: dict[str, SiteMoments] = {}
    for key in tensors:
        if not key.endswith("/count"):
            continue
        site, split, _ = key.split("/")
        total = tensors[f"{site}/{split}/sum"]
        rows, columns = torch.triu_indices(len(total), len(total))
        gram = torch.zeros(len(total), len(total), dtype=torch.float64)
        gram[rows, columns] = tensors[f"{site}/{split}/gram"]
        gram = gram + gram.triu(1).mT
        sites.setdefault(site, {})[split] = Moments(int(tensors[key]), total, gram)
    return BlockMoments(i, sites, float(tensors["loudness"]))
