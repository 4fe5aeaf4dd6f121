"""What the options of several commands name: budgets, data, models. What can be refused without torch is refused first.

Functions here import what they need when they are called: the start of every command is light.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slimformer.cli import options as opt
from slimformer.errors import BudgetOutOfReach, SlimformerError

if TYPE_CHECKING:
    import torch

    from slimformer.calibrate.gather import Data
    from slimformer.calibrate.store import Statistics
    from slimformer.models.load import Loaded
    from slimformer.models.opening import Opening

PRECISIONS = ("float32", "float64", "bfloat16", "float16")
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def fraction_asked(macs: str | None, params: str | None = None, latency: str | None = None) -> dict[str, Any]:
    """The one budget given on the command line: of what, and which fraction."""
    from slimformer.plan.asked import one_fraction

    texts = {"macs": macs, "params": params, "latency": latency}
    by, share = one_fraction({by: None if text is None else fraction(by, text) for by, text in texts.items()})
    return {by: share}


def fraction(by: str, text: str) -> float:
    """The number in a text; percents are understood and refused."""
    from slimformer.plan.asked import NOUNS

    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        share = float(number)
    except ValueError:
        raise BudgetOutOfReach(
            f"--{by.replace('_', '-')} {text!r} is not a number; give the fraction of the {NOUNS[by]} to keep, e.g. 0.5"
        ) from None
    if percent:
        raise BudgetOutOfReach(f"--{by.replace('_', '-')} {text} is not a fraction; did you mean {share / 100:g}?")
    return share


def vocabulary_size(text: str) -> int | float:
    """Tokens to keep, or, below 1, the share of the text they must cover."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if 0 < number < 1:
        return number
    if not number.is_integer() or number < 1:  # also NaN and infinity
        raise BudgetOutOfReach(
            f"--vocab {text!r} is not understood; give the number of tokens to keep, e.g. 16000, or the share of "
            "the text they must cover, e.g. 0.99"
        )
    return int(number)


def size_in_bytes(option: str, text: str) -> int:
    """A size such as 4GB, 512 MiB or 3e9 in bytes; GB is a power of ten, as disks are sold, GiB one of two."""
    stripped = text.strip().lower().removesuffix("b")
    number = stripped.rstrip("kmgti ")
    try:
        size = float(number) * UNITS[stripped[len(number) :].strip()]
    except (ValueError, KeyError):
        size = 0.0
    if not 0 < size < 2**60:
        raise SlimformerError(f"{option} {text!r} is not a size; give e.g. 4GB or 512MiB")
    return int(size)


def minutes(text: str | None) -> float | None:
    """The minutes in 10m, 90s, 2h or 10."""
    if text is None:
        return None
    number = text.strip().rstrip("smh")
    try:
        amount = float(number) * {"": 1.0, "s": 1 / 60, "m": 1.0, "h": 60.0}[text.strip()[len(number) :]]
    except (ValueError, KeyError):
        amount = 0.0
    if not 0 < amount < 1e6:
        raise SlimformerError(f"--heal {text!r} is no time; give e.g. 10m, 90s or 2h")
    return amount


def settings_in(texts: list[str]) -> dict[str, Any]:
    """What `--set cut.ridge=0.01` says, by step and key; values as YAML reads them."""
    from slimformer.files.reading import parse_yaml

    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or "." not in name:
            raise SlimformerError(f"--set {text!r} is not understood; give STEP.KEY=VALUE, e.g. cut.ridge=0.01")
        try:
            values[name.strip()] = parse_yaml(value)
        except ValueError as error:
            raise SlimformerError(f"--set {text!r}: {error}; give STEP.KEY=VALUE, e.g. cut.ridge=0.01") from None
    return values


def joined(data: list[str] | None) -> str:
    """The sources of `--data a --data b` as one name, as in `--data a,b`; that of the default where there are none."""
    from slimformer.calibrate.documents import UNNAMED

    return ",".join(data) if data else UNNAMED


def parts_of(data: str) -> tuple[str, ...]:
    """What a name of data may name: all of it, and each part between commas."""
    return (data, *data.split(","))


def require_data(*sources: str | None) -> None:
    """Refuse data that are not there, before torch is imported."""
    from slimformer.calibrate.tasks import require_there

    for source in sources:
        if source is not None:
            require_there(source)


def require_readable_as_recorded(*, columns: str, samples: int | None) -> None:
    """Without --data the data are read as they were read at first; options that say otherwise need --data."""
    given = [flag for flag, value in (("--columns", columns), ("--samples", samples)) if value]
    if given:
        raise SlimformerError(
            f"{', '.join(given)}: how to read --data, and none are given; give --data, or leave it out"
        )


def require_model(name: str, opening: opt.OpeningAsked) -> None:
    """Refuse a model that is not where it is said to be, before torch is imported; what the hub has is seen later."""
    from slimformer.models.place import place_here

    if opening.family is not None:
        from slimformer.models.families import read_family

        read_family(opening.family)
    place_here(name, opening.revision)


def require_models(folder: str, against: str, opening: opt.OpeningAsked) -> None:
    """Refuse a smaller model or a dense one that is not there; only the dense one is said to be of the hub."""
    require_model(folder, opt.AS_USUAL)
    require_model(against, opening)


def require_inputs(model: str, data: str, opening: opt.OpeningAsked, *others: str | None) -> None:
    """Refuse a model and data that are not there, before torch is imported."""
    require_model(model, opening)
    require_data(data, *others)


def require_place(folder: Path, force: bool, *inputs: str | Path | None) -> None:
    """Refuse, before the work, a folder that is taken, and one that is read from."""
    from slimformer.checkpoint.atomic import require_apart, require_free

    require_apart(folder, *inputs)
    require_free(folder, force)


def require_precision(name: str) -> None:
    """Refuse what is not the name of a precision."""
    if name not in PRECISIONS:
        raise SlimformerError(f"--dtype {name!r} is not known; choose from {', '.join(PRECISIONS)}")


def precision(name: str) -> torch.dtype:
    """The data type of that name."""
    import torch

    require_precision(name)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def with_precision(opening: opt.OpeningAsked, dtype: str) -> Opening:
    """How to open a model that is calibrated in this precision."""
    from slimformer.models.opening import usable_precision

    return replace(opening.resolve(), dtype=usable_precision(precision(dtype), opening.device))


def statistics_of(folder: Path, moved: str, opening: opt.OpeningAsked) -> str:
    """The model that statistics are of; refused, before torch is imported, where either is not there."""
    from slimformer.calibrate.provenance import read_provenance

    model = moved or read_provenance(folder).model
    require_model(model, opening)
    return model


def statistics_and_model(stats: Path, source: tuple[str, opt.OpeningAsked]) -> tuple[Statistics, Loaded]:
    """Statistics, and the model they are of, wherever it is now."""
    from slimformer.verbs.asked import model_of, opened_statistics

    (moved, opening), statistics = source, opened_statistics(stats)
    return statistics, model_of(statistics, moved or None, vars(opening.resolve()))


def load_pair(folder: str, against: str, opening: opt.OpeningAsked) -> tuple[Loaded, Loaded]:
    """The dense model and the smaller one, on one device."""
    from slimformer.verbs.asked import open_pair

    return open_pair(folder, against, opening.resolve())


def read_data(
    loaded: Loaded, data: str, reading: opt.Reading, *, purpose: Any = "calibration", broad: bool = False
) -> Data:
    """Data for a model that is loaded already."""
    from slimformer.verbs.asked import read_for

    return read_for(loaded, data, reading.arguments(), purpose=purpose, broad=broad)


def require_calibrated(stats: Path, recipe: str, format: str, source: tuple[str, opt.OpeningAsked]) -> str:
    """The model that statistics are of; a recipe or format that is not known is refused before torch is imported."""
    from slimformer.plan.asked import require_format
    from slimformer.recipes import fields_of

    fields_of(recipe)
    require_format(format)
    return statistics_of(stats, *source)


def started_from(
    stats: Path, recipe: Any, format: str, source: tuple[str, opt.OpeningAsked], progress: Any
) -> tuple[Any, Any]:
    """A run from statistics and from the model they are of, and the settings of a recipe's cut."""
    from slimformer.verbs.asked import started_from

    moved, opening = source
    how = {"recipe": recipe, "format": format, **vars(opening.resolve())}
    return started_from(stats, moved or None, how, progress)
