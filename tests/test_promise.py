"""What is promised of memory is foreseen from shapes, said, and kept."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from families import VOCABULARY, tiny
from residences import OneBlock
from slimformer.calibrate.gather import gather
from slimformer.cli.inputs import size_in_bytes
from slimformer.compress import compress_streamed, foresee_streamed
from slimformer.errors import ModelBroken, NotEnoughMemory, UnknownMethod
from slimformer.models import architecture, describe
from slimformer.models.load import load_model
from slimformer.models.stream import Skeleton, sketch
from slimformer.models.walk import rehearse
from slimformer.plan.memory import Estimate, require_memory
from slimformer.steps import memory as promise
from terminal import compress, done, refused

IDS = torch.randint(5, VOCABULARY, (24, 8), generator=torch.Generator().manual_seed(3))
HERE = Path(__file__).parent


def saved(folder: Path, model_type: str = "llama", dtype: torch.dtype = torch.float32) -> Path:
    model = tiny(model_type)
    model.to(dtype)
    model.save_pretrained(folder)
    return folder


def test_too_little_is_refused_before_a_weight_is_read(tmp_path, monkeypatch):
    folder = saved(tmp_path / "dense", dtype=torch.bfloat16)

    def read(_skeleton: Skeleton) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(Skeleton, "read_outside", read)
    with pytest.raises(NotEnoughMemory, match=r"open .*, read "):
        compress_streamed(folder, tmp_path / "small", IDS, memory=50 * 10**6, macs=0.5)


def test_what_the_data_take_is_measured_before_the_work(tmp_path, monkeypatch):
    measured = iter((10**8, 10**10))
    monkeypatch.setattr(promise, "anonymous_memory", lambda: next(measured))
    with pytest.raises(NotEnoughMemory, match="10 GB are in use"):
        compress_streamed(saved(tmp_path / "dense"), tmp_path / "small", IDS, memory=10**9, macs=0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["dense"]


def test_a_text_that_is_too_long_is_refused_unread(tmp_path):
    with open(tmp_path / "long.txt", "wb") as file:
        file.truncate(10**9)
    with pytest.raises(NotEnoughMemory, match=r"in data .* or less data="):
        foresee_streamed(saved(tmp_path / "dense"), str(tmp_path / "long.txt"), memory=10**9, macs=0.5)


def test_what_is_outside_the_blocks_counts_where_it_is_copied(tmp_path):
    half, single = (sketch(saved(tmp_path / str(dtype), dtype=dtype)) for dtype in (torch.bfloat16, torch.float32))
    assert all(parameter.is_meta for parameter in half.loaded.model.parameters())
    words = VOCABULARY * half.architecture.hidden * 4
    assert half.weights.copied(half.outside, torch.float32) >= 2 * words
    assert single.weights.copied(single.outside, torch.float32) == 0


def test_the_amount_that_is_advised_will_do(tmp_path):
    folder = saved(tmp_path / "dense")
    with pytest.raises(NotEnoughMemory) as found:
        compress_streamed(folder, tmp_path / "small", IDS, memory=50 * 10**6, macs=0.5, recipe="uniform")
    advised = re.search(r"give (\S+ \S+) or more", str(found.value))
    assert advised
    foresee_streamed(folder, IDS, memory=size_in_bytes("--memory", advised[1]), macs=0.5, recipe="uniform")
    compress_streamed(
        folder, tmp_path / "small", IDS, memory=size_in_bytes("--memory", advised[1]), macs=0.5, recipe="uniform",
        refine=False, verify=False,
    )  # fmt: skip


@pytest.mark.parametrize(("phase", "helps"), [("correct", True), ("cut", False), ("open", False), ("outputs", False)])
def test_going_without_correction_is_advised_where_it_helps(phase, helps):
    estimate = Estimate(0, {phase: 10**9, "read": 1}, 1)
    with pytest.raises(NotEnoughMemory) as found:
        require_memory(estimate, 10**6)
    assert ("refine=False" in str(found.value)) == helps
    require_memory(estimate, estimate.enough)


def test_the_hash_of_parts_is_the_hash_of_the_whole(monkeypatch):
    model = tiny("gpt2")
    whole = hashlib.blake2b(f"gpt2 {getattr(model.config, 'rope_parameters', None)}".encode(), digest_size=12)
    for name, parameter in sorted(model.base_model.named_parameters()):
        whole.update(f"{name}{tuple(parameter.shape)}".encode())
        whole.update(parameter.detach().bfloat16().view(torch.int16).numpy().tobytes())
    monkeypatch.setattr(architecture, "PART", 7)
    assert architecture.fingerprint(model) == whole.hexdigest()


def test_states_before_the_first_block_are_in_files(tmp_path):
    model = tiny("llama")
    batches = gather(IDS, model, None, describe(model)).splits["fit"]
    residence = OneBlock(model, tmp_path)
    for stream, other in zip(
        rehearse(model, describe(model), batches, "fit", residence), rehearse(model, describe(model), batches, "fit"),
        strict=True,
    ):  # fmt: skip
        assert stream.state.data_ptr() == residence.states.mapped[f"{stream.name}.start"].data_ptr()
        assert torch.equal(stream.state, other.state)


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_names_that_do_not_matter_are_passed_over(tmp_path, model_type):
    folder = saved(tmp_path / "dense", model_type)
    whole = load_model(folder).model
    file, prefix = folder / "model.safetensors", f"{whole.base_model_prefix}."
    tensors = {name.removeprefix(prefix): tensor for name, tensor in load_file(file).items()}
    old = {"llama": "layers.1.self_attn.rotary_emb.inv_freq", "gpt2": "h.1.attn.bias"}[model_type]
    save_file({**tensors, old: torch.ones(4)}, file, {"format": "pt"})
    skeleton = sketch(folder).read_outside()
    assert skeleton.fingerprint() == architecture.fingerprint(whole)
    with skeleton.resident(1):
        path = skeleton.architecture.blocks[1].path
        here, there = (m.get_submodule(path).state_dict() for m in (skeleton.loaded.model, whole))
        assert here.keys() == there.keys()
        assert all(torch.equal(here[name], there[name]) for name in there)
    tensors.popitem()
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ModelBroken, match="is not in its files"):
        sketch(folder).read_outside()


def test_half_precision_is_refused_from_python_too(tmp_path):
    with pytest.raises(UnknownMethod, match="bfloat16 is for accelerators"):
        compress_streamed(tmp_path, tmp_path / "small", IDS, memory=10**9, macs=0.5, dtype=torch.bfloat16)


def test_a_dry_run_reads_no_weights(shelf, tmp_path, monkeypatch):
    monkeypatch.setattr(Skeleton, "read_outside", lambda _skeleton: pytest.fail("weights were read"))
    monkeypatch.setattr("slimformer.models.load.load_model", lambda *_a, **_k: pytest.fail("the model was opened"))
    asked = (*compress(shelf / "llama", shelf, tmp_path / "small", "--recipe", "uniform"), "--dry-run")
    assert "memory:" in done(*asked, "--memory", "8GB").out
    assert json.loads(done(*asked, "--memory", "8GB", "--json").out)["memory"]["peak"] > 0
    assert "--memory 1 MB is not enough" in refused(*asked, "--memory", "1MB")


TINYLLAMA = {
    "hidden_size": 2048, "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4,
    "intermediate_size": 5632, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip


def headers_only(folder: Path, dtype: torch.dtype) -> Path:
    """A checkpoint of that shape with a hole in the place of its weights."""
    config = transformers.LlamaConfig(**TINYLLAMA, tie_word_embeddings=False)
    config.architectures, config.dtype = ["LlamaForCausalLM"], dtype
    config.save_pretrained(folder)
    with torch.device("meta"):
        tensors = transformers.LlamaForCausalLM(config).state_dict()
    entries, end = {}, 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * dtype.itemsize
        kind = {torch.float32: "F32", torch.bfloat16: "BF16"}[dtype]
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 3.2), (torch.bfloat16, 4)])
def test_the_documented_memory_is_accepted_for_the_documented_model(tmp_path, monkeypatch, dtype, most):
    monkeypatch.setattr(promise, "anonymous_memory", lambda: 400 * 10**6)  # a fresh process, whatever ran before here
    folder = headers_only(tmp_path / "tinyllama", dtype)
    seen = foresee_streamed(folder, memory=4 * 10**9, macs=0.5, refine=False)
    assert seen.estimate.peak < most * 10**9
    with pytest.raises(NotEnoughMemory, match=r"in correct .*; give [56]\.\d* GB or more .*refine=False"):
        foresee_streamed(folder, memory=4 * 10**9, macs=0.5)
    foresee_streamed(folder, memory=65 * 10**8, macs=0.5)


WATCH = """
import sys, threading, torch, transformers
sys.path.insert(0, {here!r})
from slimformer.steps.memory import anonymous_memory
from slimformer.compress import compress_streamed
transformers.logging.set_verbosity_error()
heads = dict(num_attention_heads=4, num_key_value_heads=4)
config = transformers.LlamaConfig(max_position_embeddings=256, **heads, **{sizes!r})
transformers.LlamaForCausalLM(config).to(torch.{dtype}).save_pretrained({folder!r} + "/dense")
{prepare}
first = anonymous_memory()
most, over = [0], threading.Event()
def look():
    while not over.wait(0.005):
        most[0] = max(most[0], anonymous_memory())
thread = threading.Thread(target=look)
thread.start()
try:
    found = compress_streamed(
        {folder!r} + "/dense", {folder!r} + "/small", data, memory=first + {room}, macs=0.6, recipe="uniform",
        refine=False, verify=False, **{how!r},
    )
    print(f"peak {{most[0]:,}}, allowed {{first + {room}:,}}, estimate {{found.estimate}}")
finally:
    over.set()
    thread.join()
limit = min({limit}, first + {room})
assert most[0] <= limit, (most[0], limit)
"""
NARROW = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 64}
TEXT_ROOM = 248 * 10**6  # little more than what is reckoned with for a text of 16 MB
IN_IDS = "data = torch.randint(5, 60, ({rows}, {length}))"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "dtype", "prepare", "room", "how"),
    [
        (  # many tokens in a wide stream
            {"hidden_size": 1024, "head_dim": 8, "num_hidden_layers": 2, "intermediate_size": 32, "vocab_size": 64},
            "float32", IN_IDS.format(rows=1600, length=128), 400 * 10**6, {"seq_len": 128, "tokens": 100_000},
        ),
        (  # many words, stored in half precision
            {"hidden_size": 256, "num_hidden_layers": 1, "intermediate_size": 64, "vocab_size": 200_000},
            "bfloat16", IN_IDS.format(rows=24, length=16), 10**9, {"seq_len": 16},
        ),
    ],
    ids=["wide stream", "many words"],
)  # fmt: skip
def test_the_promise_is_kept(tmp_path, sizes: dict[str, Any], dtype, prepare, room, how):
    code = WATCH.format(
        here=str(HERE),
        folder=str(tmp_path),
        sizes=sizes,
        dtype=dtype,
        prepare=prepare,
        room=room,
        how=how,
        limit="found.estimate.peak",
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_a_long_text_is_within_the_promise(shelf, tmp_path):
    """Reading it takes several times its size, which the first look at files has to know of."""
    text = tmp_path / "long.txt"
    text.write_text("\n\n".join(f"The cat {n} sat on the mat {n + 1} and saw {n + 2}. " * 8 for n in range(40_000)))
    code = WATCH.format(
        here=str(HERE), folder=str(tmp_path), sizes=NARROW,
        dtype="float32", prepare=f"""
import shutil
from pathlib import Path
for file in Path({str(shelf / "llama")!r}).glob("tokenizer*"):
    shutil.copy(file, {str(tmp_path / "dense")!r})
data = {str(text)!r}""", room=TEXT_ROOM, limit="10**18", how={"seq_len": 32, "tokens": 600},
    )  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stderr
