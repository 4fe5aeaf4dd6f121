"""Shrink a language model to 80 % of its block MACs, save it, load it, let it write. A few minutes on a CPU."""

import tempfile

from transformers import AutoTokenizer

import slimformer

with tempfile.TemporaryDirectory() as scratch:
    result = slimformer.compress("demo:smollm2", data="builtin", macs=0.8, tokens=4096, timing=False)
    folder = result.save(f"{scratch}/smaller")

    model, tokenizer = slimformer.load(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("A list of numbers can be", return_tensors="pt")
    print(tokenizer.decode(model.generate(**ids, max_new_tokens=24, do_sample=False)[0]))
    print(f"kept {result.plan.macs:.1%} of the block MACs, {result.plan.params:.1%} of the block parameters")
