"""What a model nobody wrote down may be made of: stacks of blocks, and parts of a block, from what rows reach.

    feed-forward    every row of its writers reaches one column of the reader: row j column j, or halves of one matrix
    attention       rows of queries and keys reach the columns of a head, rows of values one column of each

What is proposed here is proved in `proofs`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from slimformer.inspect.responses import Bench, Call, Reach, calls_of
from slimformer.models.architecture import base_path
from slimformer.models.family import AttentionPart, Derived, FeedForwardPart, Part

HEAD_WIDTHS = ("head_dim", "attention_head_size", "head_size", "key_value_proj_dim", "d_kv", "d_head")
UNSEEN = "no rank is proposed for what was only discovered"


@dataclass(frozen=True)
class Blocks:
    """A list of blocks: its path from the base model, how each was called, and whether blocks give tuples."""

    path: str
    calls: tuple[Call, ...]
    modules: tuple[nn.Module, ...]

    @property
    def tuples(self) -> bool:
        return isinstance(self.calls[0].output, tuple | list)


@dataclass(frozen=True)
class Proposal:
    """A part that may be one, or why it is none. `sizes` are heads, key/value heads and the width of a head."""

    part: Part | None
    reader: str
    reason: str = ""
    sizes: tuple[int, int, int] = (0, 0, 0)


def find_blocks(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> tuple[list[Blocks], list[str]]:
    """Lists of blocks that each run once and hand on a stream of one width; and why others are none."""
    prefix, stacks, reasons = base_path(model), list[Blocks](), list[str]()
    lists = [
        (name, tuple(module.children()))
        for name, module in model.base_model.named_modules()
        if isinstance(module, nn.ModuleList) and any(isinstance(each, nn.Linear | Conv1D) for each in module.modules())
    ]
    outer = [(name, blocks) for name, blocks in lists if not any(name.startswith(f"{other}.") for other, _ in lists)]
    for name, blocks in outer:
        paths = [f"{prefix}{name}.{i}" for i in range(len(blocks))]
        calls = calls_of(model, inputs, paths)
        if any(len(each) != 1 for each in calls.values()):
            reasons.append(f"{name}: its blocks do not run once each")
            continue
        first_calls = [calls[path][0] for path in paths]
        if not all(_hands_on(call) for call in first_calls):
            reasons.append(f"{name}: its blocks do not hand on a stream of one width")
            continue
        stacks.append(Blocks(name, tuple(first_calls), blocks))
    return stacks, reasons


def _hands_on(call: Call) -> bool:
    given = (x for x in (*call.args, *call.kwargs.values()) if isinstance(x, torch.Tensor))
    state, after = next(given, None), call.stream
    return state is not None and isinstance(after, torch.Tensor) and state.ndim == 3 and state.shape == after.shape


def propose(bench: Bench, width: int) -> list[Proposal]:
    """The parts of a block whose stream has this width, in the order they run."""
    reached: dict[str, dict[str, list[Reach]]] = {}
    for name in dict.fromkeys(bench.order):
        for reach in bench.reach(name):
            reached.setdefault(reach.reader, {}).setdefault(name, []).append(reach)
    readers = [name for name in dict.fromkeys(bench.order) if name in reached and bench.shape(name)[0] == width]
    out = []
    for reader in readers:
        writers = {w: found for w, found in reached[reader].items() if bench.shape(w)[1] == width}
        if writers and not all(len(r.columns) == bench.shape(reader)[1] for found in writers.values() for r in found):
            out.append(_feed_forward(bench, reader, writers) or _attention(bench, reader, writers))
    return out


def _feed_forward(bench: Bench, reader: str, writers: dict[str, list[Reach]]) -> Proposal | None:
    n = bench.shape(reader)[1]
    if any(len(reach.columns) != 1 for found in writers.values() for reach in found):
        return None
    rows = {name: bench.shape(name)[0] for name in writers}
    if any(reach.columns[0] != reach.row % n for found in writers.values() for reach in found):
        return Proposal(None, reader, "neuron j is not written by row j")
    halves = list(rows.values()) == [2 * n]
    if not halves and (set(rows.values()) != {n} or len(rows) > 2):
        return Proposal(None, reader, f"{n} neurons are written by matrices of {sorted(rows.values())} rows")
    names = [*writers, *writers] if halves else list(writers)
    if len(names) > 1:
        firsts = [0, n] if halves else [0, 0]
        linear = [bench.is_linear(name, row, reader, 0) for name, row in zip(names, firsts, strict=True)]
        if not any(linear):
            return Proposal(None, reader, "neither of two writers is linear")
        if halves and not linear[1]:
            return Proposal(None, reader, "the linear half comes first")
        names = names if linear[1] else names[::-1]
    return Proposal(FeedForwardPart(tuple(names), reader, may_be_empty=False, adds=False), reader)


def _attention(bench: Bench, reader: str, writers: dict[str, list[Reach]]) -> Proposal:
    inner = bench.shape(reader)[1]
    runs = [reach.columns for found in writers.values() for reach in found if len(reach.columns) > 1]
    solid = [columns for columns in runs if columns == tuple(range(columns[0], columns[-1] + 1))]
    d = min((len(columns) for columns in solid), default=0)
    if not d or inner % d or len(writers) not in (1, 3):
        return Proposal(None, reader, "what rows of its writers reach are no heads")
    heads = inner // d
    if len(writers) == 1:
        ((name, found),) = writers.items()
        for by_head in (False, True):
            if bench.shape(name)[0] == 3 * inner and all(_fits_fused(r, d, heads, by_head) for r in found):
                part = AttentionPart(name, name, name, reader, d, by_head=by_head, no_ranks=UNSEEN, adds=False)
                return Proposal(part, reader, sizes=(heads, heads, d))
        return Proposal(None, reader, "q, k and v are in one matrix in an order that is not known")
    values = [name for name, found in writers.items() if all(len(reach.columns) < d for reach in found)]
    others = [name for name in writers if name not in values]
    if len(values) != 1 or bench.shape(values[0])[0] % d:
        return Proposal(None, reader, "no matrix writes one column of each head")
    kv = bench.shape(values[0])[0] // d
    query, key = sorted(others, key=lambda name: -bench.shape(name)[0])
    sizes = [bench.shape(name)[0] for name in (query, key)]
    if sizes != [heads * d, kv * d] or heads % kv:
        return Proposal(None, reader, f"{heads} heads of width {d} do not fit matrices of {sizes} rows")
    group = heads // kv
    roles = enumerate((query, key, values[0]))
    if not all(_fits(reach, d, group, role) for role, name in roles for reach in writers[name]):
        return Proposal(None, reader, "rows of one head reach others")
    part = AttentionPart(query, key, values[0], reader, d, no_ranks=UNSEEN, adds=False)
    return Proposal(part, reader, sizes=(heads, kv, d))


def _fits(reach: Reach, d: int, group: int, role: int) -> bool:
    """Does a row of queries (0), keys (1) or values (2) reach what it should?"""
    head, within = divmod(reach.row, d)
    if role == 0:
        return set(reach.columns) <= set(range(head * d, (head + 1) * d))
    served = range(head * group, (head + 1) * group)
    if role == 1:
        return set(reach.columns) <= {h * d + i for h in served for i in range(d)}
    return set(reach.columns) <= {h * d + within for h in served}


def _fits_fused(reach: Reach, d: int, heads: int, by_head: bool) -> bool:
    head, rest = divmod(reach.row, 3 * d)
    role, within = divmod(rest, d)
    if not by_head:
        role, rest = divmod(reach.row, heads * d)
        head, within = divmod(rest, d)
    return _fits(replace(reach, row=head * d + within), d, 1, role)


def attributes(block: nn.Module, part: AttentionPart, sizes: tuple[int, int, int]) -> list[Derived]:
    """Attributes that may follow from the number of heads."""
    heads, kv, d = sizes
    derived: list[Derived] = []
    for path in dict.fromkeys((part.module, part.out.rpartition(".")[0])):
        module: Any = block.get_submodule(path)
        own = {k: v for k, v in vars(module).items() if type(v) is int and not k.startswith("_")}
        dot = f"{path}." if path else ""
        for name, value in own.items():
            if name in HEAD_WIDTHS or name == "layer_idx":
                continue
            if "group" in name:
                derived += [Derived(dot + name, "heads", over="kv_heads")] * (value == heads // kv)
            elif "key_value" in name or "kv" in name:
                derived += [Derived(dot + name, "kv_heads")] * (value == kv)
            elif "head" in name and value == heads:
                derived.append(Derived(dot + name, "heads"))
            elif value == heads * d and "hidden" not in name:
                derived.append(Derived(dot + name, "heads", factor="head_dim"))
    return derived
