"""The table of types of models, from the proofs of `model_types.py`."""

from __future__ import annotations

from typing import Any

from tables import markdown

RANKS = {"qk": "scores", "vo": "values"}


def model_types(results: dict[str, Any], _report: str | None) -> str:
    """One row for each type: what is proved to be cut, and what is not, with the reason."""
    rows = [_row(name, found, set(results["laws"])) for name, found in sorted(results["types"].items())]
    header = ["`model_type`", "family", "heads", "neurons", "ranks of", "plain", "left as it is"]
    return markdown(header, rows)


def _row(name: str, found: dict[str, Any], laws: set[str]) -> list[str]:
    def proved(kind: str) -> str:
        parts = [part for part, its in found["kinds"].items() if its == kind and part not in found["fixed"]]
        proofs = {part: [p for p in found["proofs"] if p["part"] == part] for part in parts}  # in every stack
        whole = all({p["law"] for p in proofs[part]} == laws for part in parts)
        return "proved" if parts and whole and all(p["holds"] for part in parts for p in proofs[part]) else "no"

    plain = dict.fromkeys(found["kinds"][part] for part in found["plain"] if part not in found["fixed"])
    ranks = ", ".join(RANKS[rank] for rank in found["ranks"])
    reasons = [*found["fixed"].values(), *([f"ranks: {found['no_ranks']}"] if found["no_ranks"] else [])]
    return [
        f"`{name}`", found["family"], proved("heads"), proved("neurons"), ranks or "–", ", ".join(plain) or "–",
        "; ".join(dict.fromkeys(reasons)) or "–",
    ]  # fmt: skip


def experts(results: dict[str, Any], _report: str | None) -> str:
    """KL by how many experts stay, which, and what becomes of the others."""
    rows = []
    for keep in dict.fromkeys(row["keep"] for row in results["rows"]):
        here = [row for row in results["rows"] if row["keep"] == keep]
        neurons = next(row for row in here if row["by"] == "balanced")
        least = min(row["kl"] for row in here if row is not neurons)
        for by in dict.fromkeys(row["by"] for row in here if row is not neurons):
            of = {(row["instead"], row["correct"]): row["kl"] for row in here if row["by"] == by}
            cells = [_kl(of[instead, correct], least) for instead in ("drop", "merge") for correct in (False, True)]
            rows.append([f"{keep} of 8", by, f"{here[0]['params']:.2f}", *cells])
        rows.append(
            [
                "8 of 8",
                "`balanced`: neurons, heads, ranks",
                f"{neurons['params']:.2f}",
                "",
                _kl(neurons["kl"], 0),
                "",
                "",
            ]
        )
    header = ["experts", "by", "parameters", "drop", "and correct", "merge", "and correct"]
    dense, tokens = results["dense"]["nats"], results["tokens"]
    what = f"{dense:.3f} nats a byte before; fitted on {tokens['fit']:,} bytes, measured on {tokens['report']:,}"
    return f"{what}:\n\n{markdown(header, rows)}"


def _kl(value: float, least: float) -> str:
    return f"**{value:.4f}**" if value == least else f"{value:.4f}"


def discovery(results: dict[str, Any], _report: str | None) -> str:
    """One row for each type: sites of its file that were found blind, and sites that the file does not have."""
    rows = [_found(name, found) for name, found in sorted(results["types"].items())]
    types = results["types"].values()
    same = sum(found["file"] == found["found"] and not found["false"] for found in types)
    false = sum(found["false"] for found in types)
    header = ["`model_type`", "heads found", "neurons found", "false", "same as the file"]
    table = markdown(header, rows)
    return f"The same sites as the file in {same} of {len(rows)} types; {false or 'no'} false sites.\n\n{table}"


def _found(name: str, found: dict[str, Any]) -> list[str]:
    shares = [f"{found['found'][kind]} of {found['file'][kind]}" for kind in ("heads", "neurons")]
    same = found["file"] == found["found"] and not found["false"]
    return [f"`{name}`", *shares, str(found["false"]), "yes" if same else "no"]
