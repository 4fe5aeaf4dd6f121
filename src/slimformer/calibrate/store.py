"""Statistics on disk: a folder with one safetensors file per block, written as soon as the block is finished.

stats.json                    what model, what data, how many tokens, which seed
moments/block-003.safetensors count, sum and Gram matrix (upper triangle, float64) of every site and split
curves-<method>.json          error curves, once they have been computed

What is read is checked: fields one by one, moments for what no data can give, weights against the moments they follow
from. Whether all of it is of one model is asked where there is one (`of_model`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from slimformer.calibrate.collect import BlockMoments, SiteMoments
from slimformer.calibrate.provenance import Provenance as Provenance
from slimformer.calibrate.provenance import read_provenance
from slimformer.calibrate.soundness import require_sound
from slimformer.decompose.response import Response
from slimformer.errors import CannotWrite, PlanDoesNotFit
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import checked, read_own_json, require_regular
from slimformer.linalg.moments import Moments
from slimformer.messages.short import Short
from slimformer.messages.words import option
from slimformer.models.architecture import block_of

RESPONSE = ("queries", "keys", "planes")
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, repr=False)
class Statistics(Short):
    """Moments of every site, read from disk one block at a time; `provenance` says of which model and data.

    >>> stats = slimformer.calibrate("bert", "table.tsv", samples=60, tokens=600, out="of-bert")
    >>> stats.provenance.model_type, stats.provenance.n_blocks
    ('bert', 3)
    """

    folder: Path
    provenance: Provenance
    notes: tuple[str, ...] = ()  # what one should know of the data, where they have just been read

    def facts(self) -> dict[str, str]:
        """Of which model, and on which data."""
        provenance = self.provenance
        tokens = ", ".join(f"{split} {n:,}" for split, n in provenance.tokens.items())
        return {
            "": f"{provenance.model} ({provenance.model_type}, {provenance.n_blocks} blocks)", "data": provenance.data,
            "tokens": tokens,
            "sequence length": f"{provenance.seq_len:,}", "folder": str(self.folder),
        }  # fmt: skip

    def block(self, i: int, splits: Sequence[str] | None = None) -> BlockMoments:
        """The moments of block i: all of them, or those of some splits."""
        path = moments_file(self.folder, i)
        require_unchanged(self.folder, path.relative_to(self.folder).as_posix())
        try:
            require_regular(path)
            tensors = load_file(path)
            moments = _unpack(i, {k: v for k, v in tensors.items() if splits is None or _split(k) in (None, *splits)})
            require_sound(moments)
            return moments
        except (OSError, SafetensorError, LookupError, ValueError, TypeError, RuntimeError, StopIteration) as error:
            raise PlanDoesNotFit(
                f"{path}: the moments cannot be read ({' '.join(str(error).split())}); run `slimformer calibrate` again"
            ) from error

    def weights(self) -> dict[str, float]:
        """What an error at each site counts for: the inverse energy of the residual stream it is added to."""
        path = self.folder / "error_weights.json"
        require_unchanged(self.folder, path.name)
        try:
            weights = checked(dict[str, Weight], read_own_json(path))
            self._require_recorded(weights)
            return weights
        except (OSError, SafetensorError, LookupError, ValueError, RuntimeError) as error:
            raise PlanDoesNotFit(f"{path} cannot be read ({error}); run `slimformer calibrate` again") from error

    def _require_recorded(self, weights: Mapping[str, float]) -> None:
        """Weights stand beside the moments as well; under torchrun not all of these need be here."""
        for i in range(self.provenance.n_blocks):
            path = moments_file(self.folder, i)
            if not path.is_file():
                continue
            with safe_open(path, framework="pt") as tensors:
                sites = {key.split("/")[0] for key in tensors.keys() if key.endswith("/count")}  # noqa: SIM118
                recorded = float(tensors.get_tensor("error_weight"))
            here = {block_of(site) for site in sites} or {("", i)}
            said = {site: weight for site, weight in weights.items() if block_of(site) in here}
            if said != dict.fromkeys(sites, recorded):
                raise ValueError(f"it is not what {path.name} says")
        other = [site for site in weights if not of_blocks(site, self.provenance.n_blocks)]
        if other or not weights:
            raise ValueError(f"it speaks of {other[0][:80]}" if other else "it is empty")

    @property
    def metric(self) -> bool:
        """Were errors seen in a metric?"""
        files = [moments_file(self.folder, i) for i in range(self.provenance.n_blocks)]
        for file in (file for file in files if file.is_file()):  # all blocks or none; not all need be here
            with safe_open(file, framework="pt") as tensors:
                return any(key.startswith("metric/") for key in tensors.keys())  # noqa: SIM118
        return False

    def probes(self) -> dict[str, dict[str, Any]]:
        """What the sensitivity probes found, by site; empty when none were made."""
        path = self.folder / "probes.json"
        require_unchanged(self.folder, path.name)
        try:
            return checked(dict[str, dict[str, Any]], read_own_json(path)) if path.exists() else {}
        except (OSError, ValueError) as error:
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
        (folder / "error_weights.json").write_text(json.dumps(dict(weights), indent=1))


def open_statistics(folder: str | Path) -> Statistics:
    """Open a folder that `slimformer calibrate` wrote."""
    return Statistics(Path(folder), read_provenance(folder))


def of_blocks(site: str, n_blocks: int) -> bool:
    """Is this the name of a site of one of so many blocks?"""
    return 0 <= block_of(site)[1] < n_blocks


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
    out = {"error_weight": torch.tensor([moments.error_weight], dtype=torch.float64)}
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
    for split, response in moments.responses.items():
        out[f"response/{split}/queries-counted"] = torch.tensor([response.count])
        for name in RESPONSE:
            out[f"response/{split}/{name}"] = getattr(response, name).cpu().contiguous()
    return out


def _unpack(i: int, tensors: Mapping[str, Tensor]) -> BlockMoments:
    sites: dict[str, SiteMoments] = {}
    for key, tensor in tensors.items():
        if not key.endswith(("/count", "/queries-counted")) and tensor.dtype != torch.float64:
            raise ValueError(f"{key[:80]}: numbers are {tensor.dtype}, not float64")
        if not key.endswith("/count"):
            continue
        site, split, _ = key.split("/")
        total = tensors[f"{site}/{split}/sum"]
        gram = _symmetric(tensors[f"{site}/{split}/gram"], len(total))
        sites.setdefault(site, {})[split] = Moments(_count(tensors[key]), total, gram)
    joint = _joint(tensors, _neurons(sites)) if any(key.startswith("joint/") for key in tensors) else {}
    moments = BlockMoments(i, sites, float(tensors["error_weight"]), _responses(tensors), _metric(tensors), joint)
    if other := sorted(tensors.keys() ^ _names(moments)):
        raise ValueError(f"{other[0][:80]} is {'there' if other[0] in tensors else 'not there'}")
    return moments


def _names(moments: BlockMoments) -> set[str]:
    """What the tensors of a block are called in its file."""
    of_sites = {f"{site}/{split}" for site, splits in moments.sites.items() for split in splits}
    return {
        "error_weight", *(f"metric/{site}" for site in moments.metric),
        *(f"{name}/{part}" for name in of_sites for part in ("count", "sum", "gram")),
        *(f"joint/{split}/{part}" for split in moments.joint for part in ("sum", "cross", "gram")),
        *(f"response/{split}/{part}" for split in moments.responses for part in ("queries-counted", *RESPONSE)),
    }  # fmt: skip


def _count(tensor: Tensor) -> int:
    if tensor.dtype != torch.int64 or tensor.shape != (1,):
        raise ValueError(f"a number of rows is {tuple(tensor.shape)} of {tensor.dtype}")
    return int(tensor)


def _split(key: str) -> str | None:
    """The split a tensor belongs to, if to one."""
    parts = key.split("/")
    return parts[1] if len(parts) == 3 else None


def _neurons(sites: Mapping[str, SiteMoments]) -> SiteMoments:
    return next(splits for site, splits in sites.items() if site.endswith(".hidden"))


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
    uppers = {key.split("/")[1]: upper for key, upper in tensors.items() if key.startswith("metric/")}
    return {site: _triangle(upper, (math.isqrt(8 * len(upper) + 1) - 1) // 2) for site, upper in uppers.items()}


def _responses(tensors: Mapping[str, Tensor]) -> dict[str, Response]:
    counts = {key.split("/")[1]: _count(tensors[key]) for key in tensors if key.endswith("/queries-counted")}
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
    if len(upper) != d * (d + 1) // 2:  # before there is room for d²
        raise ValueError(f"a triangle of {d} rows has {len(upper)} numbers")
    out = torch.zeros(d, d, dtype=torch.float64)
    for i, row in enumerate(upper.split(list(range(d, 0, -1)))):
        out[i, i:] = row
    return out
