"""What other trimmers of vocabularies make of the same encoder, at as many tokens.

    python benchmarks/ends_peers.py --peers FOLDER     FOLDER: pip install --no-deps --target FOLDER hf-trim==3.0.1
                                                       vocabtrimmer==0.0.2 sentencepiece

Each is called as its own page says, in a process of its own, and its last line is kept. Where it does not run, what is
compared is its rule: vocabtrimmer keeps special tokens and the most frequent ones that were seen, and nothing else, so
that what cannot be written is unknown. That is `trimmed`. Results: benchmarks/results/ends.json, `peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from cells import HERE, write_json
from slimformer.calibrate.counts import documents_of, tokens_in_texts
from slimformer.models.load import Loaded, load_model
from slimformer.models.pieces import pieces_of
from slimformer.rewrite.tokenizer import in_new_order, smaller_tokenizer
from slimformer.rewrite.vocabulary import with_tokens

RUNS = {
    "hf-trim 3.0.1": (
        "from slimformer.models.load import load_model; from hftrim.TokenizerTrimmer import TokenizerTrimmer; "
        "t = TokenizerTrimmer(load_model('demo:minilm').processor); t.make_vocab(['some text']); t.make_tokenizer()"
    ),
    "vocabtrimmer 0.0.2": "from vocabtrimmer import VocabTrimmer; VocabTrimmer('MODEL')",
}


def trimmed(dense: Loaded, keep: int) -> Loaded:
    """The encoder with so many tokens by the rule above, its numbers put right."""
    tokenizer = dense.processor
    counts: Counter[int] = tokens_in_texts(documents_of("builtin"), tokenizer)
    special = set(tokenizer.all_special_ids)
    frequent = [token for token, _ in counts.most_common() if token not in special]
    pieces = pieces_of(tokenizer)
    order = in_new_order(pieces, sorted({*special, *frequent[: keep - len(special)]}))
    return replace(dense, model=with_tokens(dense.model, order), processor=smaller_tokenizer(tokenizer, pieces, order))


def outcome(code: str, folder: Path) -> str:
    """ "runs", or the last line a peer says."""
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    place = load_model("demo:minilm").folder
    done = subprocess.run(
        [sys.executable, "-c", code.replace("MODEL", str(place))], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    return "runs" if done.returncode == 0 else done.stderr.strip().splitlines()[-1].split(" (/")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=HERE / "results")
    asked = parser.parse_args()
    results = json.loads((asked.out / "ends.json").read_text("utf-8"))
    results["peers"] = {name: outcome(code, asked.peers) for name, code in RUNS.items()}
    write_json(asked.out / "ends.json", results)
    print(results["peers"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
