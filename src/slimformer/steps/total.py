"""A budget over all MACs of a token: what runs beside the blocks, above all the head of words, is paid first.

With B the MACs of the blocks and O those outside them, a share F of all leaves the blocks

    (F (B + O) − O') / B,

O' being what runs outside now: O, or less where a vocabulary has been made smaller.
"""

from __future__ import annotations

import math

from slimformer.errors import BudgetOutOfReach
from slimformer.messages.words import option
from slimformer.models import describe
from slimformer.plan.cost import block_cost, outside_macs
from slimformer.run import Run


def share_of_blocks(run: Run, total: float) -> float:
    """The share of the blocks' MACs with which all of them together are that share; at most 1."""
    dense = (run.original or run.loaded).model
    blocks = block_cost(describe(run.dense), run.seq_len).macs
    before, now = (outside_macs(each, describe(each), run.seq_len) for each in (dense, run.dense))
    every = blocks + before
    if now >= total * every:
        least = math.ceil(1000 * now / every) / 1000
        raise BudgetOutOfReach(
            f"{option('total_macs', total)} is {total * every:,.0f} MACs a token, and what runs outside the blocks "
            f"(mostly the head of words) takes {now:,} of {every:,}; give more than {least:.3f}, or fewer tokens with "
            f"{option('vocab')}"
        )
    return min(1.0, (total * every - now) / blocks)
