"""Claim: whatever is in a file, it is read as what it says or refused; whenever a run is killed, nothing is half.

    python benchmarks/hardening.py [fuzz] [kills] [--examples 700] [--times 16]

fuzz    files of every kind are spoilt (`tests/spoiling.py`); readers must refuse them in one line, or read what they
        say (`tests/spoilt_files.py`).
kills   every command that writes is killed (`kills.py`). What is then there under the final name must be whole, files
        of users in and beside it must be there, and in the end an unharmed run must succeed.

Results: benchmarks/results/hardening.json.
"""
# ruff: noqa: E402  (what is spoilt and how commands are run is said in tests/)

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

import torch
import transformers

from cells import write_json
from kills import harmed, kills
from spoiling import EQUAL, MISREAD, REFUSED, SECONDS, Hung, Target, attempt
from spoilt_files import targets

RESULTS = HERE / "results" / "hardening.json"
TRACEBACK = "traceback"
OUTCOMES = (EQUAL, REFUSED, MISREAD, TRACEBACK)
MEMORY = Path("/dev/shm")  # thousands of folders are copied and removed


# --- spoilt files -----------------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of the spoilt files of one kind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slow: int = 0
    first: list[str] = field(default_factory=list)  # of misread files, tracebacks and hangs, to try again

    def to_json(self) -> dict[str, Any]:
        return {"spoilt": self.outcomes.total(), **{name: self.outcomes[name] for name in OUTCOMES}, "slow": self.slow}


def fuzz(examples: int, root: Path, only: Sequence[str] = (), known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Outcomes by file, for seeds 0, 1, …; of what goes wrong the first few are printed with their seeds.

    With `only`, these files; what is `known` of the others stays.
    """
    known = known if known and only else {"files": {}, "wrong": []}
    found: dict[str, Any] = dict(known["files"])
    wrong = [line for line in known["wrong"] if line.rpartition(", seed ")[0] not in only]
    for name, target in targets(root).items():
        if only and name not in only:
            continue
        tally, began = Tally(), time.perf_counter()
        for seed in range(examples):
            spoil_once(target, seed, root / "spoilt", tally)
        found[name] = {**tally.to_json(), "listed": not target.unlisted, "seconds": time.perf_counter() - began}
        wrong += [f"{name}, seed {line}" for line in tally.first[:5]]
        print(f"{name}: {found[name]}", *tally.first[:5], sep="\n  ", flush=True)
    totals = {key: sum(each[key] for each in found.values()) for key in ("spoilt", *OUTCOMES, "slow")}
    return {"files": found, **totals, "wrong": wrong}


def spoil_once(target: Target, seed: int, folder: Path, tally: Tally) -> None:
    began = time.perf_counter()
    try:
        outcome, note = attempt(target, random.Random(seed), folder), ""
    except (Exception, Hung) as error:
        outcome, note = TRACEBACK, f"{type(error).__name__} {' '.join(str(error).split())[:150]}"
    tally.outcomes[outcome] += 1
    tally.slow += time.perf_counter() - began > SECONDS
    if outcome in (MISREAD, TRACEBACK):
        tally.first.append(f"{seed}: {outcome} {note}".strip())


def main() -> int:
    parser = argparse.ArgumentParser(description="Spoilt files and killed runs.")
    parser.add_argument("parts", nargs="*", help="fuzz, kills; both unless told")
    parser.add_argument("--examples", type=int, default=700, help="of every kind of file")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--times", type=int, default=16, help="each command is killed")
    parser.add_argument("--only", nargs="*", default=(), help="commands, or files; what is known of the others stays")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    known = json.loads(asked.results.read_text()) if asked.results.is_file() else {"benchmark": "hardening"}
    for part in asked.parts or ("fuzz", "kills"):
        place = MEMORY if part == "fuzz" and MEMORY.is_dir() else None
        with tempfile.TemporaryDirectory(prefix="hardening-", dir=place) as scratch:
            root = Path(scratch)
            before = known.get(part, {})
            if part == "fuzz":
                known[part] = fuzz(asked.examples, root, asked.only, before)
            else:
                known[part] = kills(asked.times, root, asked.only, before.get("jobs", {}))
        write_json(asked.results, known, indent=1)
    misread = any(known.get("fuzz", {}).get(name, 0) for name in (MISREAD, TRACEBACK, "slow"))
    return 1 if misread or harmed(known.get("kills", {})) else 0


if __name__ == "__main__":
    raise SystemExit(main())
