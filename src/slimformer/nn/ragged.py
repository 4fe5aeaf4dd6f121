"""Models whose blocks have sizes of their own.

It is also `modeling_slimformer.py` beside the weights of a ragged checkpoint, where `trust_remote_code=True` finds it
when slimformer is not installed. It therefore imports torch and transformers only.

The sizes of block i are in `config.per_layer_config[i]`. Stock model code builds every block from the global sizes;
`config.slimformer` says which matrices and attributes of a block hang on which size:

    blocks      path from the base model to its list of blocks
    axes        [module, "out" | "in", size key, factor]        that side of the matrix is factor · size; a parameter in
                                                                place of a module holds matrices of all experts
    attributes  [path, factor, size key, size key or null]      path = factor · size (/ size)
    attention   where a block has its attention, its four projections and its head counts     only beside `ranks`
    ranks       block → qk, vo, planes: queries and keys of width qk, values of width vo, rotary planes kept
    bare        block → modules that have lost their bias
    bypass      path and width of feed-forward parts, block → rank of the linear path beside them, blocks with a bias
    replaced    path and width of feed-forward parts, block → what stands in the place of its part (`nn/stand_ins.py`)
    stacks      such tables, each with the `sizes` of its blocks, where keys of the config cannot tell all sizes apart
    ends        ranks of the embedding and of the head of words (`nn/low_rank_ends.py`)

`resize` brings the blocks to these shapes before the weights are read. No stock forward pass is touched; a block with
ranks gets an attention of its own, `RankAttention`, because stock ones know one width for queries, keys and values.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.pytorch_utils import Conv1D
from transformers.utils import TransformersKwargs

CODE = "modeling_slimformer.py"
FORMAT = 9  # 1 is what checkpoints without ranks are written in, 2 those with: nothing in them needs a newer reader
Planes = Sequence[int] | Sequence[Sequence[int]]
Attended = tuple[Tensor, Tensor | None]  # what attention gives, and its weights where they are known
_DROPOUT = ("attention_dropout", "attn_dropout", "dropout")  # as the families call it; OPT has a number, BERT a layer
# arguments that change no scores
_TAKEN = {*TransformersKwargs.__annotations__, "cache_position", "use_cache", "sliding_window", "return_dict"}
BESIDE: dict[str, Any] = {}  # key of a table → what puts it into a block, by those who have it
OUTSIDE: dict[str, Any] = {}  # the same of what is outside the blocks
_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs")


def resize(model: PreTrainedModel) -> None:
    """Give every block of `model` the sizes its config states. Doing it twice changes nothing."""
    if not (table := getattr(model.config, "slimformer", None)):
        return
    if table["format"] > FORMAT:
        raise ValueError(f"the checkpoint has format {table['format']}, known is {FORMAT}: a newer slimformer wrote it")
    stacks = table.get("stacks", [table])
    try:
        lists = [model.base_model.get_submodule(stack["blocks"]) for stack in stacks]
    except AttributeError:  # a part of a model that is still being built: its owner will come by
        return
    for stack, blocks in zip(stacks, lists, strict=True):
        own = [SimpleNamespace(**sizes) for sizes in stack.get("sizes", ())]
        for i, block in enumerate(blocks.children()):
            _resize_block(block, stack, i, (own or model.config.per_layer_config)[i])
    for key in OUTSIDE.keys() & table.keys():
        OUTSIDE[key](model, table[key])


def _resize_block(block: nn.Module, table: dict[str, Any], i: int, sizes: Any) -> None:
    gone = [f"{path}." for key in BESIDE.keys() & table.keys() for path in BESIDE[key](block, table[key], i)]
    for path in table.get("bare", {}).get(str(i), ()):
        block.get_submodule(path).register_parameter("bias", None)
    parts, rank = table.get("attention", {}), table.get("ranks", {}).get(str(i))
    heads, kv_heads = (getattr(sizes, parts[key]) if rank else 0 for key in ("heads", "kv_heads"))
    widths = rank_widths(parts, heads, kv_heads, rank["qk"], rank["vo"]) if rank else {}
    for path, axis, key, factor in table["axes"]:
        size = None if f"{path}.".startswith(tuple(gone)) else getattr(sizes, key)
        if path in widths or size is not None:  # None is how GPT-2 says "four times the hidden size": nothing was cut
            _resize_axis(block, path, axis, widths[path] if path in widths else factor * size)
    if rank:
        put_ranks(block, parts, rank, heads=heads, kv_heads=kv_heads)
    for path, factor, times, over in () if rank else table["attributes"]:
        _set(block, path, factor * getattr(sizes, times) // (max(1, getattr(sizes, over)) if over else 1))
    beside = table.get("bypass", {"ranks": {}})
    if (r := beside["ranks"].get(str(i))) is not None:
        put_bypass(block, beside["path"], width=beside["width"], rank=r, bias=i in beside.get("bias", ()))


def rank_widths(parts: dict[str, Any], heads: int, kv_heads: int, qk: int, vo: int) -> dict[str, int]:
    """Outputs of the projections that write queries, keys and values, and inputs of the one that reads the result."""
    if parts["query"] == parts["value"]:  # one matrix: queries, then keys, then values
        return {parts["query"]: heads * qk + kv_heads * (qk + vo), parts["out"]: heads * vo}
    sizes = {"query": heads * qk, "key": kv_heads * qk, "value": kv_heads * vo, "out": heads * vo}
    return {parts[role]: size for role, size in sizes.items()}


def _resize_axis(block: nn.Module, path: str, axis: str, size: int) -> None:
    parent, _, name = path.rpartition(".")
    old: Any = getattr(block.get_submodule(parent), name)
    if isinstance(old, nn.Parameter):
        shape = [*old.shape[:-2], size, old.shape[-1]] if axis == "out" else [*old.shape[:-1], size]
        return _set(block, path, nn.Parameter(old.new_empty(shape), requires_grad=old.requires_grad))
    flipped, shape = isinstance(old, Conv1D), list(old.weight.shape)
    side = int((axis == "in") != flipped)
    if shape[side] == size:
        return
    shape[side] = size
    with torch.device(old.weight.device), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Initializing zero-element tensors")
        new: Any = Conv1D(shape[1], shape[0]) if flipped else nn.Linear(shape[1], shape[0], bias=old.bias is not None)
    _set(block, path, new.to(old.weight.dtype))


def _set(block: nn.Module, path: str, value: Any) -> None:
    parent, _, name = path.rpartition(".")
    setattr(block.get_submodule(parent), name, value)


def put_bypass(block: nn.Module, path: str, *, width: int, rank: int, bias: bool = False) -> None:
    """Let the feed-forward part of `block` add B A x (+ c) to what it gives; one square matrix where that is less."""
    part: Any = block.get_submodule(path)
    if hasattr(part, "bypass"):
        return
    like, maps = next(part.parameters()), [(width, rank), (rank, width)] if 2 * rank < width else [(width, width)]
    part.__class__ = _bypassed(type(part))  # type: ignore[arg-type]
    part.bypass = nn.Sequential(*(nn.Linear(*each, bias=bias and each is maps[-1]).to(like) for each in maps))


@functools.cache
def _bypassed(stock: Any) -> type[nn.Module]:
    """The stock class with a linear path beside it."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return stock.forward(self, x) + self.bypass(x)

    return type(stock.__name__, (stock,), {"forward": forward, "__module__": __name__, **pickled(_bypassed, stock)})


def put_ranks(block: nn.Module, parts: dict[str, Any], ranks: dict[str, Any], *, heads: int, kv_heads: int) -> None:
    """Let the attention of `block` have these ranks (qk, vo, planes). Its matrices are left to whoever calls."""
    old: Any = block.get_submodule(parts["path"])
    new = old if hasattr(old, "set_ranks") else _standing_in_for(type(old))(old, parts)  # type: ignore[arg-type]
    new.set_ranks(heads=heads, kv_heads=kv_heads, **ranks)
    _set(block, parts["path"], new)


@functools.cache
def _standing_in_for(stock: type[nn.Module]) -> type[RankAttention]:
    """RankAttention that also counts as the stock class, by which transformers finds where `output_attentions` are."""
    return type("RankAttention", (RankAttention, stock), {"__module__": __name__, **pickled(_standing_in_for, stock)})


def pickled(make: Any, stock: type) -> dict[str, Any]:
    """Of classes no module holds under their name: instances are pickled as what `make` makes of the stock class."""
    return {"__reduce_ex__": lambda self, _protocol: (_empty, (make, stock), self.__dict__)}


def _empty(make: Any, stock: type) -> nn.Module:
    return nn.Module.__new__(make(stock))


class RankAttention(nn.Module):
    """Attention with queries and keys of width `qk` and values of width `vo`, in place of a stock one of any family.

        softmax(s Q Kᵀ + mask) V        Q: heads × T × qk, K: kv heads × T × qk, V: kv heads × T × vo

    The scale s stays that of the dense head, whose scores these approximate. Projections keep their stock names. qk = 0
    is uniform attention (the mean under the mask), vo = 0 writes the bias of the output. Per token 2 T heads (qk + vo).

    With rotary positions `planes` are the pairs of coordinates (f, f + d/2) that are kept, each turning at its old
    frequency; columns: all f, then all f + d/2. One list serves all heads; a list of lists has one for each key head.
    """

    q_norm: nn.Module  # where the stock module has them
    k_norm: nn.Module
    resid_dropout: nn.Module

    def __init__(self, stock: Any, parts: dict[str, Any]) -> None:
        nn.Module.__init__(self)  # not super(): a stock class may come next
        prefix = parts["path"] + "."
        self.names = [parts[role].removeprefix(prefix) for role in ("query", "key", "value")]
        self.out_name = parts["out"].removeprefix(prefix) if parts["out"].startswith(prefix) else None
        for name, child in stock.named_children():
            if name in {*self.names, self.out_name, "q_norm", "k_norm", "resid_dropout"}:
                self.add_module(name, child)
        for hooks in _HOOKS:  # the same dictionaries, so that whoever listens goes on listening, and can stop
            setattr(self, hooks, getattr(stock, hooks))
        self.training, self.config, self.layer_idx = stock.training, stock.config, getattr(stock, "layer_idx", None)
        rotary = parts["rotary"]  # or the attribute that says it of each block
        self.rotary, self.head_dim = bool(getattr(stock, str(rotary), rotary)), int(parts["head_dim"])
        self.scaling, self.is_causal = float(stock.scaling), bool(stock.is_causal)
        dropout = next(getattr(stock, name) for name in _DROPOUT if hasattr(stock, name))
        self.attention_dropout = float(getattr(dropout, "p", dropout))
        if getattr(stock, "attn_logit_softcapping", None) is not None:
            raise ValueError("scores are capped, which attention cut by rank does not do")
        self.sliding_window = getattr(stock, "sliding_window", getattr(stock.config, "sliding_window", None))
        self.heads = self.kv_heads = self.qk = self.vo = 0
        self.planes: Planes | None = None

    def set_ranks(self, *, heads: int, kv_heads: int, qk: int, vo: int, planes: Planes | None) -> None:
        """State the sizes. A refusal (ValueError) says which rank this kind of attention cannot have."""
        if min(qk, vo) < 0 or (qk and not vo):
            raise ValueError(f"qk {qk}, vo {vo}: a rank is 0 or more, and without values queries are of no use")
        if hasattr(self, "q_norm") and (qk not in (0, self.head_dim) or _moved(planes)):
            raise ValueError(f"queries and keys are normed over all {self.head_dim} coordinates; qk cannot be {qk}")
        if planes is None and self.rotary and qk == self.head_dim:
            planes = list(range(qk // 2))
        lists, nested = _lists(planes)
        if self.rotary and qk and {2 * len(p) for p in lists} != {qk}:
            raise ValueError(f"qk {qk} takes {qk / 2:g} rotary planes for every head, not planes {planes}")
        if any(not 0 <= p < self.head_dim // 2 for each in lists for p in each):
            raise ValueError(f"planes {planes}: a head has rotary planes 0 … {self.head_dim // 2 - 1}")
        if nested and len(lists) != kv_heads:
            raise ValueError(f"there are planes for {len(lists)} key/value heads, and {kv_heads} of these")
        if planes is not None and not self.rotary:
            raise ValueError("this attention has no rotary planes")
        self.heads, self.kv_heads, self.qk, self.vo = heads, kv_heads, qk, vo
        self.planes = lists if nested and qk else lists[0] if lists and qk else None
        for module in self.children():
            if type(module) is Conv1D:
                module.__class__ = _Conv1D

    @property
    def ranks(self) -> dict[str, Any]:
        """As they stand in config.json."""
        return {"qk": self.qk, "vo": self.vo, "planes": self.planes}

    @property
    def num_key_value_groups(self) -> int:
        """Queries that share a key, under the name attention functions ask for."""
        return self.heads // max(1, self.kv_heads)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, past_key_values: Any = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None, **kwargs: Any,
    ) -> Attended:  # fmt: skip
        if unknown := [name for name, value in kwargs.items() if value is not None and name not in _TAKEN]:
            raise TypeError(f"{', '.join(unknown)}: attention cut by rank knows no such argument, so it does not run")
        query, key, value = self._project(hidden_states)
        if self.rotary and self.qk:
            assert position_embeddings is not None
            query, key = self._rotate(query, key, *position_embeddings)
        if past_key_values is not None:
            key, value = self._remember(past_key_values, key, value)
        context, weights = self._attend(query, key, value, attention_mask, **kwargs)
        merged = context.reshape(*hidden_states.shape[:-1], self.heads * self.vo) if self.vo else hidden_states[..., :0]
        return self._write(merged.contiguous()), weights  # Conv1D views it

    def _project(self, hidden_states: Tensor) -> tuple[Tensor, ...]:
        shapes = [(self.heads, self.qk), (self.kv_heads, self.qk), (self.kv_heads, self.vo)]
        if self.names[0] == self.names[2]:
            flat = getattr(self, self.names[0])(hidden_states).split([n * width for n, width in shapes], -1)
        else:
            flat = [getattr(self, name)(hidden_states) for name in self.names]
        # ONNX cannot reshape what is empty
        split = [(x.view if all(s) else x.new_zeros)(*x.shape[:-1], *s) for x, s in zip(flat, shapes, strict=True)]
        if hasattr(self, "q_norm") and self.qk:
            split[:2] = self.q_norm(split[0]), self.k_norm(split[1])
        return tuple(x.transpose(1, 2) for x in split)

    def _rotate(self, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        kept, half = [cos, sin], cos.shape[-1] // 2
        if _moved(self.planes) or self.qk < 2 * half:
            planes = torch.tensor(self.planes, device=cos.device)  # anew: one of inference mode is not trained with
            columns = torch.cat([planes, planes + half], -1)  # (kv heads ×) qk
            kept = [x[..., columns] for x in kept]
        if kept[0].ndim == 3:
            for_keys = for_queries = [x.unsqueeze(1) for x in kept]
        else:
            for_keys = [x.transpose(1, 2) for x in kept]
            for_queries = [x.repeat_interleave(self.num_key_value_groups, 1) for x in for_keys]
        return _turned(query, *for_queries), _turned(key, *for_keys)

    def _remember(self, past: Any, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values so far. A cache reads its length off the keys, so where they are empty others go first."""
        cache = getattr(past, "self_attention_cache", past)
        if self.qk:
            return cache.update(key, value, self.layer_idx)
        if self.vo:
            value, key = cache.update(value, key, self.layer_idx)
            return key, value
        tick = key.new_zeros(key.shape[0], 1, key.shape[2], 1)
        tick, nothing = cache.update(tick, tick[..., :0], self.layer_idx)
        return (nothing := nothing.expand(-1, self.kv_heads, -1, -1)), nothing

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any) -> Attended:
        kind = self.config._attn_implementation
        if kind != "eager":
            if not self.vo:  # no value, no need of scores
                return query.new_zeros(query.shape[0], query.shape[2], self.heads, 0), None
            if self.qk != self.vo:
                single = kind == "sdpa" and query.shape[2] == 1 and not self.training
                if single and (mask is None or mask.shape[1] == 1):
                    return self._one_query(query, key, value, mask), None
                # Fused kernels want one width: zeros change nothing and are faster than a kernel that stores the scores
                query, key, value = (F.pad(x, (0, max(self.qk, self.vo) - x.shape[-1])) for x in (query, key, value))
        if self.sliding_window is not None:
            kwargs.setdefault("sliding_window", self.sliding_window)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(kind, _eager)
        dropout = self.attention_dropout if self.training else 0.0
        context, weights = attend(self, query, key, value, mask, dropout=dropout, scaling=self.scaling, **kwargs)
        return context[..., : self.vo], weights

    def _one_query(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """One query for each head, as decoding asks: those that share a key together, so that no key is copied."""
        together = query.reshape(*key.shape[:2], self.num_key_value_groups, self.qk)
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, torch.finfo(query.dtype).min)
        context, _ = _eager(self, together, key, value, mask, dropout=0.0, scaling=self.scaling)
        return context.transpose(1, 2).reshape(len(query), 1, self.heads, self.vo)

    def _write(self, merged: Tensor) -> Tensor:
        if self.out_name is None:
            return merged
        written = getattr(self, self.out_name)(merged)
        return self.resid_dropout(written) if hasattr(self, "resid_dropout") else written


class _Conv1D(Conv1D):
    """A stock Conv1D cannot view an input without width. This one adds nothing to its bias."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1) + self.bias


def _lists(planes: Planes | None) -> tuple[list[list[int]], bool]:
    """Planes as lists, and whether every key/value head has its own."""
    found: list[Any] = list(planes or [])
    nested = bool(found) and not isinstance(found[0], int)
    return [[int(p) for p in each] for each in (found if nested else [found] if planes is not None else [])], nested


def _moved(planes: Planes | None) -> bool:
    return planes is not None and list(planes) != list(range(len(planes)))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Every plane (x_f, x_f+w) by its angle; w is half the width."""
    return x * cos + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sin


def _eager(
    module: RankAttention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *,
    dropout: float, scaling: float, **_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attention in plain matrix products, with its weights."""
    if query.shape[1] > key.shape[1]:
        key, value = (x.repeat_interleave(module.num_key_value_groups, 1) for x in (key, value))
    scores = query @ key.mT * scaling + (0 if mask is None else mask)
    weights = scores.softmax(-1, torch.promote_types(scores.dtype, torch.float32))
    weights = F.dropout(weights.to(value.dtype), dropout, module.training)
    return (weights @ value).transpose(1, 2), weights


@functools.cache
def ragged(stock: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The stock model class, with `resize` as a step of its construction.

    It keeps the stock name, which is what config.json, pipelines and loss functions go by, and does not count as custom
    code, so that weights are renamed between file and memory as for the stock class (ViT has other names in each).
    """

    def post_init(self: PreTrainedModel) -> None:
        resize(self)
        stock.post_init(self)

    parts = {"post_init": post_init, "is_custom_code": classmethod(lambda _class: False), "__module__": __name__}
    return type(stock.__name__, (stock,), parts)


# Stock constructors read the global sizes on purpose (see above): the warning would only alarm.
logging.getLogger("transformers.integrations.heterogeneity.configuration_utils").addFilter(
    lambda record: not record.getMessage().startswith("Reading global config value for per-layer attribute")
)


def __getattr__(name: str) -> type:
    """`LlamaForCausalLM` and the like, able to be ragged, made when asked for: `auto_map` in config.json names them."""
    stock = None if name.startswith("_") else getattr(transformers, name, None)
    if not (isinstance(stock, type) and issubclass(stock, PreTrainedModel)):
        raise AttributeError(f"there is no model class {name!r} in transformers {transformers.__version__}")
    return ragged(stock)  # type: ignore[arg-type]
