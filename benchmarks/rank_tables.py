"""Tables of attention cut by rank: how good a truncation is, and how fast."""

from __future__ import annotations

from typing import Any

from tables import NothingToRender, markdown

SIDES = {"qk": "queries and keys", "vo": "values and output", "both": "both"}
TRUNCATIONS = {
    ("qk", "plain"): "SVD of W_qᵀW_k (rotary: planes by norm of the weights)",
    ("qk", "column-row"): "MoDeGPT: column–row (rotary: planes by energy)",
    ("qk", "scores"): "whitened, metric of the scores",
    ("qk", "response"): "**whitened, metric of the response**",
    ("vo", "plain"): "SVD of W_oW_v",
    ("vo", "before"): "MoDeGPT: metric before attention",
    ("vo", "after"): "**metric after attention, W_o refitted**",
    ("vo", "eliminated"): "directions eliminated, W_o refitted",
    ("both", "plain"): "SVD of the weights",
    ("both", "modegpt"): "MoDeGPT: column–row, before attention",
    ("both", "ours"): "**response, after attention**",
}


def truncation(results: dict[str, Any], model: str | None) -> str:
    """Methods × shares of the width of a head, for one model or for all of them."""
    if model is not None and model not in results["models"]:
        raise NothingToRender(f"there is no model {model!r}; choose from {', '.join(results['models'])}")
    parts = []
    for name, found in results["models"].items():
        if model in (None, name):
            shares = sorted({row["share"] for row in found["rows"]}, reverse=True)
            cells = {(row["side"], row["method"], row["share"]): _truncated(row, found) for row in found["rows"]}
            rows = [
                [SIDES[side], TRUNCATIONS[side, method], *(cells[side, method, share] for share in shares)]
                for side, method in dict.fromkeys((row["side"], row["method"]) for row in found["rows"])
            ]
            settings = found["settings"]
            unit = "images" if settings["tokens"]["fit"] == settings["examples"]["fit"] else "tokens"
            said = (
                f"{name}, heads of width {found['head_dim']}: relative error of scores / of the output / "
                f"{found['metric']} (dense {_end(found, found['dense'])}; {found['report']}, "
                f"{settings['examples'][found['report']]:,} held-out examples, "
                f"{settings['tokens']['fit']:,} calibration {unit})"
            )
            header = ["cut", "method", *(f"{100 * share:.4g} % of d" for share in shares)]
            parts.append(f"{said}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)


def _truncated(row: dict[str, Any], found: dict[str, Any]) -> str:
    score = "–" if row["side"] == "vo" else f"{row['score_error']:.2g}"
    return f"{score} / {row['output_error']:.2g} / {_end(found, row['end'])}"


def _end(found: dict[str, Any], value: float) -> str:
    return f"{value:.4g}" if found["metric"] == "perplexity" else f"{value:.3f}"


def attention_speed(results: dict[str, Any], model: str | None) -> str:
    """Latency ratios of attention by rank, prefill and decode."""
    parts = []
    for name, found in results["models"].items():
        if model in (None, name):
            phases = {(row["ranks"], row["phase"]): row for row in found["rows"]}
            rows = []
            for ranks in dict.fromkeys(row["ranks"] for row in found["rows"]):
                one, other = phases[ranks, "prefill"], phases[ranks, "decode"]
                cells = [f"{row['latency']:.2f} ({row['of_ideal']:.2f})" for row in (one, other)]
                rows.append(
                    [ranks, f"{one['macs']:.3g}", *cells, f"{one['kv_cache_bytes'] / found['kv_cache_bytes']:.3g}"]
                )
            header = ["ranks", "MACs", "prefill latency (of ideal)", "decode latency (of ideal)", "KV-cache bytes"]
            said = (
                f"Attention of {name}'s sizes against dense attention, ratios within one run, "
                f"{results['length']} tokens, {results['machine']['threads']} threads; "
                f"the dense cache has {found['kv_cache_bytes']:,} bytes"
            )
            parts.append(f"{said}\n\n{markdown(header, rows)}")
    return "\n\n".join(parts)
