"""Let the config tell the truth about the sizes, in the words of the stock config or block by block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from slimformer.errors import PlanDoesNotFit
from slimformer.messages.words import option
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import HEADS, Block, Stack, has_bias
from slimformer.models.class_choice import on_meta
from slimformer.models.description import dense_head_dim
from slimformer.models.family import AttentionPart, ExpertsPart, Family, Part
from slimformer.models.registered import travels
from slimformer.nn.low_rank_ends import KEY as ENDS
from slimformer.nn.low_rank_ends import end_ranks
from slimformer.nn.replaced import replaced_parts
from slimformer.nn.stand_ins import KEY
from slimformer.rewrite.plain_ranks import become_plain
from slimformer.rewrite.surgery import set_attribute

Numbered = dict[str, Any]  # by the number of a block in its stack, as JSON has it


def keep_attributes_true(model: PreTrainedModel) -> None:
    """Set the attributes of every block that follow from its sizes (head counts, split sizes, queries per group)."""
    for site in describe(model).heads:
        block, attention = model.get_submodule(site.root), _module(model, site)
        if hasattr(attention, "ranks"):
            try:
                attention.set_ranks(**site.sizes, **attention.ranks)
            except ValueError as error:
                raise PlanDoesNotFit(f"{site.name}: {error}") from error
            continue
        head_dim = dense_head_dim(site.attention, block)
        for derived in site.attention.derived:
            factor = head_dim if derived.factor == "head_dim" else derived.factor
            over = max(1, site.kv_heads) if derived.over else 1
            set_attribute(block, derived.path, factor * site.sizes[derived.times] // over)


def _module(model: PreTrainedModel, site: Site) -> Any:
    return model.get_submodule(site.module)


def block_ranks(model: PreTrainedModel, blocks: Sequence[Block]) -> Numbered:
    """QK rank, VO rank and rotary planes of the blocks that have ranks of their own."""
    found = {}
    for i, block in enumerate(blocks):
        for site, attention in ((site, _module(model, site)) for site in block.heads):
            if not hasattr(attention, "ranks"):
                continue
            needed = site.attention.stand_in and site.units != getattr(model.config, str(site.attention.heads_key))
            if needed or not _is_full(attention.ranks, attention.head_dim):
                found[str(i)] = attention.ranks
    return found


def bare_projections(model: PreTrainedModel, blocks: Sequence[Block]) -> Numbered:
    """Projections of keys and values that have lost the bias queries have."""
    found: Numbered = {}
    for i, block in enumerate(blocks):
        module = model.get_submodule(block.path)
        for part in (site.attention for site in block.heads if not site.stays):
            once = (part.value,) if part.bare_keys else (part.key, part.value)
            names = [name for name in once if not has_bias(module.get_submodule(name))]
            if names and has_bias(module.get_submodule(part.query)):
                found[str(i)] = [*found.get(str(i), []), *names]
    return found


def block_paths(model: PreTrainedModel, blocks: Sequence[Block]) -> Numbered:
    """Ranks of linear paths beside gated neurons; the whole width for a square matrix."""
    paths = {
        str(i): getattr(_module(model, s), "bypass", None) for i, block in enumerate(blocks) for s in block.neurons
    }
    return {i: int(path[0].out_features) for i, path in paths.items() if path is not None}


def sayable(model: PreTrainedModel) -> bool:
    """Can the stock config say the sizes of `model`: one number of neurons, heads and biases as they were?"""
    architecture = describe(model)
    sizes, blocks = _config_sizes(architecture), architecture.blocks
    heads = {key for site in architecture.heads for key in site.part.keys.values()}
    same = all(len(found) == 1 for found in sizes.values())
    found = (block_ranks, bare_projections, block_paths, replaced_parts)
    extra = any(each(model, blocks) for each in found) or bool(end_ranks(model))
    unsaid = any(not site.part.keys for site in architecture)
    return same and not unsaid and all(sizes[key] == {getattr(model.config, key)} for key in heads) and not extra


def _config_sizes(architecture: Architecture) -> dict[str, set[int]]:
    """Sizes by the key the config has for them; one for each where all blocks are alike."""
    found: dict[str, set[int]] = {}
    for site in architecture:
        for role, key in site.part.keys.items():
            found.setdefault(key, set()).add(site.sizes[role])
    return found


def _is_full(ranks: dict[str, Any], head_dim: int) -> bool:
    """Then the stock attention does the same."""
    planes = ranks["planes"]
    return bool(ranks["qk"] == ranks["vo"] == head_dim and planes in (None, list(range(head_dim // 2))))


def state_sizes(model: PreTrainedModel, format: str) -> None:
    """Write the sizes into `model.config`: uniform ones in plain words, others block by block."""
    architecture = describe(model)
    if format == "plain":
        _state_plain(model, architecture)
    else:
        _state_ragged(model, architecture)


def _state_plain(model: PreTrainedModel, architecture: Architecture) -> None:
    config: Any = model.config
    blocks = architecture.blocks
    if bare_projections(model, blocks):
        raise PlanDoesNotFit(
            f"keys or values without a bias cannot be said in a stock config; use {option('format', 'ragged')}"
        )
    if block_paths(model, blocks):
        raise PlanDoesNotFit(
            f"a linear path beside gated neurons cannot be said in a stock config; use {option('format', 'ragged')}"
        )
    if replaced_parts(model, blocks):
        raise PlanDoesNotFit(
            f"feed-forward parts that were replaced cannot be said in a stock config; use {option('format', 'ragged')}"
        )
    if end_ranks(model):
        raise PlanDoesNotFit(
            f"an embedding or a head of low rank cannot be said in a stock config; use {option('format', 'ragged')}"
        )
    sizes = _config_sizes(architecture)
    if any(len(found) > 1 for found in sizes.values()):
        raise PlanDoesNotFit(
            "plain format needs the same sizes in every block; this plan has different ones; "
            f"use {option('format', 'ragged')}"
        )
    _forget_ragged(config)
    for site in (site for stack in architecture.stacks for site in stack.blocks[0].sites):
        if site.kind == HEADS and site.attention.heads_key and site.units != getattr(config, site.attention.heads_key):
            head_dim = dense_head_dim(site.attention, model.get_submodule(site.root))
            _require_sayable(architecture, site, head_dim)
            config.head_dim = head_dim  # first: the default would follow from the new number of heads
        for role, key in site.part.keys.items():
            if role != "heads" or site.units != getattr(config, key):
                setattr(config, key, site.sizes[role])
    if ranks := block_ranks(model, blocks):
        become_plain(model, architecture, ranks)
    if unsaid := [site.name for site in architecture if not site.part.keys]:
        _require_as_built(model, unsaid[0])


def _require_as_built(model: PreTrainedModel, unsaid: str) -> None:
    """Where the config has no word for a size, what it builds must have that size anyway."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    built = next(iter(on_meta(model.config, [type(model)])), None)
    if built is None or {name: parameter.shape for name, parameter in built.named_parameters()} != shapes:
        raise PlanDoesNotFit(
            f"the stock config of {model.config.model_type} has no word for the size of {unsaid}; "
            f"use {option('format', 'ragged')}"
        )


def _forget_ragged(config: Any) -> None:
    """A model that was ragged may become plain again; code that does not travel along must not be named either."""
    config.per_layer_config = None
    for name in ("allow_global_per_layer_attribute_access", "slimformer", "auto_map"):
        config.__dict__.pop(name, None)


def _require_sayable(architecture: Architecture, site: Site, head_dim: int) -> None:
    part = site.attention
    divides = architecture.model_type not in part.divides_hidden or site.outer % site.units == 0
    if not (part.plain_heads and divides):
        raise PlanDoesNotFit(
            f"the stock config of {architecture.model_type} cannot say {site.units} heads of width {head_dim}; "
            f"use {option('format', 'ragged')}"
        )


def _state_ragged(model: PreTrainedModel, architecture: Architecture) -> None:
    """Sizes of blocks as the heterogeneous configs of transformers have them, or, where these cannot tell the sites of
    a block apart, in a table of our own. Stock constructors read the global sizes, which stay those of the dense model;
    nn.ragged then resizes the blocks."""
    config: Any = model.config
    own = _needs_names(architecture.family)
    tables = [ragged_table(model, stack, own=own) for stack in architecture.stacks]
    if own:
        config.slimformer = {"format": 8 if any(KEY in table for table in tables) else 6, "stacks": tables}
        config.per_layer_config = None
    else:
        (config.slimformer,) = tables
        config.per_layer_config = {block.index: _sizes(block, own=False) for block in architecture.blocks}
        config.allow_global_per_layer_attribute_access = True
    if ranks := end_ranks(model):
        config.slimformer |= {"format": 9, ENDS: ranks}
    if travels(model):
        config.auto_map = auto_map(model)


def _needs_names(family: Family) -> bool:
    """Can sizes of a block not be told by the keys of the config alone?"""
    keys = [key for stack in family.stacks for part in stack.parts for key in part.keys.values()]
    unsaid = any(not part.keys for stack in family.stacks for part in stack.parts)
    return unsaid or len(family.stacks) > 1 or len(keys) > len(set(keys))


def _keys(part: Part, *, own: bool) -> dict[str, str]:
    """What sizes of a part are called in a table, by role."""
    roles = ("heads", "kv_heads") if isinstance(part, AttentionPart) else ("neurons",)
    keys = {role: f"{part.name}.{role}" for role in roles} if own else part.keys
    return keys if "neurons" in keys else {"kv_heads": keys["heads"], **keys}


def _sizes(block: Block, *, own: bool) -> dict[str, int]:
    return {key: site.sizes[role] for site in block.sites for role, key in _keys(site.part, own=own).items()}


def ragged_table(model: PreTrainedModel, stack: Stack, *, own: bool = False) -> dict[str, Any]:
    """What `nn.ragged` needs to know of a stack, as JSON that travels in config.json: matrices and attributes that hang
    on sizes, ranks of blocks, projections without bias, linear paths. Its format is the lowest that can say it, so that
    older readers read what they can; with sizes of its `own` it is one of several in a table of format 6."""
    first, ranks = stack.blocks[0], block_ranks(model, stack.blocks)
    axes, formats = list[list[Any]](), [1]
    table: dict[str, Any] = {"format": 1, "blocks": stack.layout.blocks, "axes": axes, "attributes": []}
    for experts in (part for part in stack.layout.parts if isinstance(part, ExpertsPart)):
        formats.append(9)
        axes += [[f"{experts.experts}.{name}", axis, experts.neurons_key, n] for name, axis, n in EXPERTS_AXES]
    for site in (site for site in first.sites if not site.expert):
        keys = _keys(site.part, own=own)
        if not isinstance(site.part, AttentionPart):
            modules = dict.fromkeys(site.part.writers)
            axes += [[module, "out", keys["neurons"], site.part.writers.count(module)] for module in modules]
            axes.append([site.part.out, "in", keys["neurons"], 1])
        elif not site.stays:  # attention that does has no axes to resize
            head_dim = dense_head_dim(site.part, model.get_submodule(first.path))
            _state_attention(table, site.part, keys, head_dim, _dense_group(model.config, site.part))
            if ranks:
                names = {role: keys[role] for role in ("heads", "kv_heads")}
                (part,) = (part for part in stack.layout.parts if part.name == site.part.name)
                assert isinstance(part, AttentionPart)
                format = 2 if isinstance(part.rotary, bool) else 7  # that of each block is then asked of the block
                formats.append(format)
                table |= {"attention": part.table(head_dim) | names, "ranks": ranks}
    if bare := bare_projections(model, stack.blocks):
        formats.append(3)
        table["bare"] = bare
    if paths := block_paths(model, stack.blocks):
        (site,) = first.neurons
        beside = {"path": site.part.module, "width": site.outer, "ranks": paths}
        biased = [i for i, block in enumerate(stack.blocks) if block.neurons[0].path_bias]
        formats.append(5 if biased else 4)
        table["bypass"] = beside | ({"bias": biased} if biased else {})
    if replaced := replaced_parts(model, stack.blocks):
        (part,) = (site.feed_forward for site in first.neurons)
        formats.append(8)
        table[KEY] = {
            "path": part.mlp, "inert": list(part.mlp_inert), "width": first.neurons[0].outer, "blocks": replaced,
        }  # fmt: skip
    table["format"] = max(formats)
    if own:
        table["sizes"] = [_sizes(block, own=True) for block in stack.blocks]
    return table


EXPERTS_AXES = (("gate_up_proj", "out", 2), ("down_proj", "in", 1))


def _dense_group(config: Any, part: AttentionPart) -> int:
    """Queries that share a key in blocks that are as the config says."""
    return int(getattr(config, str(part.heads_key)) // getattr(config, part.kv_key)) if part.kv_key else 1


def _state_attention(
    table: dict[str, Any], part: AttentionPart, keys: dict[str, str], head_dim: int, group: int
) -> None:
    """The matrices of an attention and the attributes that follow from its heads."""
    if part.fused and part.kv_key:  # right while no head is cut; then it has ranks, which say more
        table["axes"].append([part.query, "out", keys["kv_heads"], (group + 2) * head_dim])
    elif part.fused:
        table["axes"].append([part.query, "out", keys["heads"], 3 * head_dim])
    else:
        roles = ((part.query, "heads"), (part.key, "kv_heads"), (part.value, "kv_heads"))
        table["axes"] += [[module, "out", keys[role], head_dim] for module, role in roles]
    table["axes"].append([part.out, "in", keys["heads"], head_dim])
    table["attributes"] += [
        [d.path, head_dim if d.factor == "head_dim" else d.factor, keys[d.times], keys[d.over] if d.over else None]
        for d in part.derived
    ]


def auto_map(model: PreTrainedModel) -> dict[str, str]:
    """Classes for `trust_remote_code=True`: for every Auto class what it opens; those of the model's own head come
    first."""
    from transformers.models.auto import modeling_auto

    config, own = type(model.config), type(model).__name__
    found: dict[str, str] = {}
    for name in sorted(vars(modeling_auto)):
        mapping = getattr(getattr(modeling_auto, name), "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and config in mapping:
            classes = mapping[config]
            names = [c.__name__ for c in (classes if isinstance(classes, tuple) else (classes,))]
            found[name] = own if own in names else names[0]
    return {name: f"modeling_slimformer.{found[name]}" for name in sorted(found, key=lambda name: found[name] != own)}


def auto_class(model: PreTrainedModel) -> str:
    """The Auto class that opens a model: AutoModelForCausalLM and the like."""
    name, reference = next(iter(auto_map(model).items()))
    return name if reference.endswith(f".{type(model).__name__}") else "AutoModel"
