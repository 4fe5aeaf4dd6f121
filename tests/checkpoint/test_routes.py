"""Every promised way to open a result gives the same outputs, in processes that know nothing of this one."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from families import (
    HEADS,
    MODEL_TYPES,
    RUN_AGAIN,
    STOCK_TYPES,
    attention_part,
    block_sizes,
    feed_forward_part,
    heads,
    tiny,
    tiny_batches,
    tiny_compressed,
    tiny_extractor,
    tiny_image_processor,
    tiny_ragged,
    tiny_tokenizer,
)
from fresh import run
from slimformer.checkpoint.reload import outputs_of
from slimformer.checkpoint.save import Belongings, save
from slimformer.models import FAMILIES, describe

SMALLEST_PLAIN = {True: 0.5, False: 0.75}  # where the stock config can say "fewer heads", and where it cannot
ATOL = 1e-5
# Every family with the head it is known for, and with one of its others; `auto_map` is tested for all of them.
BEYOND = (("bart", "write"), ("t5", "write"), ("wav2vec2", "spell"), ("hubert", "classify"), ("whisper", "write"))
RAGGED = sorted(
    {(t, heads(t)[0]) for t in STOCK_TYPES} | {(t, head) for t, head in HEADS if t in STOCK_TYPES} | {*BEYOND}
)


def _results() -> Iterator[tuple[str, PreTrainedModel]]:
    for model_type, head in RAGGED:
        macs = 0.75 if (model_type, head) in BEYOND else 0.5
        yield f"ragged-{model_type}-{head}", tiny_ragged(tiny(model_type, head), macs)
    for model_type in (t for t in STOCK_TYPES if attention_part(t).plain_heads or feed_forward_part(t).keys):
        macs = SMALLEST_PLAIN[attention_part(model_type).plain_heads]
        plain = tiny_compressed(tiny(model_type), macs, format="plain")
        yield f"plain-{model_type}-{heads(model_type)[0]}", plain
    for model_type, head in BEYOND:
        yield f"plain-{model_type}-{head}", tiny_compressed(tiny(model_type, head), 0.9, format="plain")


def _belonging(model: PreTrainedModel) -> Any:
    family = FAMILIES[model.config.model_type]
    return tiny_image_processor() if family.image else tiny_extractor(model) if family.sound else tiny_tokenizer()


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """All results saved once, and what a stranger and a friend found in them."""
    root = tmp_path_factory.mktemp("visits") / "folders"
    for name, model in _results():
        save(model, root / name, Belongings(_belonging(model)), verify=False)
        sample = tiny_batches(model, 1, rows=2, seed=7)[0].inputs
        save_file(sample, root / name / "sample.safetensors")
        save_file(outputs_of(model, sample), root / name / "expected.safetensors")
    who = ("stranger", "friend")
    return root, {each: _visit(each, root) for each in who}


def _visit(who: str, root: Path) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_MODULES_CACHE": str(root.parent / f"modules-{who}")}
    if who == "stranger":
        environment.pop("PYTHONPATH", None)
    child = run([Path(__file__).with_name("visitor.py"), who, root], environment, after="transformers", cwd=root)
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads((root.parent / f"{who}.json").read_text())


def _differing(visits: tuple[Path, dict[str, Any]], who: str, route: str, form: str) -> dict[str, str]:
    """Folders of a form that a route opened with an error or to other outputs, and what was wrong."""
    root, found = visits
    wrong = {}
    for folder in sorted(root.glob(f"{form}-*")):
        report = found[who][f"{folder.name} {route}"]
        if "error" in report:
            wrong[folder.name] = report["error"]
            continue
        got, expected = load_file(folder / f"{who}-{route}.safetensors"), load_file(folder / "expected.safetensors")
        if got.keys() != expected.keys():
            wrong[folder.name] = f"{sorted(got)}, not {sorted(expected)}"
        elif not all(torch.allclose(got[key], expected[key], atol=ATOL, rtol=ATOL) for key in expected):
            wrong[folder.name] = f"off by {max(float((got[key] - expected[key]).abs().max()) for key in expected):.2g}"
    return wrong


def test_every_family_and_head_was_visited(visits: tuple[Path, dict[str, Any]]) -> None:
    ragged = {folder.name for folder in visits[0].glob("ragged-*")}
    assert ragged == {f"ragged-{model_type}-{head}" for model_type, head in RAGGED}
    assert len(list(visits[0].glob("plain-*"))) == len(STOCK_TYPES) + len(BEYOND)


def test_plain_results_open_by_stock_transformers_alone(visits: tuple[Path, dict[str, Any]]) -> None:
    assert _differing(visits, "stranger", "stock", "plain") == {}
    assert not visits[1]["stranger"]["slimformer"]["imported"]


def test_ragged_results_open_without_the_package_when_their_code_is_trusted(
    visits: tuple[Path, dict[str, Any]],
) -> None:
    assert _differing(visits, "stranger", "remote", "ragged") == {}


@pytest.mark.parametrize("form", ["ragged", "plain"])
@pytest.mark.parametrize("route", ["package", "load"])
def test_results_open_once_the_package_is_imported(visits: tuple[Path, dict[str, Any]], route: str, form: str) -> None:
    assert _differing(visits, "friend", route, form) == {}


def test_the_class_is_named_like_the_stock_class_on_every_route(visits: tuple[Path, dict[str, Any]]) -> None:
    for found in visits[1].values():
        for name, report in found.items():
            if "class" in report:
                config = json.loads((visits[0] / name.split()[0] / "config.json").read_text())
                assert [report["class"]] == config["architectures"], name


def test_a_ragged_result_is_never_opened_with_wrong_weights(visits: tuple[Path, dict[str, Any]]) -> None:
    """Without the package and without trust there is an error, not a model with random weights."""
    unaided = {name: report["unaided"] for name, report in visits[1]["stranger"].items() if "unaided" in report}
    assert unaided and {name: what for name, what in unaided.items() if what == "opened"} == {}


@pytest.mark.parametrize("who", ["stranger", "friend"])
def test_generation_is_the_same_with_every_cache(visits: tuple[Path, dict[str, Any]], who: str) -> None:
    generated = {name: report["generated"] for name, report in visits[1][who].items() if "generated" in report}
    assert len({name.split()[0] for name in generated}) == 2 * sum(FAMILIES[name].causal for name in MODEL_TYPES)
    for name, by_cache in generated.items():
        assert by_cache["dynamic"] == by_cache["static"] == by_cache["none"], name


@pytest.mark.parametrize("who", ["stranger", "friend"])
def test_pipelines_take_the_folder_by_name(visits: tuple[Path, dict[str, Any]], who: str) -> None:
    piped = {name: report for name, report in visits[1][who].items() if name.endswith("pipeline")}
    beyond = tuple(f"-{model_type}-{head}" for model_type, head in BEYOND)
    assert len(piped) == sum(not folder.name.endswith(("answer", *beyond)) for folder in visits[0].iterdir())
    assert {name: report["error"] for name, report in piped.items() if "error" in report} == {}


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name not in RUN_AGAIN])
def test_ragged_results_really_differ_from_block_to_block(model_type: str) -> None:
    sizes = block_sizes(describe(tiny_ragged(tiny(model_type))))
    assert len({size["heads"] for size in sizes}) > 1 and len({size["neurons"] for size in sizes}) > 1
