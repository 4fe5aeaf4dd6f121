"""Statistics on disk: a folder with one safetensors file per block, written as soon as the block is finished.

stats.json                    what model, what data, how many tokens, which seed
moments/block-003.safetensors count, sum and Gram matrix (upper triangle, float64) of every site and split
curves-<method>.json          error curves, once they have been computed
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from slimformer.calibrate.collect import BlockMoments, SiteMoments
from slimformer.decompose.response import Response
from slimformer.errors import CannotWrite, PlanDoesNotFit
from slimformer.linalg.moments import Moments
from slimformer.short import Short
from slimformer.words import option

FORMAT = 2
RESPONSE = ("queries", "keys", "planes")


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
    joint: bool = False  # are there moments of neurons together with their input?
    slimformer_stats: int = FORMAT


@dataclass(frozen=True, repr=False)
class Statistics(Short):
    """Moments of every site, read from disk one block at a time."""

    folder: Path
    provenance: Provenance

    def facts(self) -> dict[str, str]:
        """Of which model, and on which data."""
        made = self.provenance
        tokens = ", ".join(f"{split} {n:,}" for split, n in made.tokens.items())
        return {
            "": f"{made.model} ({made.model_type}, {made.n_blocks} blocks)", "data": made.data, "tokens": tokens,
            "sequence length": f"{made.seq_len:,}", "folder": str(self.folder),
        }  # fmt: skip

    def block(self, i: int, splits: Sequence[str] | None = None) -> BlockMoments:
        """The moments of block i: all of them, or those of some splits."""
        path = moments_file(self.folder, i)
        try:
            tensors = load_file(path)
            return _unpack(i, {k: v for k, v in tensors.items() if splits is None or _split(k) in (None, *splits)})
        except (OSError, SafetensorError, KeyError, ValueError, IndexError, RuntimeError) as error:
            raise PlanDoesNotFit(
                f"{path}: the moments cannot be read ({error}); run `slimformer calibrate` again"
            ) from error

    def weights(self) -> dict[str, float]:
        """What an error at each site counts for: the inverse energy of the residual stream it is added to."""
        path = self.folder / "loudness.json"
        try:
            return {str(k): float(v) for k, v in json.loads(path.read_text()).items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise PlanDoesNotFit(f"{path} cannot be read ({error}); run `slimformer calibrate` again") from error

    def probes(self) -> dict[str, dict[str, Any]]:
        """What the sensitivity probes found, by site; empty when none were made."""
        path = self.folder / "probes.json"
        try:
            return dict(json.loads(path.read_text())) if path.exists() else {}
        except (OSError, ValueError, TypeError) as error:
            raise PlanDoesNotFit(f"{path} cannot be read ({error}); run `slimformer calibrate` again") from error


def moments_file(folder: Path, i: int) -> Path:
    """Where the moments of block i are."""
    return folder / "moments" / f"block-{i:03d}.safetensors"


def begin(folder: Path, provenance: Provenance) -> None:
    """Say first where the moments to come are from."""
    with _room(folder):
        (folder / "moments").mkdir(parents=True, exist_ok=True)
        (folder / "stats.json").write_text(json.dumps(asdict(provenance), indent=1))


def write_block(folder: Path, moments: BlockMoments) -> None:
    """Flush a finished block."""
    with _room(folder):
        save_file(_pack(moments), moments_file(folder, moments.block))


def write_probes(folder: Path, probes: Mapping[str, Mapping[str, Any]]) -> None:
    """What the sensitivity probes found, by site."""
    with _room(folder):
        (folder / "probes.json").write_text(json.dumps(dict(probes), indent=1))


def write_weights(folder: Path, weights: Mapping[str, float]) -> None:
    """What an error at each site counts for; see `Statistics.weights`."""
    with _room(folder):
        (folder / "loudness.json").write_text(json.dumps(dict(weights), indent=1))


def open_statistics(folder: str | Path) -> Statistics:
    """Open a folder that `slimformer calibrate` wrote."""
    folder = Path(folder)
    try:
        data: Any = json.loads((folder / "stats.json").read_text())
    except FileNotFoundError:
        raise PlanDoesNotFit(f"{str(folder)!r} holds no statistics; make them with `slimformer calibrate`") from None
    except (OSError, ValueError) as error:
        raise PlanDoesNotFit(
            f"{str(folder)!r} holds no statistics ({error}); make them with `slimformer calibrate`"
        ) from error
    return Statistics(folder, _checked(folder, data))


def _checked(folder: Path, data: Any) -> Provenance:
    found = data.get("slimformer_stats") if isinstance(data, dict) else None
    if found != FORMAT:
        raise PlanDoesNotFit(
            f"{str(folder)!r} has statistics of format {found!r}, this version reads {FORMAT}; "
            "make them with `slimformer calibrate`"
        )
    try:
        return TypeAdapter(Provenance).validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PlanDoesNotFit(
            f"{folder / 'stats.json'}: {where}: {first['msg']}; make it with `slimformer calibrate`"
        ) from None


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """Say in one line that the disk is full; safetensors hides the number of the error in its text."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise CannotWrite(
            f"the moments cannot be written to {folder}: {getattr(error, 'strerror', None) or error}; "
            "free some space there, or choose another place (compress keeps them below TMPDIR, "
            f"with {option('memory')} beside {option('folder')})"
        ) from error


def _pack(moments: BlockMoments) -> dict[str, Tensor]:
    out = {"loudness": torch.tensor([moments.loudness], dtype=torch.float64)}
    for site, splits in moments.sites.items():
        for split, m in splits.items():
            out[f"{site}/{split}/count"] = torch.tensor([m.count])
            out[f"{site}/{split}/sum"] = m.sum.cpu()
            out[f"{site}/{split}/gram"] = _upper(m.gram.cpu())
    for site, root in moments.metric.items():
        out[f"metric/{site}"] = _upper(root)
    for split, m in moments.joint.items():
        n = _neurons(moments.sites)[split].width  # what neurons have alone is stored already
        out[f"joint/{split}/sum"] = m.sum[n:].cpu().contiguous()
        out[f"joint/{split}/cross"] = m.gram[:n, n:].cpu().contiguous()
        out[f"joint/{split}/gram"] = _upper(m.gram[n:, n:].cpu())
    for split, found in moments.responses.items():
        out[f"response/{split}/queries-counted"] = torch.tensor([found.count])
        for name in RESPONSE:
            out[f"response/{split}/{name}"] = getattr(found, name).cpu().contiguous()
    return out


def _unpack(i: int, tensors: Mapping[str, Tensor]) -> BlockMoments:
    sites: dict[str, SiteMoments] = {}
    for key in tensors:
        if not key.endswith("/count"):
            continue
        site, split, _ = key.split("/")
        total = tensors[f"{site}/{split}/sum"]
        gram = _symmetric(tensors[f"{site}/{split}/gram"], len(total))
        sites.setdefault(site, {})[split] = Moments(int(tensors[key]), total, gram)
    joint = _joint(tensors, _neurons(sites)) if any(key.startswith("joint/") for key in tensors) else {}
    return BlockMoments(i, sites, float(tensors["loudness"]), _responses(tensors), _metric(tensors), joint)


def _split(key: str) -> str | None:
    """The split a tensor belongs to, if to one."""
    parts = key.split("/")
    return parts[1] if len(parts) == 3 else None


def _neurons(sites: Mapping[str, SiteMoments]) -> SiteMoments:
    return next(splits for site, splits in sites.items() if site.endswith(".ffn.hidden"))


def _joint(tensors: Mapping[str, Tensor], neurons: SiteMoments) -> dict[str, Moments]:
    """Moments of neurons and their input, put together from those of the neurons and the rest."""
    out = {}
    for split, m in neurons.items():
        total, cross, upper = (tensors[f"joint/{split}/{name}"] for name in ("sum", "cross", "gram"))
        gram = torch.cat([torch.cat([m.gram, cross], 1), torch.cat([cross.mT, _symmetric(upper, len(total))], 1)])
        out[split] = Moments(m.count, torch.cat([m.sum, total]), gram)
    return out


def _metric(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Roots, which are upper triangular."""
    found = {key.split("/")[1]: upper for key, upper in tensors.items() if key.startswith("metric/")}
    return {site: _triangle(upper, (math.isqrt(8 * len(upper) + 1) - 1) // 2) for site, upper in found.items()}


def _responses(tensors: Mapping[str, Tensor]) -> dict[str, Response]:
    counts = {key.split("/")[1]: int(tensors[key]) for key in tensors if key.endswith("/queries-counted")}
    return {
        split: Response(count, *(tensors[f"response/{split}/{name}"] for name in RESPONSE))
        for split, count in counts.items()
    }


def _upper(gram: Tensor) -> Tensor:
    """The upper triangle, row by row."""
    return torch.cat([row[i:] for i, row in enumerate(gram)]) if len(gram) else gram.flatten()


def _symmetric(upper: Tensor, d: int) -> Tensor:
    gram = _triangle(upper, d)
    return gram + gram.triu(1).mT


def _triangle(upper: Tensor, d: int) -> Tensor:
    out = torch.zeros(d, d, dtype=torch.float64)
    for i, row in enumerate(upper.split(list(range(d, 0, -1)))):
        out[i, i:] = row
    return out
