"""Proofs, on a model itself, that a family says the truth about it. What is not proved is not cut.

    rows        changing what writes unit j changes unit j at the reader, and nothing else of it
    whole       with all units kept outputs are the same bits
    copies      a unit that is another one again is removed without a trace
    folder      blocks of different sizes are saved, and come back to the same outputs in a fresh process

Each part of each stack is proved in its first and its last block.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.checkpoint.save import save
from slimformer.decompose import Selection
from slimformer.errors import UnknownArchitecture
from slimformer.inspect.responses import Bench, calls_of, eager_experts, probe_inputs, run
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import HEADS, own_rows, weight_of
from slimformer.rewrite import surgery
from slimformer.rewrite.apply import writer_rows
from slimformer.rewrite.ranks import stand_in
from slimformer.rewrite.sizes import keep_attributes_true, state_sizes

LAWS = ("rows", "whole", "copies", "folder")
ROUNDING = 1e-7  # of the largest output, in double precision; some norms compute in single precision
PLACES = 6  # units of a site that are looked at


@dataclass(frozen=True)
class Proof:
    """Whether a law holds for a part of a stack, and what was seen where it does not."""

    stack: str
    part: str
    law: str
    holds: bool
    seen: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def require_dense(model: PreTrainedModel, name: str) -> None:
    """Refuse a model whose blocks have sizes of their own: on parts that are gone nothing can be proved."""
    if getattr(model.config, "slimformer", None):
        raise UnknownArchitecture(
            f"{name} was cut before, and a family is proved on whole blocks; give the model it was made from"
        )


def on_cpu(model: PreTrainedModel) -> PreTrainedModel:
    """The model, or a copy of it where it is elsewhere: laws are proved in double precision, which not every device
    has."""
    if model.device.type == "cpu":
        return model
    copied: Any = deepcopy(model)
    here: PreTrainedModel = copied.to("cpu")
    return here


def prove(model: PreTrainedModel, *, laws: Sequence[str] = LAWS, fresh: bool = True) -> list[Proof]:
    """The laws for every part that may be cut, on a copy of `model`. With `fresh` the folder is read by a new process.

    Cost: a copy in double precision, some forward passes, some dozens of runs of single blocks, and one save.
    """
    model = on_cpu(model)
    architecture, inputs = describe(model), probe_inputs(model)
    out = []
    with eager_experts(model):
        for law in (law for law in laws if law != "folder"):
            out += list(_of_blocks(model, architecture, inputs, law))
    if "folder" in laws and all(proof.holds for proof in out):
        out += _folder(model, architecture, fresh=fresh)
    return out


def _of_blocks(
    model: PreTrainedModel, architecture: Architecture, inputs: dict[str, Tensor], law: str
) -> Iterator[Proof]:
    dense = deepcopy(model).double().eval() if law != "rows" else model
    for stack in architecture.stacks:
        ends = dict.fromkeys((stack.blocks[0].index, stack.blocks[-1].index))
        sites = [site for i in ends for site in architecture.blocks[i].sites if not site.stays]
        for name in dict.fromkeys(site.part.name for site in sites):
            seen = ""
            for site in (site for site in sites if site.part.name == name):
                try:
                    seen = seen or LAW[law](dense, site, inputs)
                except Exception as error:  # code of others that runs on other sizes fails in its own ways
                    seen = seen or f"it does not run ({' '.join(str(error).split())[:120]})"
            yield Proof(stack.layout.name, name, law, not seen, seen)


def _rows(model: PreTrainedModel, site: Site, inputs: dict[str, Tensor]) -> str:
    """Which coordinates of the reader a row reaches; "" where these are the unit's own."""
    call, *_ = calls_of(model, inputs, [site.root])[site.root]  # a block that runs many times does so alike
    bench, root = Bench(model.get_submodule(site.root), call), f"{site.root}."
    for role, writer in enumerate(site.writers):
        rows, reached = own_rows(site, writer), 0
        for n in sorted({round(i * (len(rows) - 1) / (PLACES - 1)) for i in range(PLACES)}):
            units = range(n * writer.shared, (n + 1) * writer.shared)
            own = {unit * site.unit + i for unit in units for i in range(site.unit)}
            for row in rows[n, :: max(1, writer.rows - 1)].tolist():
                reach = bench.reach_of(writer.module.removeprefix(root), row)
                if reach is None:
                    continue
                reached += 1
                if reach.reader != site.reader.removeprefix(root) or not set(reach.columns) <= own:
                    return f"row {row} of {writer.module} reaches more than unit {n} of {site.reader}"
        if not reached:
            return f"no row of {writer.module} reaches anything (writer {role})"
    return ""


def _whole(model: PreTrainedModel, site: Site, inputs: dict[str, Tensor]) -> str:
    before = _states(model, inputs)
    cut = deepcopy(model)
    keep(cut, site, list(range(site.units)))
    return "" if torch.equal(_states(cut, inputs), before) else "outputs are not the same bits with all units kept"


def _copies(model: PreTrainedModel, site: Site, inputs: dict[str, Tensor]) -> str:
    """Make the last units copies of the first, then let the first stand for them."""
    if site.units // max(1, site.group) < 2:
        return "there are not two units, so none can be a copy"
    twin, group = deepcopy(model), site.group
    count = group if group > 1 else max(1, min(site.units // 4, 16))
    gone = list(range(site.units - count, site.units))
    of = {unit: unit - gone[0] for unit in gone}
    with torch.no_grad():
        for writer in site.writers:
            layer: Any = twin.get_submodule(writer.module)
            rows = own_rows(site, writer)
            both: tuple[Any, ...] = (weight_of(layer), getattr(layer, "bias", None))
            for tensor in (each for each in both if each is not None):
                for to, source in of.items():
                    tensor.data[rows[to // writer.shared]] = tensor.data[rows[source // writer.shared]].clone()
    before = _states(twin, inputs)
    keep(twin, site, [unit for unit in range(site.units) if unit not in of], of)
    after = _states(twin, inputs)
    off = float((after - before).abs().max() / before.abs().max())
    return "" if off <= ROUNDING else f"without the copies outputs are off by {off:.1g} of the largest"


def _folder(model: PreTrainedModel, architecture: Architecture, *, fresh: bool) -> list[Proof]:
    """Save a model whose first block is smaller than the others."""
    small = deepcopy(model)
    cut = [site for stack in architecture.stacks for site in stack.blocks[0].sites if not site.stays]
    for site in cut:
        keep(small, site, list(range(max(site.group, site.units // 2 // site.group * site.group))))
    seen = ""
    try:
        keep_attributes_true(small)
        state_sizes(small, "ragged")
        with tempfile.TemporaryDirectory() as place:
            save(small, Path(place) / "small", verify=fresh)
    except Exception as error:  # whatever is wrong, the sites are not offered
        seen = " ".join(str(error).split())[:200] or type(error).__name__
    names = {(architecture.layout(site).name, site.part.name) for site in cut}
    return [Proof(stack, part, "folder", not seen, seen) for stack, part in sorted(names)]


def keep(model: PreTrainedModel, site: Site, units: list[int], merged: dict[int, int] | None = None) -> None:
    """Keep these units in place; what the reader had for those `merged` into others is added to theirs."""
    E = torch.zeros(site.width, len(units) * site.unit, dtype=torch.float64)
    at = {unit: i for i, unit in enumerate(units)}
    for unit, other in {**{unit: unit for unit in units}, **(merged or {})}.items():
        for i in range(site.unit):
            E[unit * site.unit + i, at[other] * site.unit + i] = 1
    stand_in(model, site)
    for name in dict.fromkeys(writer.module for writer in site.writers):
        surgery.keep_rows(model.get_submodule(name), writer_rows(site, name, units))
    J = torch.tensor([unit * site.unit + i for unit in units for i in range(site.unit)], dtype=torch.long)
    surgery.read(model.get_submodule(site.reader), Selection(J, E, torch.zeros(site.width, dtype=torch.float64)))
    if site.kind == HEADS:
        keep_attributes_true(model)


@torch.no_grad()
def _states(model: PreTrainedModel, inputs: dict[str, Tensor]) -> Tensor:
    out = run(model, inputs)
    states: Tensor = out.last_hidden_state if "last_hidden_state" in out else out[0]
    return states


LAW = {"rows": _rows, "whole": _whole, "copies": _copies}
