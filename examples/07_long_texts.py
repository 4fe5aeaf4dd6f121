"""Let a trained model read long texts over fewer keys: attention runs over groups, the weights stay as they are.

On built-in text, with an encoder of sentences. `k` groups stand for the keys outside a window around each token.
"""

import slimformer

found = slimformer.attention("demo:minilm", "builtin", lengths=[128], sequences=4)
keys = [layer["suggested_k"] for layer in found["lengths"][0]["layers"]]
print(f"keys that keep 95 % of attention over 128 tokens, layer by layer: {keys}")

for k in (16, 64):
    result = slimformer.compress(
        "demo:minilm", "builtin", recipe="long-context", k=k, tokens=4096, seq_len=128, timing=False
    )
    cosine = next(metric for metric in result.report.metrics if "cosine" in metric["name"])
    print(f"{k:3} groups of keys: {cosine['name']} to the dense model {cosine['small']:.3f}, on held-out text")
