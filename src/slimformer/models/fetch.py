"""From what a user calls a model to a folder, wherever it is: one on this machine, or a copy of what the hub has."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from slimformer.errors import ModelNotFound
from slimformer.files.reading import LARGE, read_json
from slimformer.models.hub import hub_or_cache
from slimformer.models.opening import Opening
from slimformer.models.place import PROCESSOR_FILES, Place, place_here
from slimformer.models.weight_files import INDEX, SINGLE

COMPANIONS = ("*.json", "*/*.json", "*LICENSE*", "*LICENCE*", "*NOTICE*", "*/*.safetensors")


def find_place(name: str | Path, opening: Opening) -> Place:
    """Where MODEL is: a folder, `demo:smollm2`, or a hub id, of which all that is needed is fetched."""
    here = place_here(name, opening.revision)
    if here is not None:
        return here
    folder = _fetched(str(name), opening)
    return Place(str(name), folder, local=False, commit=folder.name)


def _fetched(name: str, opening: Opening) -> Path:
    """A copy of what the hub has: small files first, because they say which weights there are."""
    code = ("*.py",) if opening.trust_remote_code else ()
    small = [*COMPANIONS, *PROCESSOR_FILES, *code]
    try:
        with hub_or_cache():
            folder = Path(snapshot_download(name, revision=opening.revision, allow_patterns=small))
            snapshot_download(name, revision=folder.name, allow_patterns=_weights_of(folder))
    except Exception as error:  # of the network, the hub and its client, each in several kinds
        folder = _cached(name, opening, error)
    if not any((folder / file).is_file() for file in (SINGLE, INDEX)):
        raise ModelNotFound(
            f"{name}: the hub has no {SINGLE} of it; weights in pickles are not read, convert them first (SECURITY.md)"
        )
    return folder


def _cached(name: str, opening: Opening, error: Exception) -> Path:
    """What was fetched before, by whatever program; it may lack licences and the like, which is no reason to refuse."""
    try:
        revision, files = opening.revision, ["config.json"]
        return Path(snapshot_download(name, revision=revision, allow_patterns=files, local_files_only=True))
    except Exception:
        at = "" if opening.revision is None else f" at revision {opening.revision!r}"
        raise ModelNotFound(
            f"{name!r} is neither a folder here nor a model the hub gives{at}; check the name and the network"
        ) from error


def _weights_of(folder: Path) -> list[str]:
    try:
        listed = read_json(folder / INDEX, LARGE)["weight_map"].values()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [SINGLE]
    return [SINGLE, *sorted({str(file) for file in listed})]
