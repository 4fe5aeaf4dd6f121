"""Discovery run blind on shipped types, with their files hidden: does it find what the file says, and nothing false?

    python benchmarks/discovery.py [TYPE ...]   writes benchmarks/results/discovery.json
    python benchmarks/render.py                 then writes the table in docs/models.md

Sites are compared by what writes them, what reads them, how many units they have and how many of these share a key, so
names count for nothing. *False* is a site the file does not have; what the file says may not be cut counts as none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import transformers
from transformers import PreTrainedModel

from families import OWN_TYPES, SIZES, tiny
from slimformer.errors import SlimformerError
from slimformer.inspect.discovery import discover
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import HEADS
from slimformer.models.families import bring_family

OUT = Path(__file__).parent / "results" / "discovery.json"
Found = set[tuple[str, str, tuple[str, ...], int, int]]


def cut(model: PreTrainedModel) -> Found:
    """What may be cut: kind, reader, writers, units, and queries that share a key."""
    sites = [site for site in describe(model) if not site.stays]
    kinds = ["heads" if site.kind == HEADS else "neurons" for site in sites]
    writers = [tuple(sorted(writer.module for writer in site.writers)) for site in sites]
    return {(k, s.reader, w, s.units, s.group) for k, s, w in zip(kinds, sites, writers, strict=True)}


def measured(model_type: str) -> dict[str, Any]:
    """Sites of the file, those found, and the reasons for what was not offered."""
    known, model = cut(tiny(model_type)), tiny(model_type)  # one of them as nobody has described it
    others = {name: family for name, family in FAMILIES.items() if family is not FAMILIES[model_type]}
    with patch.dict(FAMILIES, others, clear=True):
        try:
            found = discover(model, fresh=False)
        except SlimformerError as error:
            return _compared(known, set()) | {"refused": [" ".join(str(error).split())]}
        bring_family(model.config, found.family)
        return _compared(known, cut(model)) | {"refused": list(found.refused)}


def _compared(known: Found, found: Found) -> dict[str, Any]:
    of_kind = {kind: {site for site in known if site[0] == kind} for kind in ("heads", "neurons")}
    return {
        "file": {kind: len(sites) for kind, sites in of_kind.items()},
        "found": {kind: len(sites & found) for kind, sites in of_kind.items()},
        "false": len(found - known),
    }


def main() -> int:
    """Measure the types named, or all; the others stay as they were."""
    known = json.loads(OUT.read_text(encoding="utf-8"))["types"] if OUT.is_file() else {}
    for model_type in sys.argv[1:] or [name for name in SIZES if name in FAMILIES and name not in OWN_TYPES]:
        known[model_type] = measured(model_type)
        print(model_type, known[model_type], flush=True)
    content = {"benchmark": "discovery", "transformers": transformers.__version__, "types": known}
    OUT.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
