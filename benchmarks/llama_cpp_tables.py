"""Dense and cut files in llama.cpp, as a table."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

HEAD = [
    "file", "MB", "same words", "perplexity in transformers", "in llama.cpp", "prompt, tokens/s", "decode, tokens/s",
]  # fmt: skip


def llama_cpp(results: dict[str, Any], part: str | None) -> str:
    """A row for each file, dense above cut."""
    if part is not None:
        raise NothingToRender(f"llama_cpp.json has no part {part!r}")
    rows = [[name, *_row(found)] for name, found in results["files"].items()]
    heads, neurons = ([str(sizes[i]) for sizes in results["blocks"]] for i in (0, 1))
    said = (
        f"{results['model']}, dense and at {results['macs']:.1%} of its block MACs ({', '.join(heads)} heads and "
        f"{', '.join(neurons)} neurons in its blocks), in llama.cpp (xllamacpp {results['versions']['xllamacpp']}), "
        f"{results['threads']} thread; prompts of {results['prompt']} tokens and {results['new_tokens']} after them, "
        f"medians and quartiles of {results['rounds']} rounds, in which files take turns; other work ran beside it"
    )
    return f"{said}:\n\n{markdown(HEAD, rows)}"


def _row(found: dict[str, Any]) -> list[str]:
    same = f"{found['same']} of {found['texts']}"
    if found["same"] < found["texts"]:
        same += f" (parted at a gap of {found['nearest']:.2g})"
    rates = [_rate(found[f"{phase}_per_second"]) for phase in ("prompt", "decode")]
    nats = [f"{found['perplexity']:.3f}", f"{found['perplexity_there']:.3f}"]
    return [f"{found['bytes'] / 1e6:.1f}", same, *nats, *rates]


def _rate(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"**{middle:,.0f}** ({low:,.0f} – {high:,.0f})"
