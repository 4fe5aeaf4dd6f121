"""The tables of `quantization.py`."""

from __future__ import annotations

from typing import Any

from tables import markdown

ORDER = {"": "", "nearest": "nearest", "gptq": "compensated", "magnitude": "magnitude", "sparsegpt": "compensated"}


def quantization(results: dict[str, Any], report: str | None) -> str:
    """All models; with a report `gains`, `equal` or `reload`: compensation, equal bytes, the saved models."""
    return {"gains": _gains, "equal": _equal, "reload": _reload}.get(report or "", _rows)(results)


def _rows(results: dict[str, Any]) -> str:
    settings = results["settings"]
    rows = [
        [
            row["cut"], row["stored"], ORDER[row["method"]], f"{row['bits']:.2f}", f"{row['bytes'] / 1e6:.1f}",
            f"{row['ppl']:.3f}", f"{row['excess']:+.4f}",
            f"{row['excess_low']:+.4f} … {row['excess_high']:+.4f}",
        ]
        for row in results["rows"]
    ]  # fmt: skip
    header = ["model", "stored in", "how", "bits / dense weight", "MB", "perplexity", "nats more", "95 %"]
    return (
        f"{settings['model']}, {settings['report']} ({settings['report_tokens']:,} held-out tokens; rounded on "
        f"{settings['fit_tokens']:,} others), groups of {settings['group']}. Bits are those of the linear layers in "
        f"blocks, spread over the weights the dense blocks have; MB are all weights, with embeddings in float32.\n\n"
        f"{markdown(header, rows)}"
    )


def _gains(results: dict[str, Any]) -> str:
    rows = [
        [
            each["cut"], each["stored"], each["against"], f"{each['gap']:+.4f}",
            f"{each['low']:+.4f} … {each['high']:+.4f}",
        ]
        for each in results["gains"]
    ]  # fmt: skip
    return markdown(["model", "stored in", "against", "nats saved by compensation", "95 %"], rows)


def _equal(results: dict[str, Any]) -> str:
    rows = [
        [
            each["one"], each["other"], " and ".join(f"{size / 1e6:.1f}" for size in each["bytes"]),
            f"{each['gap']:+.4f}", f"{each['low']:+.4f} … {each['high']:+.4f}",
        ]
        for each in results["equal_bytes"]
    ]  # fmt: skip
    return markdown(["cut", "against", "MB", "nats more", "95 %"], rows)


def _reload(results: dict[str, Any]) -> str:
    rows = [
        [name, f"{each['bytes_on_disk']:,}", f"{each['largest_difference']:.1e}"]
        for name, each in results["reload"].items()
    ]
    return markdown(["model, 4 bits", "bytes on disk", "largest difference of logits in a fresh process"], rows)
