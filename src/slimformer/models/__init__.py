"""The way from a folder or a hub id to a model, and its description.

Where a model is can be told before torch is imported (`models.place`); so the names here are imported when they are
first asked for.
"""

from typing import TYPE_CHECKING

from slimformer.start.lazy import make_lazy

if TYPE_CHECKING:
    from slimformer.models.architecture import Architecture as Architecture
    from slimformer.models.architecture import Site as Site
    from slimformer.models.description import describe as describe
    from slimformer.models.families import FAMILIES as FAMILIES
    from slimformer.models.families import family_of as family_of
    from slimformer.models.family import Family as Family

make_lazy(
    __name__,
    {
        **dict.fromkeys(("Architecture", "Site"), "slimformer.models.architecture"),
        "describe": "slimformer.models.description",
        **dict.fromkeys(("FAMILIES", "family_of"), "slimformer.models.families"),
        "Family": "slimformer.models.family",
    },
)
