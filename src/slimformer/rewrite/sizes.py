"""Let the config tell the truth about the sizes, in the words of the stock config or block by block."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from slimformer.errors import PlanDoesNotFit
from slimformer.messages.words import option
from slimformer.models import Architecture, Family, describe
from slimformer.models.architecture import dense_head_dim, has_bias
from slimformer.models.family import attention_parts, size_keys
from slimformer.models.registered import travels
from slimformer.rewrite.plain_ranks import become_plain
from slimformer.rewrite.surgery import set_attribute


def keep_attributes_true(model: PreTrainedModel, before: Architecture) -> None:
    """Set the attributes of every block that follow from its sizes (head counts, split sizes, queries per group)."""
    family = before.family
    for i, sizes in enumerate(block_sizes(describe(model))):
        block = model.get_submodule(f"{before.blocks}.{i}")
        attention: Any = block.get_submodule(family.attention)
        if hasattr(attention, "ranks"):
            try:
                attention.set_ranks(heads=sizes["heads"], kv_heads=sizes["kv_heads"], **attention.ranks)
            except ValueError as error:
                raise PlanDoesNotFit(f"blocks.{i}.attn.heads: {error}") from error
            continue
        head_dim = dense_head_dim(family, block)
        for derived in family.derived:
            factor = head_dim if derived.factor == "head_dim" else derived.factor
            over = max(1, sizes["kv_heads"]) if derived.over else 1
            set_attribute(block, derived.path, factor * sizes[derived.times] // over)


def block_sizes(architecture: Architecture) -> list[dict[str, int]]:
    """Heads, key/value heads and neurons of every block."""
    out = []
    for i in range(architecture.n_blocks):
        heads, neurons = architecture.of_block(i)
        out.append({"heads": heads.units, "kv_heads": heads.units // max(1, heads.group), "neurons": neurons.units})
    return out


def block_ranks(model: PreTrainedModel, architecture: Architecture) -> dict[str, dict[str, Any]]:
    """QK rank, VO rank and rotary planes of the blocks that have ranks of their own, by block number."""
    found = {}
    for i in range(architecture.n_blocks):
        attention: Any = model.get_submodule(f"{architecture.blocks}.{i}.{architecture.family.attention}")
        ranks = getattr(attention, "ranks", None)
        if ranks and not _is_full(ranks, attention.head_dim):
            found[str(i)] = ranks
    return found


def bare_projections(model: PreTrainedModel, architecture: Architecture) -> dict[str, list[str]]:
    """Projections of keys and values that have lost the bias queries have, by block number."""
    family, found = architecture.family, {}
    for i in range(architecture.n_blocks):
        if architecture.of_block(i)[0].fixed:
            continue
        block = model.get_submodule(f"{architecture.blocks}.{i}")
        names = [name for name in (family.key, family.value) if not has_bias(block.get_submodule(name))]
        if names and has_bias(block.get_submodule(family.query)):
            found[str(i)] = names
    return found


def block_paths(model: PreTrainedModel, architecture: Architecture) -> dict[str, int]:
    """Ranks of linear paths beside gated neurons, by block number; the whole width for a square matrix."""
    found = {}
    for i in range(architecture.n_blocks):
        part = model.get_submodule(f"{architecture.blocks}.{i}.{architecture.family.ffn}".rstrip("."))
        path: Any = getattr(part, "bypass", None)
        if path is not None:
            found[str(i)] = int(path[0].out_features)
    return found


def sayable(model: PreTrainedModel, before: Architecture) -> bool:
    """Can the stock config say the sizes of `model`: one number of neurons, heads and biases as they were?"""
    sizes, family = block_sizes(describe(model)), before.family
    heads = [getattr(model.config, key) for key in (family.heads_key, family.kv_key or family.heads_key)]
    same = all(size == sizes[0] for size in sizes) and [sizes[0]["heads"], sizes[0]["kv_heads"]] == heads
    extra = block_ranks(model, before) or bare_projections(model, before) or block_paths(model, before)
    return same and not extra


def _is_full(ranks: dict[str, Any], head_dim: int) -> bool:
    """Then the stock attention does the same."""
    planes = ranks["planes"]
    return bool(ranks["qk"] == ranks["vo"] == head_dim and planes in (None, list(range(head_dim // 2))))


def state_sizes(model: PreTrainedModel, before: Architecture, format: str) -> None:
    """Write the sizes into `model.config`: uniform ones in plain words, others block by block."""
    sizes, ranks = block_sizes(describe(model)), block_ranks(model, before)
    head_dim = dense_head_dim(before.family, model.get_submodule(f"{before.blocks}.0"))
    if format == "plain":
        if bare_projections(model, before):
            raise PlanDoesNotFit(
                f"keys or values without a bias cannot be said in a stock config; use {option('format', 'ragged')}"
            )
        if block_paths(model, before):
            raise PlanDoesNotFit(
                f"a linear path beside gated neurons cannot be said in a stock config; use {option('format', 'ragged')}"
            )
        _state_plain(model.config, before, sizes, head_dim)
        if ranks:
            become_plain(model, before, ranks)
    else:
        _state_ragged(model, before, sizes)
        table = ragged_table(before.family, head_dim, ranks, bare_projections(model, before))
        if before.sites[0].fixed:  # attention has no axes to resize
            table |= {"axes": [axis for axis in table["axes"] if axis[2] == before.family.ffn_key], "attributes": []}
        if paths := block_paths(model, before):
            beside = {"path": before.family.ffn, "width": before.hidden, "ranks": paths}
            biased = [site.block for site in describe(model) if site.path_bias]
            table |= {"format": 5, "bypass": beside | {"bias": biased}} if biased else {"format": 4, "bypass": beside}
        model.config.slimformer = table


def _state_plain(config: Any, before: Architecture, sizes: list[dict[str, int]], head_dim: int) -> None:
    family, first = before.family, sizes[0]
    if any(size != first for size in sizes):
        raise PlanDoesNotFit(
            "plain format needs the same sizes in every block; this plan has different ones; "
            f"use {option('format', 'ragged')}"
        )
    _forget_ragged(config)
    setattr(config, family.ffn_key, first["neurons"])
    if first["heads"] != getattr(config, family.heads_key):
        _require_sayable(before, first["heads"], head_dim)
        config.head_dim = head_dim  # first: the default would follow from the new number of heads
        setattr(config, family.heads_key, first["heads"])
    if family.kv_key:
        setattr(config, family.kv_key, first["kv_heads"])


def _forget_ragged(config: Any) -> None:
    """A model that was ragged may become plain again; code that does not travel along must not be named either."""
    config.per_layer_config = None
    for name in ("allow_global_per_layer_attribute_access", "slimformer", "auto_map"):
        config.__dict__.pop(name, None)


def _require_sayable(before: Architecture, heads: int, head_dim: int) -> None:
    family = before.family
    divides = before.model_type not in family.divides_hidden or before.hidden % heads == 0
    if not (family.plain_heads and divides):
        raise PlanDoesNotFit(
            f"the stock config of {before.model_type} cannot say {heads} heads of width {head_dim}; "
            f"use {option('format', 'ragged')}"
        )


def _state_ragged(model: PreTrainedModel, before: Architecture, sizes: list[dict[str, int]]) -> None:
    family = before.family
    keys = size_keys(family)
    model.config.per_layer_config = {i: {key: size[role] for role, key in keys.items()} for i, size in enumerate(sizes)}
    # Stock constructors read the global sizes, which stay those of the dense model; nn.ragged then resizes the blocks.
    model.config.allow_global_per_layer_attribute_access = True
    if travels(model):
        model.config.auto_map = auto_map(model)


def ragged_table(
    family: Family,
    head_dim: int,
    ranks: dict[str, dict[str, Any]] | None = None,
    bare: dict[str, list[str]] | None = None,
) -> dict[str, Any]:
    """What `nn.ragged` needs to know of a family, ranks of blocks and projections without bias, as JSON that travels in
    config.json. Its format is the lowest that can say it, so that older readers read what they can."""
    keys = size_keys(family)
    kv = keys.get("kv_heads", keys["heads"])
    if family.fused:
        axes: list[list[Any]] = [[family.query, "out", keys["heads"], 3 * head_dim]]
    else:
        roles = ((family.query, keys["heads"]), (family.key, kv), (family.value, kv))
        axes = [[module, "out", key, head_dim] for module, key in roles]
    axes.append([family.attn_out, "in", keys["heads"], head_dim])
    axes += [[module, "out", keys["neurons"], 1] for module in family.ffn_in]
    axes.append([family.ffn_out, "in", keys["neurons"], 1])
    attributes = [
        [
            d.path,
            head_dim if d.factor == "head_dim" else d.factor,
            keys[d.times],
            keys[d.over] if d.over else None,
        ]
        for d in family.derived
    ]
    table = {"format": 1, "blocks": family.blocks, "axes": axes, "attributes": attributes}
    if ranks:
        table |= {"format": 2, "attention": attention_parts(family, head_dim), "ranks": ranks}
    return {**table, "format": 3, "bare": bare} if bare else table


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
