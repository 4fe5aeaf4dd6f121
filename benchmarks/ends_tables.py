"""Vocabulary, widths and bits of a sentence encoder, as tables."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

HEAD = ["", "MB", "STS-B", "difference, 95 %", "tokens per sentence"]
SERVED = ["", "MB", "STS-B", "one sentence at a time", "32 together"]
BITS = ["", "MB", "tokens", "of the blocks", "bits per byte", "perplexity of a byte", "difference to the dense model"]
LANGUAGE = {"smollm2": "SmolLM2-135M, WikiText-2", "stories15M": "stories15M, TinyStories"}
SHOWN = "vocabulary 24,000, 4 bits, tables too"  # what `make demo` makes


def ends(results: dict[str, Any], part: str | None) -> str:
    """All ways, the dense model first; or how fast some of them are, served as ONNX files; or the first of these."""
    if part == "demo":
        return _demo(results)
    if part == "served":
        return "\n\n".join(_served(results, name) for name in results["served"])
    if part == "language":
        return "\n\n".join(_language(results, name) for name in LANGUAGE if name in results["language"])
    if part == "ranks":
        return _ranks(results)
    if part == "peers":
        return markdown(["", "what it says of MiniLM, with transformers 5"], [*results["peers"].items()])
    if part is not None:
        raise NothingToRender(f"ends.json has no part {part!r}; choose from demo, language, peers, ranks, served")
    rows = [[name, *_row(way)] for name, way in results["ways"].items()]
    pairs, tokens = results["pairs"], results["calibration_tokens"]
    return f"STS-B dev, {pairs:,} pairs; {tokens:,} tokens of built-in text:\n\n{markdown(HEAD, rows)}"


def _row(way: dict[str, Any]) -> list[str]:
    low, high = way.get("difference", (None, None))
    gap = "" if low is None else f"{low:+.4f} … {high:+.4f}"
    length = f"{way['tokens']:.1f}" if "tokens" in way else ""
    return [f"{way['mb']:.1f}", f"**{way['spearman']:.4f}**", gap, length]


def _served(results: dict[str, Any], name: str) -> str:
    """One run: the dense model in both runtimes, and a smaller one."""
    run, rows = results["served"][name], []
    for each, found in run["competitors"].items():
        score = f"{found['spearman']:.4f}" if "spearman" in found else f"{results['ways']['dense']['spearman']:.4f}"
        served = f"{each}; int4 file in ONNX Runtime" if each == name else each
        rows.append([served, f"{found['mb']:.1f}", score, *(_speed(found[how]) for how in ("alone", "together"))])
    threads = run["threads"]
    caption = f"Sentences a second on {threads} thread{'s' if threads > 1 else ''}, times dense torch with quartiles:"
    return f"{caption}\n\n{markdown(SERVED, rows)}"


def _language(results: dict[str, Any], name: str) -> str:
    """One language model: all of its ways at one size."""
    rows = []
    for title, row in results["language"][name].items():
        low, high = row["difference"]
        gap = f"{row['bits'] - row['dense']:+.3f}" + ("" if low is None else f" ({low:+.3f} … {high:+.3f})")
        tokens = f"{row['vocabulary']:,}" if row["vocabulary"] else "all"
        kept = f"{row['params']:.2f}"
        rows.append([title, f"{row['mb']:.1f}", tokens, kept, f"**{row['bits']:.3f}**", f"{2 ** row['bits']:.3f}", gap])
    dense = next(iter(results["language"][name].values()))["dense"]
    caption = f"{LANGUAGE[name]} (all of it: {dense:.3f} bits per byte):"
    return f"{caption}\n\n{markdown(BITS, rows)}"


def _ranks(results: dict[str, Any]) -> str:
    """What a language model loses by ranks of its tables, and by other ways, those that cost least first."""
    ways = sorted(results["ranks"].items(), key=lambda way: way[1]["bits"])
    rows = [[name, f"{way['macs']:.3f}", f"{way['params']:.3f}", f"**{way['bits']:+.3f}**"] for name, way in ways]
    return markdown(["", "of all MACs", "of all weights", "bits per byte more"], rows)


def _speed(timing: dict[str, Any]) -> str:
    ratio, low, high = timing["times"]
    quartiles = f" ({low:.1f} – {high:.1f})" if low != high else ""
    return f"{timing['per_second']:.0f}, × {ratio:.1f}{quartiles}"


def _demo(results: dict[str, Any]) -> str:
    """Before and after, for the reader in a hurry."""
    found = results["served"][SHOWN]["competitors"]
    dense = results["ways"]["dense"]["spearman"]
    names = {"dense, torch": "all-MiniLM-L6-v2 in torch", "dense, ONNX Runtime": "the same in ONNX Runtime"}
    names[SHOWN] = "**24,000 tokens, 4 bits, ONNX Runtime**"
    rows = [
        [
            names[each], f"{row['mb']:.1f}", f"{row.get('spearman', dense):.3f}",
            *(f"{row[how]['per_second']:.0f} (× {row[how]['times'][0]:.1f})" for how in ("alone", "together")),
        ]
        for each, row in found.items()
    ]  # fmt: skip
    head = ["", "MB", "STS-B, Spearman", "sentences/s, one at a time", "32 together"]
    return markdown(head, rows)
