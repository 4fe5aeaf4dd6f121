"""What a minimal transformer is made of, and how many parameters and multiply-accumulates that takes, by formula.

With D the hidden size, H heads of width d (H d = D unless `head_dim` says otherwise) and r the rank of the skew part
every block has, biases apart,

    qk = full                    2 D H d                      W_q and W_k
         collapsed               2 D H d − H d²               W_q, and W_k but for d of its rows; H = 1: D², one W_qk
         shared                  D H d                        W_k = W_q
         symmetric               D H d − H d (d − 1)/2        T Tᵀ, T lower trapezoidal; H = 1: D (D + 1)/2
         symmetric-indefinite    as symmetric                 [I; K] (L + Lᵀ) [I; K]ᵀ
         symmetric-skew          as symmetric, + 2 H d r      … + U Vᵀ − V Uᵀ within the bracket
    vo = full                    2 D H d                      W_v and W_o
         collapsed               2 D H d − H d²               H = 1: D², one W_vo
         none                    0                            a head passes its d coordinates of the input on
    MLP                          2 D F                        F = mlp_ratio · D neurons; 0: there is none
"""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

QK = ("full", "collapsed", "shared", "symmetric", "symmetric-indefinite", "symmetric-skew")
VO = ("full", "collapsed", "none")


@strict
class MinimalConfig(PreTrainedConfig):
    """Sizes and forms of a minimal transformer, for images unless `vocab_size` is given.

    `qk="full", vo="full", mlp_ratio=4` is the standard transformer. `do_layer_norm_before`: pre-norm, else post-norm.
    `pool`: "cls" (images: a token of its own, text: the first token) or "mean"; by default cls for images, mean for
    text. `shaped`: α I + β A − γ C in place of the attention A (`attention_skip=False` leaves out the path around it).
    """

    model_type = "minimal"

    hidden_size: int = 64
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    head_dim: int | None = None
    qk: Literal["full", "collapsed", "shared", "symmetric", "symmetric-indefinite", "symmetric-skew"] = "full"
    vo: Literal["full", "collapsed", "none"] = "full"
    skew_rank: int | None = None
    shaped: bool = False
    attention_skip: bool = True
    mlp_ratio: float | int = 4
    intermediate_size: int | None = None
    hidden_act: str = "gelu"
    do_layer_norm_before: bool = True
    qkv_bias: bool = True
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-6
    image_size: int | list[int] | tuple[int, int] = 28
    patch_size: int | list[int] | tuple[int, int] = 7
    num_channels: int = 1
    vocab_size: int | None = None
    max_position_embeddings: int = 512
    pad_token_id: int | None = None
    pool: Literal["cls", "mean"] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        _require_sizes(self)
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise ValueError(f"{self.num_attention_heads} heads do not divide a hidden size of {self.hidden_size}")
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.skew_rank is None:
            self.skew_rank = max(1, self.head_dim // 8)
        if self.intermediate_size is None:
            self.intermediate_size = round(self.mlp_ratio * self.hidden_size)
        if self.pool is None:
            self.pool = "cls" if self.vocab_size is None else "mean"
        sliced = self.qk not in ("full", "shared") or self.vo != "full"
        if sliced and self.num_attention_heads * self.head_dim != self.hidden_size:
            raise ValueError(f"qk={self.qk!r}, vo={self.vo!r} need heads that share the hidden size out among them")
        super().__post_init__(**kwargs)

    @property
    def reads_images(self) -> bool:
        """Pixels or tokens?"""
        return self.vocab_size is None

    @property
    def positions(self) -> int:
        """Entries of the table of positions: patches (and the class token), or tokens."""
        if not self.reads_images:
            return self.max_position_embeddings
        (height, width), (rows, columns) = sides(self.image_size), sides(self.patch_size)
        return (height // rows) * (width // columns) + (self.pool == "cls")


def _require_sizes(config: MinimalConfig) -> None:
    """Sizes are not negative, and images are whole patches: pixels after the last one would not be seen."""
    least = {"hidden_size": 1, "num_attention_heads": 1, "head_dim": 1, "num_channels": 1, "num_hidden_layers": 0,
             "mlp_ratio": 0, "intermediate_size": 0, "skew_rank": 0}  # fmt: skip
    for name, at_least in least.items():
        value = getattr(config, name)
        if value is not None and value < at_least:
            raise ValueError(f"{name} is {value}; it must be at least {at_least}")
    if config.vocab_size is not None:
        return
    for edge, patch in zip(sides(config.image_size), sides(config.patch_size), strict=True):
        if patch < 1 or edge < 1 or edge % patch:
            raise ValueError(f"image_size {edge} is not a multiple of patch_size {patch}")


def sides(size: Any) -> tuple[int, int]:
    """Height and width of what may be one number or two."""
    return (int(size[0]), int(size[1])) if isinstance(size, list | tuple) else (int(size), int(size))


def parameter_count(config: MinimalConfig) -> int:
    """Parameters of the classifier a config describes, head and all, exactly. Nothing is built."""
    D, F, norm = config.hidden_size, config.intermediate_size or 0, 2 * config.hidden_size
    if config.reads_images:
        rows, columns = sides(config.patch_size)
        entry = D * (config.num_channels * rows * columns + 1) + D * (config.pool == "cls")
    else:
        assert config.vocab_size is not None
        entry = D * config.vocab_size
    mlp = 2 * D * F + F + D + norm if F else 0
    blocks = config.num_hidden_layers * (attention_parameters(config) + norm + mlp)
    # pre-norm ends with a norm, post-norm starts with one
    return entry + D * config.positions + blocks + norm + (D + 1) * (config.num_labels or 0)


def attention_parameters(config: MinimalConfig) -> int:
    """Parameters of the attention of one block, biases included."""
    D, H, d = config.hidden_size, config.num_attention_heads, config.head_dim or 0
    bias, pair, gauge, half = H * d * config.qkv_bias, D * H * d, H * (D - d) * d, H * d * (d + 1) // 2
    qk = {
        "full": 2 * (pair + bias),
        "collapsed": pair + bias + gauge,
        "shared": pair + bias,
        "symmetric": gauge + half + bias,
        "symmetric-indefinite": gauge + half + bias,
        "symmetric-skew": gauge + half + bias + 2 * H * d * (config.skew_rank or 0),
    }[config.qk]
    vo = {"full": 2 * pair + bias + D, "collapsed": gauge + pair + D, "none": 0}[config.vo]
    return qk + vo + 3 * H * config.shaped


def attention_macs(config: MinimalConfig) -> int:
    """Multiply-accumulates per token of a block's projections, as they are run: zeros and ones of W are multiplied,
    except with one head, where keys or values are the input itself."""
    D, H, d = config.hidden_size, config.num_attention_heads, config.head_dim or 0
    pair, gauge = D * H * d, D * H * d * (d < D)
    core = gauge + H * d * d
    qk = {"full": 2 * pair, "collapsed": pair + gauge, "shared": pair, "symmetric": pair}.get(config.qk, core)
    return qk + {"full": 2 * pair, "collapsed": pair + gauge, "none": 0}[config.vo]


def block_macs(config: MinimalConfig, length: int) -> int:
    """The same of a whole block, with scores and context of sequences of `length`."""
    scores = 2 * length * config.num_attention_heads * (config.head_dim or 0)
    return attention_macs(config) + scores + 2 * config.hidden_size * (config.intermediate_size or 0)
