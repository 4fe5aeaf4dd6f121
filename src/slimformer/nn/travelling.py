"""The code that travels with ragged checkpoints, and teaching transformers to read and write them.

`modeling_slimformer.py` is `nn/ragged.py` itself. Where feed-forward parts were replaced, `nn/stand_ins.py` follows in
the same file, where ends have a rank `nn/low_rank_ends.py`, without their imports of the first: `auto_map` names one
file, and transformers fetches that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from slimformer.nn import low_rank_ends, ragged, stand_ins

MORE = {  # key of a table → the file that is needed besides
    stand_ins.KEY: Path(stand_ins.__file__), low_rank_ends.KEY: Path(low_rank_ends.__file__),
}  # fmt: skip
TWICE = re.compile(r"^from (slimformer|__future__)\b.*\n", re.MULTILINE)


def enable() -> None:
    """Let every stock model class read and write ragged checkpoints. Others, without `config.slimformer`, stay."""
    stock_post_init, stock_save = PreTrainedModel.post_init, PreTrainedConfig.save_pretrained
    if getattr(stock_post_init, "reads_ragged", False):
        return

    def post_init(self: PreTrainedModel) -> None:
        ragged.resize(self)
        stock_post_init(self)

    def save_pretrained(self: PreTrainedConfig, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        stock_save(self, save_directory, *args, **kwargs)
        if getattr(self, "slimformer", None) and getattr(self, "auto_map", None):
            write_code(save_directory, self.slimformer)

    post_init.reads_ragged = True  # type: ignore[attr-defined]
    PreTrainedModel.post_init = post_init  # type: ignore[method-assign]
    PreTrainedConfig.save_pretrained = save_pretrained  # type: ignore[method-assign]


def write_code(folder: str | Path, table: Mapping[str, Any]) -> None:
    """Put the code that `table` asks for beside the weights, under the name `auto_map` in config.json gives it."""
    code = Path(ragged.__file__).read_bytes()
    for key, file in MORE.items():
        if any(key in each for each in (table, *table.get("stacks", ()))):
            code += b"\n\n" + TWICE.sub("", file.read_text(encoding="utf-8")).encode()
    (Path(folder) / ragged.CODE).write_bytes(code)
