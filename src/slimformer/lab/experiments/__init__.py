"""The experiments that come with the package, found by name or path and read as YAML, without torch.

Their data lie in ~/.cache/slimformer/data/NAME, where `slimformer lab fetch NAME` puts them, or where `lab run --data
NAME=PATH` says. `settings.py` says what the fields mean.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from slimformer.errors import BadExperiment
from slimformer.files.reading import YAML, read_text


def names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(file.name.removesuffix(".yaml") for file in _folder().iterdir() if file.name.endswith(".yaml"))


def text_of(name: str) -> str:
    """The YAML of an experiment, by name or path; a file of that very name wins."""
    path = Path(name)
    if name in names() and not path.is_file():
        return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")
    if path.suffix not in {".yaml", ".yml"} and not path.exists():
        raise BadExperiment(
            f"there is no experiment {name!r}; choose from {', '.join(names())}, or give a path to a .yaml file"
        )
    try:
        return read_text(path, YAML)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise BadExperiment(f"the experiment file {path} cannot be read: {reason}") from None


def _folder() -> resources.abc.Traversable:
    return resources.files("slimformer.lab.experiments")
