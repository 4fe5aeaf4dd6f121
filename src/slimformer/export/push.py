"""A finished checkpoint on the hub, with its card: looked over here, then sent in one commit.

What is sent is the folder as it is, but for hidden files, and but for README.md, whose lines load from the hub.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slimformer.checkpoint.lines import json_text
from slimformer.errors import CannotPush, ReportNotFound
from slimformer.evaluate.report import Footprint, Report
from slimformer.evaluate.report_file import read_report
from slimformer.files.manifest import NAME, require_unchanged
from slimformer.files.reading import LARGE, read_json
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models.place import PROCESSOR_FILES, PROCESSOR_SETTINGS, SENTENCE_PARTS
from slimformer.models.read import CONFIG_FILES
from slimformer.models.weight_files import INDEX
from slimformer.report.hub_card import card_for_hub
from slimformer.report.names import is_hub_id
from slimformer.report.page import without_places

CARD = "README.md"
PARTIAL = re.compile(r"\.(partial|old|replaced)-")  # of a run that is going on, or was killed


@dataclass(frozen=True)
class Parcel:
    """What goes where: files by their paths in the repository, the card as text, notes."""

    folder: Path
    repository: str
    private: bool
    files: tuple[str, ...]
    card: str
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        sizes = {name: (self.folder / name).stat().st_size for name in self.files if name != CARD}
        sizes[CARD] = len(self.card.encode())
        files = [{"path": name, "bytes": sizes[name]} for name in self.files]
        return {"repository": self.repository, "private": self.private, "files": files, "notes": list(self.notes)}


def prepare(folder: str | Path, repository: str, *, private: bool = False, base_model: str | None = None) -> Parcel:
    """Look a folder over without a network: refuses (`CannotPush`) all but finished checkpoints of slimformer."""
    folder = Path(folder)
    for role, name in (("repository", repository), ("base model", base_model)):
        if name is not None and not is_hub_id(name):
            raise CannotPush(f"{name!r} is no name of a {role} on the hub; give ORG/NAME")
    _require_finished(folder)
    report = _report(folder)
    card = card_for_hub(folder, report, repository, base_model=base_model)
    return Parcel(folder, repository, private, tuple(_files(folder)), card, tuple(_notes(report, base_model)))


def send(parcel: Parcel, *, progress: Progress = silent) -> str:
    """Create the repository where there is none, and put everything into one commit; the address it is at.

    The token never shows: it is taken from HF_TOKEN or from `hf auth login`, and blotted out of what the hub answers.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    token = get_token()
    if not token:
        raise CannotPush("there is no token for the hub; run hf auth login, or set HF_TOKEN")
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        raise CannotPush("HF_HUB_OFFLINE is set, so nothing can be sent; unset it")
    api = HfApi(token=token)
    sources: list[tuple[str, Any]] = [(name, _shared(parcel, name)) for name in parcel.files]
    try:
        progress("push", 0, 2)
        _create(api, parcel)
        progress("push", 1, 2)
        operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=source) for name, source in sources]
        message = "A model compressed by slimformer"
        done = api.create_commit(parcel.repository, operations=operations, commit_message=message)
        progress("push", 2, 2)
    except CannotPush:
        raise
    except Exception as error:  # of the network, the hub and its client, each in several kinds
        # `from None`: a traceback could show headers, and the token is among them
        raise CannotPush(f"the hub does not take {parcel.repository}: {_reason(error, token)}") from None
    return str(done.repo_url)


def _shared(parcel: Parcel, name: str) -> Any:
    """A file as others may have it: the report without where model and data lay on this machine."""
    if name == CARD:
        return parcel.card.encode()
    if name != "report.json":
        return parcel.folder / name
    report = read_report(parcel.folder / name)
    shown = without_places(report)
    return json_text({key: shown[key] for key in report}).encode()


def _create(api: Any, parcel: Parcel) -> None:
    """A new repository, or the one that is there; what is to be private does not go where everybody reads."""
    created = api.create_repo(parcel.repository, private=True if parcel.private else None, exist_ok=True)
    if parcel.private and not api.repo_info(created.repo_id).private:
        raise CannotPush(
            f"{parcel.repository} is there already and public; choose another name, or leave out "
            f"{option('private', True)}"
        )


def _require_finished(folder: Path) -> None:
    """A config that can be read, every weight file it takes, whole, and the plan it was made by."""
    if not folder.is_dir():
        raise CannotPush(f"there is no folder {str(folder)!r}; give one that compress wrote")
    if PARTIAL.search(folder.resolve().name):
        raise CannotPush(f"{folder} is not finished: it is what a run works on, or has left behind")
    if (folder / "cascade.json").is_file():
        raise CannotPush(
            f"{folder} is a cascade of two models, and push sends one with its report; make that with "
            "`slimformer cut`, or send the folder as it is with `hf upload`"
        )
    for name in ("config.json", "plan.json", "report.json", CARD):
        if not (folder / name).is_file():
            raise CannotPush(f"{folder} is no finished checkpoint of slimformer: it holds no {name}")
    texts = ("plan.json", *CONFIG_FILES, *PROCESSOR_FILES, *PROCESSOR_SETTINGS, *SENTENCE_PARTS)
    require_unchanged(folder, *texts, "*.safetensors", INDEX)
    _json(folder / "config.json")
    _json(folder / "plan.json")
    _require_weights(folder)


def _require_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    listed: dict[str, str] = _json(index).get("weight_map", {}) if index.is_file() else {}
    names = sorted({str(name) for name in listed.values()}) if index.is_file() else ["model.safetensors"]
    held: set[str] = set()
    for name in names:
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise CannotPush(f"{folder} is no finished checkpoint of slimformer: it holds no {name}")
        try:
            with safe_open(path, "pt") as file:  # refuses a file that is shorter or longer than its header says
                held |= set(file.keys())
        except (SafetensorError, OSError) as error:
            raise CannotPush(f"{path} is damaged or incomplete ({error}); save the model again") from error
    missing = sorted(set(listed) - held)
    if missing or not held:
        raise CannotPush(f"{folder}: {missing[0] if missing else 'every weight'} is missing; save the model again")


def _report(folder: Path) -> Report:
    try:
        report = read_report(folder)
    except ReportNotFound as error:
        raise CannotPush(f"{folder} is no finished checkpoint of slimformer: {error}") from error
    known = {field.name for field in fields(Report)}
    facts = {name: value for name, value in report.items() if name in known}
    sizes = {field.name for field in fields(Footprint)}
    for side in ("dense", "small"):
        facts[side] = Footprint(**{name: value for name, value in facts[side].items() if name in sizes})
    return Report(**facts)


def _files(folder: Path) -> list[str]:
    """Regular files, without hidden ones and without what links lead out of the folder.

    The list of files stays here: the hub has sums of its own, and what is changed there is changed on purpose.
    """
    files = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        inside = path.resolve().is_relative_to(folder.resolve())
        if path.is_file() and inside and path.name != NAME and not any(part.startswith(".") for part in name.parts):
            files.append(name.as_posix())
    return files


def _notes(report: Report, base_model: str | None) -> list[str]:
    notes = []
    if base_model is None and not is_hub_id(report.model):
        notes.append(f"the card does not say what the model was made from; give {option('base_model', 'ORG/NAME')}")
    places = [report.model, str(report.data.get("name", ""))]
    if any(re.match(r"[/~]|[A-Za-z]:[/\\]", place) for place in places):
        notes.append("report.json says where model or data lay on this machine; edit it if nobody should know")
    return notes


def _json(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, LARGE)
    except (OSError, ValueError) as error:
        raise CannotPush(f"{path} cannot be read; save the model again") from error
    if not isinstance(content, dict):
        raise CannotPush(f"{path} is not what slimformer writes; save the model again")
    return content


def _reason(error: Exception, token: str) -> str:
    status = None
    with suppress(AttributeError):
        status = error.response.status_code  # type: ignore[attr-defined]
    known = {
        401: "the token is not valid; run hf auth login", 403: "the token may not write there; use one that may",
        404: "there is no such organisation, or the token may not see it",
    }  # fmt: skip
    text = " ".join(str(error).split())[:200] or type(error).__name__
    return known.get(int(status or 0), text).replace(token, "…")
