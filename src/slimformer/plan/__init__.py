"""What to cut, as data: costs, ladders, allocations, plans, recipes.

What a user asked for is checked before torch is imported, by files of this folder; so its names are imported when they
are first asked for.
"""

from typing import TYPE_CHECKING

from slimformer.start.lazy import make_lazy

if TYPE_CHECKING:
    from slimformer.plan.asked import FORMATS as FORMATS
    from slimformer.plan.asked import require_format as require_format
    from slimformer.plan.budget import Budget as Budget
    from slimformer.plan.plan import Edit as Edit
    from slimformer.plan.plan import Plan as Plan
    from slimformer.plan.planning import NEAR_ENOUGH as NEAR_ENOUGH
    from slimformer.plan.planning import Choices as Choices
    from slimformer.plan.planning import Terms as Terms
    from slimformer.plan.planning import allocate as allocate
    from slimformer.plan.planning import check_budget as check_budget
    from slimformer.plan.planning import choices as choices
    from slimformer.plan.planning import ffn_of as ffn_of
    from slimformer.plan.planning import legal_sizes_of as legal_sizes_of

make_lazy(
    __name__,
    {
        **dict.fromkeys(("FORMATS", "require_format"), "slimformer.plan.asked"),
        "Budget": "slimformer.plan.budget",
        **dict.fromkeys(("Edit", "Plan"), "slimformer.plan.plan"),
        **dict.fromkeys(
            ("NEAR_ENOUGH", "Choices", "Terms", "allocate", "check_budget", "choices", "ffn_of", "legal_sizes_of"),
            "slimformer.plan.planning",
        ),
    },
)
