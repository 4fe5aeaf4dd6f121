"""Every command that writes, killed (SIGKILL) in the middle: what is then there is whole, and nothing is lost.

Half of the kills come at a random moment, half at a random call that changes the disk (open for writing, mkdir, rename,
remove). Beside every output lie files of a user, some under names much like ours, and in results that commands work on
in place there is one more. After a kill what is under the final name must open, must be what was written, and `--force`
must still know it as a result; files of the user must be there to the bit.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from families import tiny
from kills_push import kill_push
from kills_whole import (
    whole_export,
    whole_json,
    whole_model,
    whole_page,
    whole_runs,
    whole_sentences,
    whole_statistics,
)
from slimformer.checkpoint.load import load
from slimformer.files import manifest
from slimformer.heads.match_file import read_match
from slimformer.models.families import read_family
from slimformer.plan import Plan
from slimformer.steps.cascade import load_cascade
from terminal import files, save_tiny, slimformer, texts, write_table, write_texts
from tokenizers_by_kind import WORDS, word_piece

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"}
NOTES = "notes.txt"
NOBODY = 99_999_999  # the number of no process
LAB = """
name: killed
task: image-classes
datasets: {digits: {source: digits}}
model: {model_type: vit, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, patch_size: 4}
seeds: [0, 1]
epochs: 2
batch_size: 128
checkpoint_every: 0.1
save_models: true
"""  # noqa: E501


@dataclass(frozen=True)
class Job:
    """A command, where its result goes, and what tells a whole one. `works_on`: a result that it changes in place;
    `resumes`: the same command goes on with what is there."""

    arguments: tuple[object, ...]
    out: Path
    whole: Callable[[Path], object]
    works_on: Path | None = None
    resumes: bool = False


# --- commands ---------------------------------------------------------------------------------------------------


def jobs(root: Path) -> dict[str, Job]:
    """Commands on tiny models, seconds each; every output has a folder of its own."""
    given = furnish(root / "given")
    stats, llama, small = given / "stats", given / "llama", given / "small"
    brief, data = ("--data", given / "text.txt", "--tokens", 600), ("--data", given / "text.txt")
    task = ("--task", "ptb-new", "--data", given / "ptb", "--seq-len", 32, "--record")
    features = ("--source", given / "x.npy", "--target", given / "y.npy")

    def out(name: str) -> Path:
        return root / name.replace(" ", "-") / "out"

    def made(name: str, arguments: tuple[object, ...], whole: Callable[[Path], object]) -> Job:
        return Job((*arguments, "--out", out(name)), out(name), whole)

    def changed(name: str, result: Path, arguments: tuple[object, ...], whole: Callable[[Path], object]) -> Job:
        command, *rest = arguments
        return Job((command, out(name), *rest), out(name), whole, works_on=result)

    unproved = ("--no-verify",)
    words = ("--data", given / "words.txt", "--tokens", 1000)
    vocabulary = ("--recipe", "vocabulary", "--vocab", 0.8, "--set", "embedding.dim=8")
    return {
        "compress": made("compress", ("compress", llama, "--macs", 0.6, *brief, "--no-timing"), whole_model),
        "compress --memory": Job(
            ("compress", llama, "--macs", 0.6, *brief, "--memory", "2GB", "--out", out("streamed")),
            out("streamed"), whole_model, resumes=True,
        ),
        "cut": made("cut", ("cut", stats, "--macs", 0.6, *unproved), whole_model),
        "calibrate": made("calibrate", ("calibrate", llama, *brief), whole_statistics),
        "plan": made("plan", ("plan", stats, "--macs", 0.6), Plan.load),
        "apply": made("apply", ("apply", stats, given / "plan.json"), whole_model),
        "frontier": made("frontier", ("frontier", stats), whole_json),
        "sweep": changed("sweep", given / "bare", ("sweep", *brief, "--macs", "0.7"), whole_statistics),
        "cascade": made("cascade", ("cascade", stats, *brief, "--macs", "0.6,1"), load_cascade),
        "compress --vocab": made(
            "vocabulary", ("compress", given / "sentences", *vocabulary, *words, "--no-timing"),
            whole_sentences,
        ),
        "quantize": made("quantize", ("quantize", llama, *brief, "--bits", 8, *unproved), whole_model),
        "quantize --tables": made("tables", ("quantize", llama, *brief, "--tables", *unproved), whole_model),
        "sparsify": made("sparsify", ("sparsify", llama, *brief, *unproved), whole_model),
        "heal": Job(
            ("heal", small, "--teacher", llama, *data, "--epochs", 2, *unproved, "--no-timing", "--out", out("heal")),
            out("heal"), whole_model, resumes=True,
        ),
        "families discover": made("families", ("families", "discover", llama), read_family),
        "probe": made("probe", ("probe", given / "bert", "--data", given / "table.tsv", "--pool", "cls"), load),
        "adapt": made("adapt", ("adapt", llama, *brief), load),
        "match": made("match", ("match", *features), lambda folder: read_match(folder / "match.safetensors")),
        "export": made("export", ("export", llama, "--to", "torch", *unproved), whole_export),
        "export --to onnx": made("onnx", ("export", llama, "--to", "onnx", *unproved), whole_export),
        "inspect --figures": Job(
            ("inspect", llama, *data, "--tokens", 600, "--figures", out("inspect")), out("inspect"),
            lambda folder: whole_json(folder / "inspection.json"),
        ),
        "report": changed("report", small, ("report",), whole_page),
        "eval --record": changed("eval", small, ("eval", "--against", llama, *task), whole_page),
        "bench --record": changed(
            "bench", small, ("bench", "--against", llama, "--seq-len", 8, "--repeats", 2, "--record"), whole_page
        ),
        "lab run": Job(
            ("lab", "run", given / "lab.yaml", "--workers", 1, "--no-estimate", "--out", out("lab")), out("lab"),
            whole_runs, resumes=True,
        ),
    }  # fmt: skip


def furnish(given: Path) -> Path:
    """What the commands read."""
    llama, text = save_tiny(given / "llama", "llama"), write_texts(given / "text.txt")
    save_tiny(given / "bert", "bert", "classify")
    save_sentences(given / "sentences")
    (given / "words.txt").write_text("\n\n".join(" ".join(WORDS.split()[i % 30 :][:8]) + f" {i}" for i in range(200)))
    write_table(given / "table.tsv")
    (given / "ptb").mkdir()
    (given / "ptb" / "ptb.test.txt").write_text("\n".join(texts(30, seed=9)))
    draw = np.random.default_rng(0)
    hidden = draw.standard_normal((60, 4))
    np.save(given / "x.npy", hidden @ draw.standard_normal((4, 6)))
    np.save(given / "y.npy", hidden @ draw.standard_normal((4, 5)))
    (given / "lab.yaml").write_text(LAB)
    run("calibrate", llama, "--data", text, "--tokens", 600, "--out", given / "stats")
    shutil.copytree(given / "stats", given / "bare", ignore=shutil.ignore_patterns("curves-*"))
    run("plan", given / "stats", "--macs", 0.6, "--out", given / "plan.json")
    run("cut", given / "stats", "--macs", 0.7, "--no-verify", "--out", given / "small")
    return given


def save_sentences(folder: Path) -> None:
    """A folder of sentence-transformers whose tokenizer can lose tokens."""
    tokenizer = word_piece()
    tiny("bert", "bare", vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"))
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def run(*arguments: object) -> None:
    """A command that must go well."""
    ended = slimformer(*arguments)
    if ended.code:
        raise SystemExit(f"{arguments[0]} does not go through unharmed: {ended.err}")


# --- after a kill -----------------------------------------------------------------------------------------------------


def broken(job: Job, before: dict[str, bytes], *, must_be_there: bool) -> str:
    """What is wrong after a kill: a result that is not whole or gone, one that --force does not know, a lost file."""
    try:
        if must_be_there or os.path.lexists(job.out):
            job.whole(job.out)
            if job.out.is_dir() and not job.resumes:
                manifest.require_unchanged(job.out, "*")
                strange = [name for name in manifest.strangers(job.out) if name != NOTES]
                if strange or manifest.read(job.out) is None:
                    return f"no result: {strange}"
    except Exception as error:
        return repr(error)
    now = bystanders(job)
    lost = [name for name, content in before.items() if now.get(name) != content]
    return f"lost: {lost}" if lost else ""


def bystanders(job: Job) -> dict[str, bytes]:
    """Files of a user in and beside an output, and what the commands read, but for curves, which statistics gain."""
    mine = {str(path): path.read_bytes() for path in user_files(job) if path.is_file()}
    given = files(job.out.parent.parent / "given")
    return {**mine, **{n: c for n, c in given.items() if "curves-" not in n and not n.endswith(manifest.NAME)}}


def user_files(job: Job) -> list[Path]:
    """A thesis, models, drafts in folders that are called as ours are; in results that are changed in place, notes."""
    ours = [f".out.{role}-{socket.gethostname()}-{NOBODY}/x" for role in ("partial", "replaced", "old")]
    names = ("thesis.tex", "checkpoints/last.pt", ".out.partial-mine/draft", *ours)
    inside = [job.out / NOTES] if job.works_on else []
    return [*(job.out.parent / name for name in names), *inside]


# --- kills ------------------------------------------------------------------------------------------------------


def started(job: Job, arguments: tuple[object, ...], at_change: int | None) -> tuple[int, int]:
    """A process that runs the command, and a pipe that tells the changes it made, if it came to its end."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid:
        os.close(tell)
        return pid, told
    os.setsid()
    seen = [0]

    def watch(event: str, details: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(details[1], str) and set(details[1]) & set("wxa+")
        if event in CHANGES or writes:
            if seen[0] == at_change:
                os.killpg(0, signal.SIGKILL)
            seen[0] += 1

    sys.addaudithook(watch)
    ended = slimformer(*arguments)
    if ended.code:
        os.write(2, ended.err.encode())
    os.write(tell, str(seen[0]).encode())
    os._exit(ended.code)


def unharmed(job: Job) -> tuple[float, int]:
    """Seconds and changes to the disk of a run that nobody kills."""
    began = time.perf_counter()
    pid, told = started(job, job.arguments, None)
    _, status = os.waitpid(pid, 0)
    changes = os.read(told, 20)
    os.close(told)
    if status:
        raise SystemExit(f"{job.arguments[0]} does not go through unharmed")
    return time.perf_counter() - began, int(changes)


def killed(job: Job, arguments: tuple[object, ...], after: float | None, at_change: int | None) -> bool:
    """Whether a run was killed: so many seconds after its start, or at a change of the disk."""
    pid, told = started(job, arguments, at_change)
    os.close(told)
    if after is not None:
        time.sleep(after)
        gone, _ = os.waitpid(pid, os.WNOHANG)
        if gone:
            return False
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # so soon that it has no group of its own yet
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status)


def prepare(job: Job, whole: Path, *, there: bool) -> None:
    """An output as it was before: nothing, an older result, or the one that is worked on, with a user's notes."""
    if there and job.resumes:
        return
    if job.out.is_dir():
        shutil.rmtree(job.out)
    job.out.unlink(missing_ok=True)
    if there:
        source = job.works_on or whole
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, job.out)
    for path in user_files(job):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"years of work on {path.name}")


def kill_often(job: Job, times: int, draw: random.Random) -> dict[str, Any]:
    """Kill a command so many times, then let it go through; what happened, in numbers."""
    whole = job.out.parent.with_suffix(".whole")
    prepare(job, whole, there=job.works_on is not None)
    seconds, changes = unharmed(job)
    if not job.resumes and not job.works_on:
        (shutil.copytree if job.out.is_dir() else shutil.copyfile)(job.out, whole)
    count, over, wrong = 0, 0, list[str]()
    while count < times:
        there = job.works_on is not None or draw.random() < 0.3
        prepare(job, whole, there=there)
        force = ("--force",) if there and not job.works_on and not job.resumes else ()
        at = draw.randrange(changes) if count % 2 else None
        before = bystanders(job)
        hit = killed(job, (*job.arguments, *force), draw.uniform(0, seconds) if at is None else None, at)
        count, over = count + hit, over + (hit and there)
        wrong += [found] if (found := broken(job, before, must_be_there=there and not job.resumes)) else []
    prepare(job, whole, there=job.works_on is not None)
    before = bystanders(job)
    last = slimformer(*job.arguments)
    wrong += [found] if (found := broken(job, before, must_be_there=True)) else []
    return {
        "kills": count, "over_a_result": over, "bad": len(wrong), "wrong": wrong[:5], "seconds": seconds,
        "next_run": last.code, "left": left_over(job), "refused": refuses_others(job, whole),
    }  # fmt: skip


def left_over(job: Job) -> list[str]:
    """Hidden files and folders in and beside an output that are not a user's."""
    mine = {part for path in user_files(job) for part in path.parts}
    inside = job.out.rglob(".*") if job.out.is_dir() else ()
    found = [path.name for path in (*job.out.parent.glob(".*"), *inside) if path.name not in mine]
    return [name for name in found if name != ".lock"]


def refuses_others(job: Job, whole: Path) -> bool | None:
    """Is a result with something of a user's in it, or a file of a user's, refused with --force and left as it is?

    None where it is not tried: commands that work in a result, or go on with one, do not replace it.
    """
    if job.works_on or job.resumes:
        return None
    prepare(job, whole, there=True)
    (job.out / NOTES if job.out.is_dir() else job.out).write_text("years of work")
    before = files(job.out.parent)
    ended = slimformer(*job.arguments, "--force")
    return ended.code == 2 and ended.err.count("\n") == 1 and files(job.out.parent) == before


def kills(times: int, root: Path, only: Sequence[str] = (), known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Kill every command so many times; what is there afterwards is whole or nothing, and nothing is lost.

    With `only`, these commands; what is `known` of the others stays.
    """
    found = dict(known or {}) if only else dict[str, Any]()
    for name, job in jobs(root).items():
        if not only or name in only:
            found[name] = kill_often(job, times, random.Random(name))
            print(f"{name}: {found[name]}", flush=True)
    if not only or "push" in only:
        found["push"] = kill_push(times, root / "given" / "small", random.Random("push"))
        print(f"push: {found['push']}", flush=True)
    return {
        "jobs": found,
        "kills": sum(job["kills"] for job in found.values()),
        "bad": sum(job["bad"] for job in found.values()),
    }


def harmed(found: dict[str, Any]) -> bool:
    """Did anything of it go wrong?"""
    ended = found.get("jobs", {}).values()
    return bool(found.get("bad")) or any(job["next_run"] or job["left"] or job["refused"] is False for job in ended)
