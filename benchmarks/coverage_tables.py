"""How often intervals hold the truth, as tables."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

NUMBERS = {"nats": "nats per token, small − dense", "kl": "KL", "agreement": "agreement"}


def coverage(results: dict[str, Any], part: str | None) -> str:
    """`documents`: language models on documents. `examples`: classifiers, one row one example."""
    if part == "documents":
        return f"{results['trials']:,} samples of each:\n\n{markdown(DOCUMENTS, _documents(results['documents']))}"
    if part == "examples":
        return markdown(EXAMPLES, _examples(results["examples"]))
    raise NothingToRender(f"coverage.json has no part {part!r}")


DOCUMENTS = ["model, text", "number", "tokens", "documents", "covered", "bootstrap over windows"]
EXAMPLES = ["examples", "agreement", "covered", "accuracy, small − dense", "covered"]


def _documents(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            f"{row['model']}, {row['source']}", name, f"{each['tokens']:,}", f"{each['documents']:.0f}",
            f"**{each['interval']:.1f} %**", f"{each['bootstrap']:.1f} %",
        ]
        for row in rows
        for name, each in ((NUMBERS[key], found) for key, found in row["covered"].items())
    ]  # fmt: skip


def _examples(rows: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            str(row["examples"]), f"{100 * row['agreement']:.1f} %", f"**{row['covered']['agreement']:.1f} %**",
            f"{100 * row['difference']:+.1f} %", f"**{row['covered']['accuracy']:.1f} %**",
        ]
        for row in rows
    ]  # fmt: skip
