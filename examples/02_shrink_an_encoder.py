"""Shrink a sentence encoder and see whether it still finds the same sentences similar."""

import tempfile

import torch
from transformers import AutoTokenizer

import slimformer

SENTENCES = [
    "The cat sleeps on the sofa.",
    "A kitten is napping on the couch.",
    "The central bank raised interest rates.",
    "Borrowing money has become more expensive.",
    "The train to the coast leaves at nine.",
]


@torch.no_grad()
def similarities(model, tokenizer):
    """Cosines of mean-pooled states, the way this encoder is meant to be read."""
    batch = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    pooled = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
    unit = torch.nn.functional.normalize(pooled)
    return unit @ unit.T


with tempfile.TemporaryDirectory() as scratch:
    result = slimformer.compress("demo:minilm", data="builtin", macs=0.7, tokens=8192, timing=False)
    folder = result.save(f"{scratch}/smaller")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    before = similarities(result.loaded.model, tokenizer)
    after = similarities(slimformer.load(folder), tokenizer)

for i, sentence in enumerate(SENTENCES):
    nearest = [int(S[i].index_fill(0, torch.tensor([i]), -1).argmax()) for S in (before, after)]
    print(f"{sentence:45s} nearest before: {nearest[0]}, after: {nearest[1]}")
print(f"mean change of a cosine: {(before - after).abs().mean():.3f}")
for metric in result.report.metrics:
    print(f"{metric['name']} to the dense model, held-out text: {metric['small']:.3f}")
