"""llama.cpp itself, by the package xllamacpp: what it makes of a GGUF file.

It runs in a process of its own, because what it does not like it ends by abort(). The file of this module is that
process: it reads what to do as JSON on standard input, and writes JSON to standard output.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PACKAGE = "xllamacpp"
PATIENCE = 600  # seconds
ANSWERS = "answers: "


def has_llama_cpp() -> bool:
    """Can a file be opened where it will be used?"""
    return importlib.util.find_spec(PACKAGE) is not None


def run_llama_cpp(
    file: Path, prompts: Sequence[Sequence[int]], *, new_tokens: int, alternatives: int = 0, threads: int = 1,
    steady: int | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """What llama.cpp says after every prompt: `tokens`, chosen greedily, `timings`, and with `alternatives` the log
    probabilities of so many tokens at each. Cost: a process, which maps the file.

    It gives no probabilities beside a token that ends in the middle of a character: `steady` is a whole one to choose
    every time, where only the probabilities matter. RuntimeError with the last words of llama.cpp where it does not
    open the file.
    """
    how = {"n_predict": new_tokens, "n_probs": alternatives, "temperature": 0.0, "seed": 0, "ignore_eos": True}
    if steady is not None:
        how["logit_bias"] = [[steady, 1e6]]
    asked = {
        "file": str(file), "prompts": [list(map(int, prompt)) for prompt in prompts], "threads": threads,
        "how": {**how, "return_tokens": True, "cache_prompt": True}, "path": sys.path,
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-P", __file__], input=json.dumps(asked), capture_output=True, text=True, timeout=PATIENCE
    )
    answer = next((line for line in child.stdout.splitlines() if line.startswith(ANSWERS)), None)
    if answer is None:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower() or "assert" in line.lower()]
        raise RuntimeError((wrong or lines or ["it said nothing"])[-1][:200])
    found: list[dict[str, Any]] = json.loads(answer.removeprefix(ANSWERS))
    return found


def _main() -> None:
    asked = json.loads(sys.stdin.read())
    sys.path[:] = asked["path"]
    import xllamacpp

    longest = max(len(prompt) for prompt in asked["prompts"]) + asked["how"]["n_predict"]
    params: Any = xllamacpp.CommonParams()
    params.model.path = asked["file"]
    params.n_ctx, params.n_parallel, params.warmup = max(256, longest + 8), 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = asked["threads"]
    params.n_gpu_layers, params.offline, params.port = 0, True, 0
    server = xllamacpp.Server(params)  # on this machine alone, at a port that is free
    answers = []
    for prompt in asked["prompts"]:
        body = json.dumps({"prompt": prompt, **asked["how"]}).encode()
        request = urllib.request.Request(
            f"{server.listening_address}/completion", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            said = json.load(response)
        steps = said.get("completion_probabilities", [])
        answers.append({
            "tokens": said["tokens"], "timings": said["timings"],
            "alternatives": [{str(each["id"]): each["logprob"] for each in step["top_logprobs"]} for step in steps],
        })  # fmt: skip
    print(ANSWERS + json.dumps(answers), flush=True)


if __name__ == "__main__":
    _main()
