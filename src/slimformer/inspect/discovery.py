"""A family for a model nobody wrote down: proposed from what rows reach, proved on the model, and nothing else.

A part that is proposed and not proved stays in the family, with the reason, and is not cut. Ranks, norms and words of
the config for heads are not looked for: heads and neurons are cut, each reader is corrected for itself, and results are
ragged, or plain where only neurons go and the config has a word for their number.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from slimformer.errors import SlimformerError, UnknownArchitecture, UnknownType
from slimformer.inspect.proofs import Proof, on_cpu, prove, require_dense
from slimformer.inspect.proposals import Blocks, Proposal, attributes, find_blocks, propose
from slimformer.inspect.responses import Bench, eager_experts, probe_inputs, run
from slimformer.messages.words import option
from slimformer.models.architecture import out_in
from slimformer.models.class_choice import on_meta
from slimformer.models.families import FAMILIES, bring_family, family_of
from slimformer.models.family import AttentionPart, ExpertsPart, Family, FeedForwardPart, Part, StackLayout
from slimformer.models.load import Loaded, load_model, open_for_work
from slimformer.models.opening import Opening, say

LAWS = ("rows", "whole", "copies")


@dataclass(frozen=True)
class Discovery:
    """What was found, the proofs of what may be cut, and in words what was refused and why."""

    family: Family
    proofs: tuple[Proof, ...]
    refused: tuple[str, ...]


def discover(model: PreTrainedModel, *, fresh: bool = True) -> Discovery:
    """The family of `model` as far as it can be proved; refused where nothing can.

    Cost: some dozens of runs of single blocks, a copy in double precision for every part, and one small save.
    """
    require_dense(model, getattr(model.config, "name_or_path", "") or type(model).__name__)
    model = on_cpu(model).eval()
    with eager_experts(model):
        return _discovered(model, fresh)


def _discovered(model: PreTrainedModel, fresh: bool) -> Discovery:
    inputs, kind = probe_inputs(model), model.config.model_type
    lists, refused = find_blocks(model, inputs)
    stacks = []
    for blocks in lists:
        proposals = _proposals(blocks)
        accepted = [each for each in proposals if each.part is not None]
        refused += [f"{each.reader}: {each.reason}" for each in proposals if each.part is None]
        if accepted:
            stacks.append((blocks, accepted))
    if not stacks:
        raise UnknownArchitecture(_nothing(kind, refused))
    causal = _is_causal(model, inputs)
    layouts = tuple(_layout(*each, len(stacks) > 1, model, causal) for each in stacks)
    family = Family(kind, (kind,), layouts, "discovered")
    family = _proved(model, family, [accepted for _, accepted in stacks])
    reasons = [f"{part.name}: {part.fixed}" for stack in family.stacks for part in stack.parts if part.fixed]
    if all(part.fixed for stack in family.stacks for part in stack.parts):
        raise UnknownArchitecture(_nothing(kind, [*refused, *reasons]))
    proofs = prove(_with(model, family), fresh=fresh)
    if wrong := [proof.seen for proof in proofs if not proof.holds]:
        raise UnknownArchitecture(_nothing(kind, wrong))
    return Discovery(family, tuple(proofs), (*refused, *reasons))


def _nothing(kind: str, reasons: list[str]) -> str:
    why = "; ".join(reasons[:3]) or "it has no list of blocks with matrices"
    return (
        f"nothing of models of type {kind!r} could be proved to be a width that may shrink ({why}); "
        f"a file can be given with {option('family')}"
    )


def _proposals(blocks: Blocks) -> list[Proposal]:
    """Those of the first block, if the last one says the same."""
    ends = [(blocks.modules[i], blocks.calls[i]) for i in (0, -1)]
    first, last = (propose(Bench(block, call), call.stream.shape[-1]) for block, call in ends)
    if [each.part for each in first] != [each.part for each in last]:
        return [Proposal(None, blocks.path, "its first block is made otherwise than its last")]
    return first


def _layout(
    blocks: Blocks, proposals: list[Proposal], several: bool, model: PreTrainedModel, causal: bool
) -> StackLayout:
    kinds = [type(each.part) for each in proposals]
    parts = []
    for n, each in enumerate(proposals):
        part, kind = each.part, type(each.part)
        assert part is not None
        name = part.name if kinds.count(kind) == 1 else f"{part.name}{1 + kinds[:n].count(kind)}"
        if isinstance(part, FeedForwardPart):
            part = replace(part, neurons_key=_neurons_key(model, blocks, part))
        parts.append(replace(part, name=name))
    name = blocks.path.replace(".", "_") if several else ""
    image = model.main_input_name == "pixel_values"
    sound = model.main_input_name == "input_values"
    return StackLayout(blocks.path, tuple(parts), name, causal=causal, tuples=blocks.tuples, image=image, sound=sound)


def _neurons_key(model: PreTrainedModel, blocks: Blocks, part: FeedForwardPart) -> str | None:
    """The key of the config that says the number of neurons: with half of it that many are built, and nothing else is
    another."""
    n = out_in(blocks.modules[0].get_submodule(part.out))[1]
    ends = (*part.writers, part.out)
    for key, value in model.config.to_dict().items():
        if type(value) is not int or value != n:
            continue
        config = deepcopy(model.config)
        setattr(config, key, n // 2)
        built = next(iter(on_meta(config, [type(model)])), None)
        if built is None:
            continue
        shapes = {name: p.shape for name, p in built.named_parameters()}
        other = {name for name, p in model.named_parameters() if shapes.get(name) != p.shape}
        inside = {name for name in other if any(f".{end}." in name for end in ends)}
        if other and other == inside and all(any(f".{end}.weight" in name for name in other) for end in ends):
            return str(key)
    return None


@torch.no_grad()
def _is_causal(model: PreTrainedModel, inputs: dict[str, Tensor]) -> bool:
    """Does no state hear of what comes after it?"""
    if "input_ids" not in inputs or "pixel_values" in inputs:
        return False
    ids = inputs["input_ids"]
    other = torch.cat([ids[:, :-1], ids[:, -1:].roll(1, 0)], 1)
    first, second = (run(model, {"input_ids": each})[0][:, :-1] for each in (ids, other))
    return bool(torch.allclose(first, second, atol=1e-6)) and not torch.equal(ids, other)


def _with(model: PreTrainedModel, family: Family) -> PreTrainedModel:
    """The same modules with a config of their own that brings the family."""
    other = deepcopy(model)
    bring_family(other.config, family)
    return other


def _proved(model: PreTrainedModel, family: Family, parts: list[list[Proposal]]) -> Family:
    """The family with every part as it could be proved, or fixed with the reason."""
    for s, proposals in enumerate(parts):
        for p, proposal in enumerate(proposals):
            family = _with_part(family, s, p, _best(model, family, (s, p), proposal))
    return family


def _best(model: PreTrainedModel, family: Family, place: tuple[int, int], proposal: Proposal) -> Part:
    part = family.stacks[place[0]].parts[place[1]]
    assert not isinstance(part, ExpertsPart), "none is proposed"
    tries: list[Part] = [part]
    if isinstance(part, AttentionPart):
        block = model.base_model.get_submodule(f"{family.stacks[place[0]].blocks}.0")
        derived = attributes(block, part, proposal.sizes)
        counts = tuple(each for each in derived if each.factor == 1)
        tries = [replace(part, derived=each) for each in dict.fromkeys((tuple(derived), counts, ()))]
    seen = ""
    for each in tries:
        alone = _with_part(_fixed(family), *place, each)
        proofs = prove(_with(model, alone), laws=LAWS)
        if all(proof.holds for proof in proofs):
            return each
        seen = seen or next(proof.seen for proof in proofs if not proof.holds)
    return replace(tries[0], fixed=f"not proved: {seen}")


def _fixed(family: Family) -> Family:
    """The family with nothing that may be cut."""
    stacks = tuple(
        replace(stack, parts=tuple(replace(part, fixed=part.fixed or "not now") for part in stack.parts))
        for stack in family.stacks
    )
    return replace(family, stacks=stacks)


def _with_part(family: Family, stack: int, at: int, part: Part) -> Family:
    parts = tuple(part if i == at else each for i, each in enumerate(family.stacks[stack].parts))
    stacks = tuple(replace(each, parts=parts) if i == stack else each for i, each in enumerate(family.stacks))
    return replace(family, stacks=stacks)


def open_or_discover(
    model: str | Path | PreTrainedModel | Loaded,
    processor: Any = None,
    opening: Opening = Opening(),  # noqa: B008
) -> Loaded:
    """As `open_for_work`; a model of a type that no family describes gets the one that can be proved, and a note says
    so."""
    try:
        loaded = open_for_work(model, processor, opening)
        family_of(loaded.model.config)
        return loaded
    except UnknownType as unknown:
        if isinstance(model, str | Path):
            try:
                loaded = load_model(model, opening, supported=False)
            except SlimformerError as error:  # nor does transformers know it, or its files are of another type
                raise unknown from error
    discovery = discover(loaded.model)
    bring_family(loaded.model.config, discovery.family)
    note = discovery_note(loaded.model.config.model_type, discovery)
    say([note])
    return replace(loaded, notes=(*loaded.notes, note))


def discovery_note(kind: str, discovery: Discovery) -> str:
    """What was discovered, in a sentence."""
    cut = [part.name for stack in discovery.family.stacks for part in stack.parts if not part.fixed]
    left = (
        f"; left as it is, and not counted unless it is named: {'; '.join(discovery.refused)}"
        if discovery.refused
        else ""
    )
    known = (
        f"the file of models of type {kind!r} was not looked at"
        if kind in FAMILIES
        else f"nobody has written down models of type {kind!r}"
    )
    return f"{known}; found and proved on this one: {', '.join(cut)}{left} ({option('family')} gives a file instead)"
