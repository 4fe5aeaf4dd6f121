"""Whether data are still those that runs were made on: files at a place can change while its name does not."""

from __future__ import annotations

from collections.abc import Sequence

from slimformer.errors import DataNotFound, ExperimentChanged
from slimformer.lab.feed import Feed, open_feed, read_anew
from slimformer.lab.folder import LabFolder
from slimformer.lab.settings import RunSettings
from slimformer.lab.state import read_head
from slimformer.messages.words import option


def require_same_data(folder: LabFolder, runs: Sequence[RunSettings]) -> None:
    """Refuse to add runs on other data to those that are there."""
    changed = list(other_data(folder, runs).values())
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise ExperimentChanged(
            f"{folder.path} has runs of other data: {changed[0]}{more}; run them again with "
            f"{option('force', True)}, forget all with "
            f"{option('anew', True)}, or give another {option('folder')}"
        )


def other_data(folder: LabFolder, runs: Sequence[RunSettings]) -> dict[str, str]:
    """By name, the runs of these settings that ended or were stopped on other data, and what differs."""
    read_anew()
    lines = {}
    for run in runs:
        result = folder.result(run)
        head = {} if result else read_head(folder.state_file(run))
        if result is None and head.get("digest") != run.digest():
            continue
        try:
            feed = open_feed(run, folder.texts)
        except DataNotFound:  # what has ended stands; what needs the data will say so itself
            continue
        if (result["data"]["digest"] if result else head.get("data")) != feed.digest:
            lines[run.name] = f"{run.name}: {_difference(result['data'] if result else {}, feed)}"
    return lines


def _difference(before: dict[str, object], feed: Feed) -> str:
    for part, n in feed.sizes.items():
        if before.get(part, n) != n:
            return f"the {part} part had {before[part]:,} examples and has {n:,}"
    return "the data have as many examples, and other contents" if before else "the data have changed since it stopped"
