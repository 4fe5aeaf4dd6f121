"""Let the config tell the truth about the sizes, in the words of the stock config or block by block."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from slimformer.errors import PlanDoesNotFit
from slimformer.models import Architecture, Family, describe
from slimformer.rewrite.surgery import set_attribute


def keep_attributes_true(model: PreTrainedModel, before: Architecture) -> None:
    """Set the attributes of every block that follow from its sizes (head counts, split sizes, queries per group)."""
    family, head_dim = before.family, before.sites[0].unit
    for i, sizes in enumerate(block_sizes(describe(model))):
        block = model.get_submodule(f"{before.blocks}.{i}")
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


def state_sizes(model: PreTrainedModel, before: Architecture, format: str) -> None:
    """Write the sizes into `model.config`: uniform ones in plain words, others block by block."""
    sizes = block_sizes(describe(model))
    if format == "plain":
        _state_plain(model.config, before, sizes)
    else:
        _state_ragged(model, before, sizes)


def _state_plain(config: Any, before: Architecture, sizes: list[dict[str, int]]) -> None:
    family, first = before.family, sizes[0]
    if any(size != first for size in sizes):
        raise PlanDoesNotFit("plain format needs the same sizes in every block; this plan has different ones")
    setattr(config, family.ffn_key, first["neurons"])
    if first["heads"] != before.sites[0].units:
        config.head_dim = before.sites[0].unit  # first: the default would follow from the new number of heads
        setattr(config, family.heads_key, first["heads"])
        if family.kv_key:
            setattr(config, family.kv_key, first["kv_heads"])


def _state_ragged(model: PreTrainedModel, before: Architecture, sizes: list[dict[str, int]]) -> None:
    family = before.family
    keys = _size_keys(family)
    model.config.per_layer_config = {i: {key: size[role] for role, key in keys.items()} for i, size in enumerate(sizes)}
    # Stock constructors read the global sizes, which stay those of the dense model; nn.ragged then resizes the blocks.
    model.config.allow_global_per_layer_attribute_access = True
    model.config.slimformer = ragged_table(family, before.sites[0].unit)
    model.config.auto_map = auto_map(model)


def _size_keys(family: Family) -> dict[str, str]:
    keys = {"heads": family.heads_key, "neurons": family.ffn_key}
    return {**keys, "kv_heads": family.kv_key} if family.kv_key else keys


def ragged_table(family: Family, head_dim: int) -> dict[str, Any]:
    """What `nn.ragged` needs to know of a family, as JSON that travels in config.json."""
    keys = _size_keys(family)
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
        [d.path, head_dim if d.factor == "head_dim" else d.factor, keys[d.times], keys[d.over] if d.over else None]
        for d in family.derived
    ]
    return {"format": 1, "blocks": family.blocks, "axes": axes, "attributes": attributes}


def auto_map(model: PreTrainedModel) -> dict[str, str]:
    """Classes for `trust_remote_code=True`: the model's own under its Auto class, and the bare model."""
    from transformers import AutoModel
    from transformers.models.auto import modeling_auto

    stock = type(model).__name__.removeprefix("Ragged")
    config = type(model.config)
    bare = AutoModel._model_mapping[config].__name__
    out = {"AutoModel": f"modeling_slimformer.Ragged{bare}"}
    for name in dir(modeling_auto):
        auto = getattr(modeling_auto, name)
        mapping = getattr(auto, "_model_mapping", None)
        if name.startswith("AutoModel") and mapping is not None and config in mapping:
            found = mapping[config]
            classes = found if isinstance(found, tuple) else (found,)
            if stock in {c.__name__ for c in classes}:
                out[name] = f"modeling_slimformer.Ragged{stock}"
    return out
