"""Dense and small side by side: from two models and held-out data to a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from slimformer.calibrate.builtin import BUILTIN, names_builtin
from slimformer.calibrate.documents import Document, source_names, weighted
from slimformer.calibrate.gather import CHARACTERS, Data, first_characters, vocabulary
from slimformer.calibrate.recorded import read_again
from slimformer.calibrate.store import Provenance
from slimformer.calibrate.tasks import TASKS
from slimformer.calibrate.text import Batch
from slimformer.errors import PlanDoesNotFit
from slimformer.evaluate.by_text import compare_pair, reads_alike
from slimformer.evaluate.compare import first_tokens
from slimformer.evaluate.data_notes import few_examples, unnamed_data
from slimformer.evaluate.elsewhere import home_and_elsewhere, narrow_notes, other_text
from slimformer.evaluate.report import Footprint, Report
from slimformer.evaluate.report_file import read_report
from slimformer.evaluate.shown import continuations, latency, nearest
from slimformer.evaluate.speed import file_size, parameter_count
from slimformer.files.manifest import require_unchanged
from slimformer.files.reading import read_json
from slimformer.files.versions import versions
from slimformer.messages.progress import Progress, silent
from slimformer.messages.words import option
from slimformer.models import Architecture, Site, describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import Loaded
from slimformer.plan import Plan
from slimformer.plan.cost import Size, block_cost, kv_cache_bytes, outside_macs, path_rank
from slimformer.rewrite.sizes import auto_class


def with_other_data(
    report: Report, loaded: Loaded, small: Loaded, others: Sequence[Data], *, known: dict[str, Any]
) -> Report:
    """The report with the same metrics on other data, e.g. of another domain.

    Of each as many tokens are read as of the report split. Where other data are those that were calibrated on
    (`known`), only what was held out of them.
    """
    rows, notes = [], list(report.warnings)
    for data in others:
        batches, texts, remarks = _unfitted(known, data, small=report.model)
        most = report.data["tokens"]["report"]
        batches, texts = first_tokens(batches, most), first_characters(texts, CHARACTERS * most)
        metrics = [metric.to_json() for metric in compare_pair(loaded, small, batches, texts, data.seq_len)]
        rows.append({
            "name": data.name, "hash": data.hash, "tokens": sum(batch.tokens for batch in batches), "metrics": metrics
        })  # fmt: skip
        notes += [f"{option('eval_data')} {data.name}: {note}" for note in remarks]
    return replace(report, other_data=[*report.other_data, *rows], warnings=notes)


def describe_result(loaded: Loaded, small: PreTrainedModel, plan: Plan, provenance: Provenance | None = None) -> Report:
    """What is known without data: sizes and exact costs, and where the statistics came from, if that is known."""
    architecture, after = describe(loaded.model), describe(small)
    return Report(
        model=loaded.name,
        model_type=architecture.model_type,
        load_class=auto_class(small),
        recipe=plan.recipe,
        format=plan.format,
        budget=plan.budget,
        budget_by=plan.by,
        macs_kept=block_cost(after, plan.seq_len).macs / block_cost(architecture, plan.seq_len).macs,
        seq_len=plan.seq_len,
        dense=_as_stored(loaded, footprint(loaded.model, architecture, plan.seq_len, loaded.dtype)),
        small=footprint(small, after, plan.seq_len, loaded.dtype),
        sites=site_table(architecture, after, dropped_blocks(plan.sizes)),
        data=_calibration_facts(architecture, provenance) if provenance else {},
        versions=versions(),
        warnings=[
            *loaded.notes,
            *plan.notes,
            *(unnamed_data(provenance.reading, provenance.data) if provenance else ()),
        ],
        opening=_opening(loaded),
    )


def _opening(loaded: Loaded) -> dict[str, Any]:
    """What a report says of how the dense model was opened."""
    return {"device": str(loaded.model.device), **loaded.opening}


def measure(report: Report, loaded: Loaded, small: Loaded, data: Data, *, timing: bool, progress: Progress) -> Report:
    """The report with metrics on the report split, which was neither fitted nor used to choose, latency and samples."""
    batches = data.splits["report"]
    progress("evaluate", 0, 3)
    fidelity = compare_pair(loaded, small, batches, data.texts.get("report", []), data.seq_len)
    metrics = [metric.to_json() for metric in fidelity]
    progress("evaluate", 1, 3)
    measured = latency(loaded, small, data) if timing else None
    progress("evaluate", 2, 3)
    samples, alike = continuations(loaded, small), nearest(loaded, small)
    rows = other_text(loaded, small, data)
    progress("evaluate", 3, 3)
    short = home_and_elsewhere(metrics, rows)
    notes = [*report.warnings, *few_examples(metrics, data.unit), *narrow_notes(short, data.name)]
    return replace(
        report, metrics=metrics, latency=measured, samples=samples, neighbours=alike, warnings=notes,
        data=data_provenance(describe(loaded.model), data), other_data=rows, elsewhere=short,
    )  # fmt: skip


def data_provenance(architecture: Architecture, data: Data) -> dict[str, Any]:
    """What a report says of its data: enough for `eval` to read them again and to keep to what was held out."""
    return {
        "name": data.name, "hash": data.hash, "seed": data.seed, "tokens": data.tokens,
        "unit": architecture.family.unit, "document": data.unit, "read_as": list(data.notes),
        "reading": data.reading, "mixed": data.mixed,
    }  # fmt: skip


def _calibration_facts(architecture: Architecture, provenance: Provenance) -> dict[str, Any]:
    """The same from statistics, where data are not at hand."""
    return {**known_data(provenance), "tokens": provenance.tokens, "unit": architecture.family.unit}


def evaluate_pair(
    loaded: Loaded, small: Loaded, data: Data, others: Sequence[Data] = (), *, timing: bool = True,
    progress: Progress = silent,
) -> Report:  # fmt: skip
    """Compare two models on all of `data`; if `small` was calibrated on these data, only on the part held out then."""
    before, after = describe(loaded.model), describe(small.model)
    require_relatives(loaded, small)
    gone = _dropped(small) if after.n_blocks < before.n_blocks else set()
    recorded = _own_file(small, "report.json")
    known = _calibration_data(small)
    batches, texts, notes = _unfitted(known, data, small=small.name)
    origin = _own_file(small, "plan.json").get("fingerprint") or fingerprint(loaded.model)
    one, other = (sum(site.expert is not None for site in each) for each in (before, after))
    # where experts have gone, the plan is of what was left of them
    if origin != fingerprint(loaded.model) and reads_alike(loaded, small) and one == other:
        notes.append(f"{small.name} was made from another model than {loaded.name}")
    share = block_cost(after, data.seq_len).macs / block_cost(before, data.seq_len).macs
    report = Report(
        model=loaded.name, model_type=before.model_type, load_class=auto_class(small.model),
        recipe=recorded.get("recipe", "unknown"), format=recorded.get("format", "unknown"),
        budget=recorded.get("budget", share), macs_kept=share, seq_len=data.seq_len,
        dense=_as_stored(loaded, footprint(loaded.model, before, data.seq_len, loaded.dtype)),
        small=_as_stored(small, footprint(small.model, after, data.seq_len, small.dtype)),
        sites=site_table(before, after, gone),
        versions=versions(), warnings=[*loaded.notes, *small.notes, *notes], opening=_opening(loaded),
    )  # fmt: skip
    held_out = replace(data, splits={**data.splits, "report": batches}, texts={**data.texts, "report": texts})
    report = measure(report, loaded, small, held_out, timing=timing, progress=progress)
    report = replace(report, data={**report.data, "held_out": is_held_out(known, data)})
    return with_other_data(report, loaded, small, others, known=known)


def data_of(small: Loaded, loaded: Loaded, *, seq_len: int | None = None, tokens: int | None = None) -> Data:
    """The data the small model was calibrated on, read again; `evaluate_pair` keeps to what was held out of them."""
    return read_again(
        _calibration_data(small), loaded.model, loaded.processor, owner=small.name, seq_len=seq_len, tokens=tokens
    )


def _calibration_data(small: Loaded) -> dict[str, Any]:
    """What the report of a model says of the data it was calibrated on; nothing where there is none."""
    known = _own_file(small, "report.json").get("data")
    return known if isinstance(known, dict) else {}


def require_relatives(loaded: Loaded, small: Loaded, *, asked: str = "loaded") -> None:
    """Refuse to compare models of which one cannot have come from the other."""
    before, after = describe(loaded.model), describe(small.model)
    kinds = [type(one.model).__name__ for one in (small, loaded)]
    if kinds[0] != kinds[1]:
        raise PlanDoesNotFit(
            f"{small.name} is a {kinds[0]}, {loaded.name} a {kinds[1]}; give the model it came "
            f"from with {option(asked)}"
        )
    depths = (after.n_blocks, after.n_blocks + len(_dropped(small)))  # its own too: compared with itself, or healed
    if before.n_blocks not in depths or before.hidden != after.hidden:
        raise PlanDoesNotFit(
            f"{small.name} has {after.n_blocks} blocks of width {after.hidden}, {loaded.name} has {before.n_blocks} of "
            f"{before.hidden}; give the model it came from with {option(asked)}"
        )
    if not _related_ends(loaded, small, words=before.family.unit == "tokens"):
        raise PlanDoesNotFit(
            f"{small.name} and {loaded.name} differ in vocabulary or labels; give the model it came from "
            f"with {option(asked)}"
        )


def _related_ends(dense: Loaded, small: Loaded, *, words: bool) -> bool:
    """The same labels, and the same tokens, or fewer and a tokenizer that goes with them."""
    labels = [getattr(each.model.config, "num_labels", None) for each in (dense, small)]
    if labels[0] != labels[1] or not words:
        return labels[0] == labels[1]
    sizes = [vocabulary(each.model) for each in (dense, small)]
    return sizes[0] == sizes[1] or (sizes[1] < sizes[0] and _knows_tokens_of(dense.processor, small.processor))


def _knows_tokens_of(dense: Any, small: Any) -> bool:
    """Has one tokenizer lost tokens of the other, and got none of its own?"""
    if dense is None or small is None:
        return False
    known = dense.get_vocab()
    return all(token in known for token in small.get_vocab())


def _unfitted(known: dict[str, Any], data: Data, *, small: str) -> tuple[list[Batch], list[Document], list[str]]:
    """What of `data` a model was not calibrated on, by what is known of the data that were, as batches and as texts,
    and notes on it."""
    if known.get("hash") != data.hash:
        again = _again(_known_places(known), _sources(data.name))
        note = f"{small} was calibrated on documents of {', '.join(again)}, perhaps on some of these"
        return everything(data), _all_texts(data), [note] if again else []
    if known.get("seed") != data.seed:
        raise PlanDoesNotFit(
            f"{small} was calibrated on these data with {option('seed', known.get('seed'))}; use the same seed"
        )
    note = "the model was calibrated on these data, so only the part held out then is used"
    return data.splits["report"], data.texts.get("report", []), [note]


def is_held_out(known: dict[str, Any], data: Data) -> bool:
    """Is what `_unfitted` takes of these data surely not among what was fitted?"""
    return known.get("hash") == data.hash or not _again(_known_places(known), _sources(data.name))


def calibrated_on(small: Loaded, files: Sequence[str]) -> list[str]:
    """A note where the model says that it was calibrated on files it is judged on; `files` are those that were read."""
    again = _again(_known_places(_calibration_data(small)), files)
    return [f"{small.name} was calibrated on {', '.join(again)}: these are not held-out figures"] if again else []


def everything(data: Data) -> list[Batch]:
    """All of data that nothing was fitted on; where the rows of *certify* are of another kind, without them."""
    splits = ("report", "select", "fit", *(() if data.windows else ("certify",)))
    return [batch for split in splits for batch in data.splits[split]]


def _all_texts(data: Data) -> list[Document]:
    """The texts behind `everything`."""
    return [text for split in ("report", "select", "fit") for text in data.texts.get(split, [])]


def held_out_batches(provenance: Provenance, data: Data) -> tuple[list[Batch], list[str]]:
    """Of data that were calibrated on, the part that was held out; of others all of it."""
    batches, _, notes = _unfitted(known_data(provenance), data, small="the model")
    return list(batches), notes


def _sources(name: str) -> list[str]:
    """Files and folders behind the name of data. A data set has a part of its own for evaluation."""
    return [str(part) for part in source_names(name) if str(part) and part not in TASKS]


def known_data(provenance: Provenance) -> dict[str, Any]:
    """What statistics say of their data, as a report says it."""
    return {
        "name": provenance.data,
        "hash": provenance.data_hash,
        "seed": provenance.seed,
        "reading": provenance.reading,
    }


def _known_places(known: Mapping[str, Any]) -> list[str]:
    """Where the data of a report were, from whatever folder that is asked; their name where no place is known."""
    reading = known.get("reading") or {}
    places = reading.get("sources") or _sources(str(known.get("name", "")))
    broad = [BUILTIN] if reading.get("broad") else []  # fitted beside the user's own
    return [*(str(place) for place in map(weighted, places) if place not in TASKS), *broad]


def _again(known: Sequence[str], chosen: Sequence[str]) -> list[str]:
    """Which of the sources asked for are among the known ones, however either is spelt; of folders all is read."""
    places = [_place(part) for part in known]
    builtin = any(map(names_builtin, known))
    return [
        part
        for part in chosen
        if (builtin and names_builtin(part)) or any(_overlap(_place(part), place) for place in places)
    ]


def _place(part: str) -> Path:
    return Path(part).resolve() if Path(part).exists() else Path(part)


def _overlap(one: Path, other: Path) -> bool:
    return one == other or one in other.parents or (other in one.parents and other.is_dir())


def footprint(model: PreTrainedModel, architecture: Architecture, seq_len: int, dtype: torch.dtype) -> Footprint:
    """Exact costs of a model, its weights counted in the precision they are stored in."""
    counts = [parameter_count(model, blocks=stack.layout.blocks) for stack in architecture.stacks]
    return Footprint(
        block_macs=block_cost(architecture, seq_len).macs,
        outside_macs=outside_macs(model, architecture, seq_len),
        params=counts[0].total,
        block_params=sum(count.blocks for count in counts),
        bytes=counts[0].total * dtype.itemsize,
        kv_cache_bytes=kv_cache_bytes(architecture, seq_len, dtype.itemsize),
    )


def foreseen(loaded: Loaded, plan: Plan) -> tuple[Footprint, Footprint]:
    """What the dense model costs, and what the model of a plan will, to the last number. Nothing is made."""
    model, architecture = loaded.model, describe(loaded.model)
    dense = footprint(model, architecture, plan.seq_len, loaded.dtype)
    whole, left = (block_cost(architecture, plan.seq_len, sizes) for sizes in (None, plan.sizes))
    gone, size = whole.params - left.params, loaded.dtype.itemsize
    small = replace(
        dense, block_macs=left.macs, params=dense.params - gone, block_params=dense.block_params - gone,
        bytes=dense.bytes - gone * size, kv_cache_bytes=kv_cache_bytes(architecture, plan.seq_len, size, plan.sizes),
    )  # fmt: skip
    return _as_stored(loaded, dense), small


def _as_stored(loaded: Loaded, size: Footprint) -> Footprint:
    """Bytes as the files have them where weights are packed in fewer bits."""
    place = loaded.folder or loaded.companions
    return replace(size, bytes=file_size(place)) if place and is_stored_packed(loaded) else size


def is_stored_packed(loaded: Loaded) -> bool:
    """Was a model read from weights in fewer bits? In memory they are plain."""
    return "quantization_config" in _own_file(loaded, "config.json")


def site_table(before: Architecture, after: Architecture, gone: Collection[int] = ()) -> list[dict[str, Any]]:
    """What every site keeps; nothing those of blocks that are gone."""
    left = iter([site for site in after if not site.expert])
    experts = {(site.block, site.expert.before): site for site in after if site.expert}

    def now(old: Site) -> Site:
        none = replace(old, units=0, beside=0)
        if old.block in gone:
            return none
        return experts.get((old.block, old.expert.before), none) if old.expert else next(left)

    pairs = [(old, now(old)) for old in before]
    return [
        {
            "site": old.name, "block": old.block, "kind": old.kind, "keep": new.units, "of": old.units,
            "groups": new.units // max(1, new.group), "of_groups": old.units // max(1, old.group), **_ranks(old, new),
        }
        for old, new in pairs
    ]  # fmt: skip


def dropped_blocks(sizes: Mapping[str, Size]) -> set[int]:
    """Blocks of which a plan keeps no head: they are gone, because no attention runs without."""
    none = [name.split(".") for name, size in sizes.items() if name.endswith(".attn.heads") and not size.units]
    return {int(parts[1]) for parts in none}


def _dropped(small: Loaded) -> set[int]:
    """Blocks that were dropped, as the plan in the model's folder says."""
    edits = _own_file(small, "plan.json").get("edits", [])
    try:
        return dropped_blocks({edit["site"]: Size(int(edit["keep"]), 0) for edit in edits})
    except (TypeError, KeyError, ValueError, IndexError):
        return set()


def _ranks(old: Site, new: Site) -> dict[str, int]:
    """Ranks of queries–keys and of values, where these were cut, and of a linear path beside gated neurons; or the MACs
    of what stands for all neurons."""
    if new.kind == "ffn.hidden" and new.fixed:
        return {"replaced": new.fixed.macs}
    if new.beside:
        return {"path": path_rank(new.outer, new.beside)}
    if old.kind != "attn.heads" or [w.rows for w in old.writers] == [w.rows for w in new.writers]:
        return {}
    return {"qk": new.writers[0].rows, "vo": new.writers[2].rows, "of_rank": old.unit}


def _own_file(loaded: Loaded, name: str) -> dict[str, Any]:
    """What the folder of a model says of itself; nothing if it says nothing that can be read."""
    place = loaded.folder or loaded.companions
    if place is not None:
        require_unchanged(place, name)
    try:
        content = read_json(place / name) if place else {}
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    if "slimformer_report" in content and place:
        read_report(place)  # what we print is checked; files of others under that name are not ours to judge
    if "slimformer_plan" in content and place:
        Plan.load(place / name)
    return content
