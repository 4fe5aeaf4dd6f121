"""What of every type of models can be cut, proved on tiny random models of each.

    python benchmarks/model_types.py [TYPE ...]       writes benchmarks/results/model_types.json
    python benchmarks/render.py                 then writes the table in docs/models.md

The proofs are those of `slimformer families check`: rows reach their unit alone, nothing changes with all units kept,
copies go without a trace, and a folder whose blocks differ comes back to the same outputs in a fresh process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import transformers

from families import OWN_TYPES, SIZES, tiny
from fresh import Nursery
from slimformer.checkpoint import fresh as start
from slimformer.inspect.proofs import LAWS, prove
from slimformer.models import FAMILIES, describe
from slimformer.models.architecture import HEADS
from slimformer.models.family import AttentionPart
from slimformer.models.ranks import rank_sites

OUT = Path(__file__).parent / "results" / "model_types.json"


def measured(model_type: str) -> dict[str, Any]:
    """Proofs, and what the family allows beyond them."""
    model = tiny(model_type)
    architecture = describe(model)
    proofs = [proof.to_json() for proof in prove(model)]
    offered = {site.kind for site in rank_sites(model, architecture)}
    parts = {site.part.name: site.part for site in architecture}
    heads = [site for site in architecture if site.kind == HEADS]
    return {
        "family": architecture.family.name,
        "proofs": proofs,
        "kinds": {name: "heads" if isinstance(part, AttentionPart) else "neurons" for name, part in parts.items()},
        "fixed": {site.part.name: site.stays for site in architecture if site.stays},
        "ranks": sorted(kind.rpartition(".")[2] for kind in offered),
        "no_ranks": next((site.attention.no_ranks for site in heads if site.attention.no_ranks), ""),
        "plain": [
            name
            for name, part in parts.items()
            if (part.plain_heads if isinstance(part, AttentionPart) else bool(part.keys))
        ],
    }


def main() -> int:
    """Measure the types named, or all; the others stay as they were."""
    known = json.loads(OUT.read_text(encoding="utf-8"))["types"] if OUT.is_file() else {}
    nursery = Nursery()  # forks a fresh process for each folder, which saves seconds for each type
    start.start = nursery.start
    for model_type in sys.argv[1:] or [name for name in SIZES if name in FAMILIES and name not in OWN_TYPES]:
        known[model_type] = measured(model_type)
        failed = [proof for proof in known[model_type]["proofs"] if not proof["holds"]]
        print(model_type, failed or "proved", flush=True)
    nursery.close()
    content = {"benchmark": "model_types", "laws": list(LAWS), "transformers": transformers.__version__, "types": known}
    OUT.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
