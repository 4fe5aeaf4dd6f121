"""A model that is walked block by block from its files becomes what it becomes in memory."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import slimformer
from families import VOCABULARY, tiny
from slimformer.calibrate.collect import collect
from slimformer.calibrate.gather import gather
from slimformer.cli.inputs import size_in_bytes
from slimformer.compress import compress_streamed, foresee_streamed
from slimformer.errors import ModelBroken, NotEnoughMemory, OutputExists, SlimformerError, UnknownMethod
from slimformer.models import describe
from slimformer.models.architecture import fingerprint
from slimformer.models.load import load_model
from slimformer.models.state_store import StateStore
from slimformer.models.stream import sketch
from slimformer.models.weight_files import INDEX
from slimformer.recipe import load_recipe, with_arguments
from slimformer.steps.memory import anonymous_memory
from slimformer.steps.on_disk import OnDisk
from slimformer.steps.streaming_job import job_for, work_folder
from terminal import compress, done, refused

HERE = Path(__file__).parent
ROOM = 8 * 10**9
IDS = torch.randint(5, VOCABULARY, (60, 16), generator=torch.Generator().manual_seed(3))


def saved(folder: Path, model_type: str, dtype: torch.dtype = torch.float32, **how: Any) -> Path:
    """A tiny model in several files."""
    model = tiny(model_type, **how)
    model.to(dtype)
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / INDEX).is_file()
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def assert_same_bits(folder: Path, small: torch.nn.Module) -> None:
    """Every weight of a saved model is that of a model in memory."""
    ours, theirs = slimformer.load(folder).state_dict(), small.state_dict()
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name].to(ours[name].dtype))]
    assert not different


@pytest.mark.parametrize(
    ("model_type", "recipe", "format", "refined"),
    [
        ("llama", "balanced", "ragged", True),
        ("bert", "balanced", "ragged", True),
        ("gpt2", "balanced", "ragged", True),
        ("opt", "balanced", "ragged", False),
        ("qwen3", "bypass", "ragged", True),
        ("gpt2", "linear-mlp", "ragged", True),
        ("llama", "balanced", "plain", True),
        ("llama", "uniform", "plain", False),
        ("bert", "stat", "ragged", False),
    ],
)
def test_block_by_block_gives_the_bits_that_come_out_in_memory(tmp_path, model_type, recipe, format, refined):
    """Weights are mapped and states go through files, but every product is of the same numbers in the same order."""
    folder = saved(tmp_path / "dense", model_type)
    how: dict[str, Any] = {"macs": 0.5, "recipe": recipe, "format": format, "refine": refined}
    found = compress_streamed(folder, tmp_path / "small", IDS, memory=ROOM, verify=False, **how)
    whole = slimformer.compress(folder, IDS, timing=False, **how)
    assert found.plan == whole.plan
    assert found.report.correction == whole.report.correction
    assert_same_bits(tmp_path / "small", whole.model)
    assert not work_folder(tmp_path / "small").exists()
    for ours, theirs in zip(found.report.metrics, whole.report.metrics, strict=True):
        assert ours["name"] == theirs["name"]
        assert ours["small"] == pytest.approx(theirs["small"], rel=1e-4, abs=1e-6)
        assert ours["dense"] == pytest.approx(theirs["dense"], rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model_type", ["llama", "bert", "gpt2"])
def test_half_precision_gives_the_bits_that_come_out_in_memory(tmp_path, model_type):
    folder = saved(tmp_path / "dense", model_type, torch.bfloat16)
    compress_streamed(folder, tmp_path / "small", IDS, memory=ROOM, macs=0.5, verify=False)
    result = slimformer.compress(folder, IDS, macs=0.5, timing=False)
    result.save(tmp_path / "other", verify=False)
    ours, theirs = weights(tmp_path / "small"), weights(tmp_path / "other")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_correction_that_is_taken_back_leaves_the_cut(tmp_path, monkeypatch):
    monkeypatch.setattr("slimformer.rewrite.refine._uncorrected_harm", lambda *_: -1.0)  # nothing is that good
    folder = saved(tmp_path / "dense", "llama")
    found = compress_streamed(folder, tmp_path / "small", IDS, memory=ROOM, macs=0.5, verify=False)
    assert [each["site"] for each in found.report.correction] == ["all"]
    assert_same_bits(tmp_path / "small", slimformer.compress(folder, IDS, macs=0.5, refine=False, timing=False).model)


def test_moments_are_the_same_to_the_last_bit(tmp_path):
    skeleton = sketch(saved(tmp_path / "dense", "llama")).read_outside()
    whole = load_model(tmp_path / "dense").model
    data = {"fit": gather(IDS, whole, None, describe(whole)).splits["fit"]}
    blocks = list(collect(whole, describe(whole), data))
    with job_for(tmp_path / "small", {}) as job:
        there = OnDisk(skeleton, job, skeleton.fingerprint())
        for block in collect(skeleton.loaded.model, skeleton.architecture, data, residence=there):
            there.states.job.finish("calibrate", None)
            there.states.store.flush(block.block + 1)
            for site, splits in block.sites.items():
                assert torch.equal(splits["fit"].gram, blocks[block.block].sites[site]["fit"].gram)
            if block.block == 1:
                break
        (last,) = collect(skeleton.loaded.model, skeleton.architecture, data, residence=there)
    assert torch.equal(
        last.sites["blocks.2.ffn.hidden"]["fit"].gram, blocks[2].sites["blocks.2.ffn.hidden"]["fit"].gram
    )


@pytest.mark.parametrize("model_type", ["llama", "opt", "gpt2", "bert", "qwen3"])
def test_a_skeleton_is_the_model_without_its_blocks(tmp_path, model_type):
    skeleton = sketch(saved(tmp_path / "dense", model_type)).read_outside()
    whole = load_model(tmp_path / "dense").model
    blocks = skeleton.architecture.stacks[0].path
    for name, parameter in skeleton.loaded.model.named_parameters():
        assert parameter.is_meta == name.startswith(blocks)
    with skeleton.resident(1):
        there = skeleton.loaded.model.get_submodule(f"{blocks}.1").state_dict()
        assert all(torch.equal(there[name], t) for name, t in whole.get_submodule(f"{blocks}.1").state_dict().items())
    assert all(p.is_meta for p in skeleton.loaded.model.get_submodule(blocks).parameters())
    buffers = dict(skeleton.loaded.model.named_buffers())
    assert all(torch.equal(buffers[name], buffer) for name, buffer in whole.named_buffers())
    assert skeleton.fingerprint() == fingerprint(whole)


def test_tied_words_are_written_once_and_half_precision_stays(tmp_path):
    folder = saved(tmp_path / "dense", "llama", torch.bfloat16, tie_word_embeddings=True)
    compress_streamed(folder, tmp_path / "small", IDS, memory=ROOM, macs=0.6, recipe="uniform", format="plain")
    found = weights(tmp_path / "small")
    assert "lm_head.weight" not in found
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    stock, info = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "small", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert stock.lm_head.weight is stock.model.embed_tokens.weight
    assert torch.equal(found["model.embed_tokens.weight"], weights(folder)["model.embed_tokens.weight"])


def test_a_ragged_result_opens_like_any_other(tmp_path):
    folder = saved(tmp_path / "dense", "llama")
    found = compress_streamed(folder, tmp_path / "small", IDS, memory=ROOM, macs=0.5, recipe="balanced", verify=False)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    assert sum(p.numel() for p in model.parameters()) == found.report.small.params
    assert "block by block" in found.report.warnings[0]
    report = json.loads((tmp_path / "small" / "report.json").read_text())
    assert report["metrics"][0]["name"] == "perplexity"
    sketch(tmp_path / "small").read_outside()  # and may be streamed again


def killed_in(name: str, steps: int, *arguments: Any, **how: Any) -> None:
    """Compress in a process of its own, which is killed after so many steps of a stage."""
    seen: list[int] = []

    def progress(stage: str, done: int, _total: int) -> None:
        seen.extend([done] if stage == name and done > 0 else [])
        if len(seen) == steps:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            compress_streamed(*arguments, progress=progress, **how)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_killed_run_goes_on_and_gives_the_same_bytes(tmp_path):
    folder = saved(tmp_path / "dense", "llama")
    how: dict[str, Any] = {"memory": ROOM, "macs": 0.5, "recipe": "balanced", "verify": False}
    stages = ("metric", "calibrate", "profile", "probe", "apply", "refine")
    kills = [(stage, 2) for stage in stages] + [("refine", 1), ("evaluate", 1)]
    for name, wanted in (("whole", []), ("killed", kills)):
        for stage, steps in wanted:
            killed_in(stage, steps, folder, tmp_path / name, IDS, **how)
            assert not (tmp_path / name).exists()
        said: list[str] = []
        compress_streamed(folder, tmp_path / name, IDS, **how, say=said.append)
        assert said[-1].startswith("going on with" if wanted else "working in")
    files = sorted(file.name for file in (tmp_path / "whole").glob("*"))
    assert files == sorted(file.name for file in (tmp_path / "killed").glob("*"))
    for name in files:
        if name.endswith((".safetensors", ".json")) and name not in ("report.json", "slimformer.json"):
            assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes(), name


@pytest.mark.slow
@pytest.mark.parametrize("refined", [False, True])
def test_the_estimate_of_memory_is_kept(tmp_path, refined):
    """In a process of its own: what other tests have left in the allocator is not known to an estimate."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import test_streaming as t; from pathlib import Path; "
    code += f"t.keep_to_the_estimate(Path({str(tmp_path)!r}), {refined})"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr


def keep_to_the_estimate(tmp_path: Path, refined: bool) -> None:
    """A layer so wide that its matrices are given back to the system when they are freed."""
    folder = saved(
        tmp_path / "dense", "llama", num_hidden_layers=1, hidden_size=64, intermediate_size=2112,
        max_position_embeddings=128,
    )  # fmt: skip
    ids = torch.randint(5, VOCABULARY, (80, 64), generator=torch.Generator().manual_seed(3))
    ctypes.CDLL(None).mallopt(-3, 2**22)  # M_MMAP_THRESHOLD: matrices here are smaller than those it is about
    over, most = threading.Event(), [0]

    def look() -> None:
        while not over.wait(0.01):
            most[0] = max(most[0], anonymous_memory())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        found = compress_streamed(
            folder, tmp_path / "small", ids, memory=ROOM, params=0.9, recipe="uniform", refine=refined, verify=False
        )
    finally:
        over.set()
        thread.join()
    print(f"peak {most[0]:,}, estimate {found.estimate}, there before {found.estimate.before:,}")
    assert most[0] <= found.estimate.peak


def test_too_little_memory_is_refused_before_the_work(tmp_path):
    folder = saved(tmp_path / "dense", "llama")
    with pytest.raises(NotEnoughMemory, match=r"memory=… 50 MB is not enough: this model needs .* at most, in"):
        compress_streamed(folder, tmp_path / "small", IDS, memory=50 * 10**6, macs=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_two_processes_do_not_make_the_same_result(tmp_path):
    with job_for(tmp_path / "small", {"a": 1}) as job:
        assert not job.resumed
        with pytest.raises(OutputExists, match="another process"), job_for(tmp_path / "small", {"a": 1}):
            pass
    (work_folder(tmp_path / "small")).mkdir()
    (work_folder(tmp_path / "small") / "mine.txt").write_text("precious")
    with pytest.raises(OutputExists, match="something else"), job_for(tmp_path / "small", {"a": 1}):
        pass
    assert (work_folder(tmp_path / "small") / "mine.txt").read_text() == "precious"


def test_other_wishes_start_anew(tmp_path):
    for asked, resumed in (({"a": 1}, False), ({"a": 1}, True), ({"a": 2}, False)):
        with pytest.raises(KeyboardInterrupt), job_for(tmp_path / "small", asked) as job:
            assert job.resumed == resumed
            assert job.done("calibrate") == int(resumed)
            job.finish("calibrate", 0.5)
            raise KeyboardInterrupt


@pytest.mark.parametrize("trick", ["../other/x.safetensors", "/etc/passwd", "a\\b.safetensors", "config.json", 7])
def test_an_index_that_points_elsewhere_is_refused(tmp_path, trick):
    folder = saved(tmp_path / "dense", "llama")
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = trick
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(ModelBroken, match="no file of this folder"):
        sketch(folder).read_outside()


def test_names_that_do_not_match_are_refused_with_the_first(tmp_path):
    with pytest.raises(ModelBroken, match=r"cannot be streamed: vit\.layers\.0"):
        sketch(saved(tmp_path / "vit", "vit")).read_outside()
    folder = saved(tmp_path / "dense", "llama")
    index = json.loads((folder / INDEX).read_text())
    file = folder / index["weight_map"].pop("model.norm.weight")
    (folder / INDEX).write_text(json.dumps(index))
    whole = load_file(file)
    save_file({name: tensor for name, tensor in whole.items() if name != "model.norm.weight"}, file)
    with pytest.raises(ModelBroken, match=r"cannot be streamed: model\.norm\.weight is not in its files"):
        sketch(folder).read_outside()
    index["weight_map"]["model.norm.weight"] = file.name
    (folder / INDEX).write_text(json.dumps(index))
    save_file({**whole, "model.norm.weight": torch.full((32,), torch.nan)}, file)
    with pytest.raises(ModelBroken, match="NaN"):
        sketch(folder).read_outside().fingerprint()


def test_recipes_that_need_the_whole_model_are_refused(tmp_path):
    rounded = with_arguments(load_recipe("balanced"), {"bits": 8})
    for recipe in ("lossless", "depth", "long-context", rounded):
        with pytest.raises(UnknownMethod, match="block by block"):
            compress_streamed(saved(tmp_path / "dense", "llama"), tmp_path / "x", memory=ROOM, macs=0.5, recipe=recipe)


def test_a_budget_may_stand_in_the_recipe(tmp_path):
    recipe = with_arguments(load_recipe("uniform"), {"params": 0.6})
    assert foresee_streamed(saved(tmp_path / "dense", "llama"), IDS, memory=ROOM, recipe=recipe).plan.by == "params"
    with pytest.raises(SlimformerError, match="with memory=… give macs=… or params=…"):
        foresee_streamed(tmp_path / "dense", IDS, memory=ROOM, recipe="uniform")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("512 MiB", 2**29), ("3e9", 3 * 10**9), ("1.5g", 15 * 10**8), ("100kb", 10**5), ("123", 123)],
)
def test_sizes_are_read(text, size):
    assert size_in_bytes("--memory", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "nan", "4 parsecs", "1e99GB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(SlimformerError, match="--size"):
        size_in_bytes("--size", text)


def test_states_are_found_again_by_another_process(tmp_path):
    state = torch.randn(2, 3, 4)
    kept = StateStore(tmp_path).keep("fit-00000.dense.1", state)
    assert torch.equal(kept, state)
    assert torch.equal(StateStore(tmp_path).recall("fit-00000.dense.1"), state)
    with torch.inference_mode():
        again = StateStore(tmp_path).keep("fit-00000.dense.1", state[:1])
    assert torch.equal(StateStore(tmp_path).recall("fit-00000.dense.1"), again)
    again.add_(1)  # made in inference mode, and still to be written to


def test_from_the_shell(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr("slimformer.steps.streaming.verify_reload", lambda *_: None)
    out = tmp_path / "small"
    said = done(*compress(shelf / "llama", shelf, out, "--memory", "8GB", "--recipe", "uniform"))
    assert "note: memory:" in said.err
    assert "the same command goes on from there" in said.err
    assert (out / "plan.json").is_file()
    assert not work_folder(out).exists()
    line = refused(*compress(shelf / "llama", shelf, tmp_path / "other", "--memory", "1MB"))
    assert "--memory 1 MB is not enough" in line
    for more in (
        ("--memory", "much"),
        ("--memory", "8GB", "--eval-data", shelf / "text.txt"),
        ("--memory", "8GB", "--bits", 4),
    ):
        refused(*compress(shelf / "llama", shelf, tmp_path / "other", *more))
    assert not (tmp_path / "other").exists()
    assert not work_folder(tmp_path / "other").exists()
