"""Compressed folders run in the evaluation harness as they are, on a task that needs no network."""

from __future__ import annotations

import importlib.util
import json
import random

import pytest

from families import VOCABULARY
from slimformer.checkpoint.load import load
from terminal import compress, done, texts

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed; pip install lm-eval"
)

TASK = """task: slimformer_words
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{gold}}}}"
metric_list:
  - metric: acc
"""


def write_task(folder):
    """Which of four words comes next? There is no right answer; what counts is that both routes choose alike."""
    draw = random.Random(0)
    rows = [
        {"text": text, "choices": [f"w{i}" for i in draw.sample(range(5, VOCABULARY), 4)], "gold": draw.randrange(4)}
        for text in texts(12, seed=5)
    ]
    file = folder / "words.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    (folder / "words.yaml").write_text(TASK.format(file=file))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("format", ["ragged", "plain"])
def test_the_harness_scores_a_compressed_folder(format, shelf, tmp_path, monkeypatch):
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    done(*compress(shelf / "llama", shelf, tmp_path / "small", "-q", "--format", format, "--no-refine", "--macs", 0.8))
    rows = write_task(tmp_path)
    found = simple_evaluate(
        model="hf",
        model_args={"pretrained": str(tmp_path / "small"), "trust_remote_code": True, "dtype": "float32"},
        tasks=["slimformer_words"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu", batch_size=4, bootstrap_iters=0,
    )  # fmt: skip
    assert found["results"]["slimformer_words"]["acc,none"] == pytest.approx(expected(tmp_path / "small", rows))


def expected(folder, rows) -> float:
    """The same by our own loader: the choice with the highest log-probability after the text."""
    import torch
    from transformers import AutoTokenizer

    model, tokenizer = load(folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)
    right = 0
    for row in rows:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits[0, -1]
        scores = [float(logits[tokenizer.convert_tokens_to_ids(word)]) for word in row["choices"]]
        right += max(range(4), key=scores.__getitem__) == row["gold"]
    return right / len(rows)
