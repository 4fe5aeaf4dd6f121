"""The report as a model card: what was done, what it cost, how to load it."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import yaml
from jinja2 import Environment

from slimformer.evaluate.elsewhere import elsewhere_line
from slimformer.evaluate.report import Report
from slimformer.evaluate.verdict import verdict
from slimformer.models.registered import is_own
from slimformer.report.heads import fresh_head_line
from slimformer.report.names import is_hub_id, last_name, measured_line, source_names

TASKS = {
    "CausalLM": "text-generation", "LMHead": "text-generation", "MaskedLM": "fill-mask",
    "SequenceClassification": "text-classification", "ImageClassification": "image-classification",
    "TokenClassification": "token-classification", "QuestionAnswering": "question-answering",
    "CTC": "automatic-speech-recognition", "SpeechSeq2Seq": "automatic-speech-recognition",
    "AudioClassification": "audio-classification",
}  # fmt: skip


def model_card(report: Report, *, folder: str) -> str:
    """README.md for a checkpoint: YAML header for the hub, then text. Numbers come from the report only."""
    template = (resources.files("slimformer.report") / "card.md.jinja").read_text()
    environment = Environment(autoescape=False, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    header = yaml.safe_dump(card_header(report), sort_keys=False, allow_unicode=True).strip()
    values: dict[str, Any] = {
        "report": report,
        "header": header,
        "title": last_name(report.model),
        "folder": json.dumps(folder, ensure_ascii=False),  # it stands in Python code
        "verdict": verdict(report.to_dict()),
        "narrow": f", {bits}-bit" if (bits := (report.quantization or {}).get("bits")) else "",
        "vocabulary_line": vocabulary_line(report.vocabulary) if report.vocabulary else "",
        "ends_line": ends_line(report.ends) if report.ends else "",
        "experts_line": experts_line(report.experts) if report.experts else "",
        "size_line": size_line(report.sizing or {}),
        "embedding_line": embedding_line(report.embedding) if report.embedding else "",
        "narrow_line": narrow_line(report.quantization) if report.quantization else "",
        "replaced_line": replaced_line(report.replaced) if report.replaced else "",
        "healed": healed_line(report.healing) if report.healing else "",
        "fresh_head": fresh_head_line(report.head) if report.head else "",
        "data": source_names(report.data.get("name", "")),
        "measured": measured_line({**report.data, "read_as": ()}, report.metrics),
        "broad": bool(report.data.get("mixed") or (report.data.get("reading") or {}).get("broad")),
        "notes": _notes(report),
        "opened": opening_line(report.opening),
        "elsewhere": elsewhere_line(report.elsewhere) if report.elsewhere else "",
        "unnamed": not (report.data.get("reading") or {}).get("named", True),
    }
    return environment.from_string(template).render(
        load_class=report.load_class, own_architecture=is_own(report.model_type), **values
    )


def _notes(report: Report) -> list[str]:
    """What there was to say, without the places of models and data: they are nobody's business."""
    data = str(report.data.get("name", ""))
    places = {report.model: last_name(report.model), data: source_names(data)}
    notes = list(report.warnings)
    for place, name in places.items():
        notes = [note.replace(place, name) if place else note for note in notes]
    return notes


def opening_line(opening: dict[str, Any]) -> str:
    """How the dense model was opened, where it was not opened as usual."""
    at = " ".join(f"{name} {opening[name]}" for name in ("revision", "commit") if opening.get(name))
    parts = [
        f"at {at}" if at else "",
        f"as a {opening['model_class']}" if opening.get("model_class") else "",
        f"with the family of {opening['family']}" if opening.get("family") else "",
        "with code of its config and tokenizer trusted (trust_remote_code)" if opening.get("trust_remote_code") else "",
    ]
    line = ", ".join(part for part in parts if part)
    return f"The original was opened {line}." if line else ""


def vocabulary_line(facts: dict[str, Any]) -> str:
    """What became of the tokens, and of texts, in one sentence."""
    before, after = facts["tokens_per_text"]
    longer = f"{100 * (after / before - 1):+.1f} %" if before else "no more"
    sizes = " → ".join(f"{size / 1e6:.1f} MB" for size in facts["bytes"])
    return (
        f"Vocabulary: {facts['keep']:,} of {facts['of']:,} tokens, the most frequent of {facts['on']}; they cover "
        f"{100 * facts['covered']:.1f} % of held-out text, which takes {after:.1f} tokens a text ({longer}; before "
        f"{before:.1f}). Embedding and head: {sizes}.{_refit_line(facts.get('refit'))}"
    )


def ends_line(facts: dict[str, Any]) -> str:
    """The rank of the tables at both ends, what it costs and what it saves, in one sentence."""
    sizes = " → ".join(f"{size / 1e6:.1f} MB" for size in facts["bytes"])
    left = ", ".join(f"{100 * facts['error'][end]:.1f} % ({end})" for end in facts["ends"])
    return (
        f"Ends: {' and '.join(facts['ends'])} of rank {facts['rank']:,} in place of {facts['of']:,}; held-out error "
        f"{left} of the energy, divergence by this alone {facts['harm']:.4f}. Embedding and head: {sizes}."
    )


def experts_line(facts: dict[str, Any]) -> str:
    """What became of experts, in one sentence."""
    others = "are gone" if facts["instead"] == "drop" else "were merged into the nearest of these"
    return (
        f"Experts: {facts['keep']} of {facts['of']} stay in every block, those worth most by {facts['by']}, and the "
        f"others {others}; a token still goes to {facts['active']}."
    )


def size_line(sizing: Mapping[str, Any]) -> str:
    """What a size was spent on, where tokens went for it; empty where none did."""
    chosen, losses = sizing.get("chosen"), sizing.get("losses")
    if not chosen or not losses or losses["fewer"] is None:
        return ""
    stored = "as they were" if chosen["bits"] is None else f"in {chosen['bits']} bits"
    tables = " with the tables" if chosen["tables"] else ""
    room, few, whole = f"{sizing['size'] / 1e6:.3g} MB", f"{losses['fewer']:.3g}", f"{losses['all']:.3g}"
    return (
        f"Size: {room} take {chosen['tokens']:,} tokens and {100 * chosen['params']:.0f} % of the blocks, "
        f"{stored}{tables}; on the texts this was chosen on it loses {few}, with all tokens {whole}."
    )


def _refit_line(refit: dict[str, Any] | None) -> str:
    """What refitting pieces gained where it was chosen."""
    if not refit or refit["ridge"] == "none":
        return ""
    before, after = refit["losses"]["none"], refit["losses"][refit["ridge"]]
    return f" Pieces refitted for {refit['words']:,} words: loss on the select split {before:.4f} → {after:.4f}."


def embedding_line(facts: dict[str, Any]) -> str:
    """What shorter embeddings keep, in one sentence."""
    return (
        f"Embeddings of sentences: {facts['dim']:,} of {facts['of']:,} numbers, by a Dense module after the pooling; "
        f"they keep {100 * facts['energy']:.1f} % of held-out embeddings, and cosines of pairs move by "
        f"{facts['cosine_change']:.3f} (root mean square)."
    )


def replaced_line(facts: dict[str, Any]) -> str:
    """Which feed-forward parts gave way to what, and what all of them together did where they were looked at."""
    gone = [each for each in facts["blocks"] if each["replaced"]]
    share = sum(each["macs"] for each in gone) / sum(each["of_macs"] for each in gone)
    kind = {"linear": "a linear map", "scale-free": "a linear map that is right up to scale"}
    names = {"sphere": "zonal", "arc-cosine": "arc-cosine", "fourier": "Fourier", "harmonics": "harmonic"}
    instead = kind.get(facts["by"]) or f"a linear map with {names[facts['by']]} features of the sphere"
    many = len(gone) > 1
    return (
        f"The feed-forward part{'s' * many} of block{'s' * many} {', '.join(str(each['block']) for each in gone)} "
        f"{'are' if many else 'is'} replaced by {instead}, at {100 * share:.0f} % of the MACs: {facts['harm_is']} "
        f"{facts['harm']:.4f} on {facts['tokens']:,} tokens of the select split."
    )


def narrow_line(facts: dict[str, Any]) -> str:
    """Bits or zeros in one sentence, and what is needed to read them."""
    grouped = " Attention runs over groups of keys once slimformer is imported." if facts.get("grouped_keys") else ""
    if "pattern" in facts:
        share = f"{100 * facts['zeros']:.0f} %"
        return f"{share} of the weights of linear layers in blocks are zero ({facts['pattern']}).{grouped}"
    what = "Linear layers in blocks and the tables at both ends" if facts.get("tables") else "Linear layers in blocks"
    return (
        f"{what} are stored with {facts['bits']} bits a weight "
        f"({facts['bits_per_weight']:.2f} with the steps); transformers reads them with the package "
        f"compressed-tensors, slimformer by itself.{grouped}"
    )


def healed_line(section: dict[str, Any]) -> str:
    """What learning from the dense model won, on which text."""
    if not section["kept"]:
        return "healed: nothing was better on held-out text, so the weights are those from before"
    parts = []
    for where, each in section["won"].items():
        bounds = "" if each["low"] is None else f" ({each['low']:+.3g} … {each['high']:+.3g})"
        text = "on text like the data" if where == "home" else "on other text"
        parts.append(f"{each['metric']} {each['before']:.3g} → {each['after']:.3g}{bounds} {text}")
    return f"healed: {', '.join(parts)}; 95 % intervals of the change"


def card_header(report: Report) -> dict[str, Any]:
    """What the hub reads: library, tags, task, what it was made from, metrics."""
    header: dict[str, Any] = {"library_name": "transformers", "tags": ["slimformer", "compressed", "pruned"]}
    header["pipeline_tag"] = task_of(report.load_class)
    if is_hub_id(report.model):
        header["base_model"] = report.model
    index = _model_index(report)
    return {**header, "model-index": index} if index else header


def _model_index(report: Report) -> list[dict[str, Any]]:
    """The metrics as the hub reads them: of the small model, on data that were neither fitted nor used to choose."""
    measured = [each for each in report.metrics if each.get("small") is not None and math.isfinite(each["small"])]
    if not measured:
        return []
    name = html.escape(source_names(report.data.get("name", "")), quote=False) or "held-out data"
    metrics = [
        {"type": re.sub(r"\W+", "_", metric["name"].lower()), "name": metric["name"], "value": float(metric["small"])}
        for metric in measured
    ]
    result = {
        "task": {"type": task_of(report.load_class)}, "dataset": {"type": name, "name": name, "split": "report"},
        "metrics": metrics,
    }  # fmt: skip
    return [
        {
            "name": f"{html.escape(last_name(report.model), quote=False)} at {100 * report.macs_kept:.0f} %",
            "results": [result],
        }
    ]


def task_of(load_class: str) -> str:
    """What the hub calls the task of a class of models."""
    return next((task for part, task in TASKS.items() if part in load_class), "feature-extraction")
