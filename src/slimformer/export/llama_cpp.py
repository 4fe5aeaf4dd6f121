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
    file: Path, prompts: Sequence[Sequence[int]], *, new_tokens: int = 1, forced: Sequence[int] = (), threads: int = 1
) -> list[dict[str, Any]]:
    """What llama.cpp says after every prompt: `tokens`, chosen greedily, and `timings`. Cost: a process, which maps the
    file.

    With `forced`, a token for each prompt, that one is chosen, and `logprob` is what the model thought of it; none for
    a token that ends in the middle of a character. RuntimeError with the last words of llama.cpp where it does not open
    the file.
    """
    request = {
        "file": str(file), "prompts": [list(map(int, prompt)) for prompt in prompts], "forced": list(map(int, forced)),
        "new_tokens": new_tokens, "threads": threads, "path": sys.path,
    }  # fmt: skip
    child = subprocess.run(
        [sys.executable, "-P", __file__], input=json.dumps(request), capture_output=True, text=True, timeout=PATIENCE
    )
    answer = next((line for line in child.stdout.splitlines() if line.startswith(ANSWERS)), None)
    if answer is None:
        lines = [line for line in child.stderr.splitlines() if line.strip()]
        wrong = [line for line in lines if "error" in line.lower() or "assert" in line.lower()]
        raise RuntimeError((wrong or lines or ["it said nothing"])[-1][:200])
    answers: list[dict[str, Any]] = json.loads(answer.removeprefix(ANSWERS))
    return answers


def _main() -> None:
    request = json.loads(sys.stdin.read())
    sys.path[:] = request["path"]
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = request["file"]
    longest = max(len(prompt) for prompt in request["prompts"]) + request["new_tokens"]
    params.n_ctx, params.n_parallel, params.warmup = max(256, longest + 8), 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request["threads"]
    params.n_gpu_layers, params.offline, params.port = 0, True, 0
    server = xllamacpp.Server(params)  # on this machine alone, at a port that is free
    how = {"temperature": 0.0, "seed": 0, "ignore_eos": True, "return_tokens": True, "cache_prompt": True}
    answers = []
    for prompt, force in zip(request["prompts"], request["forced"] or [None] * len(request["prompts"]), strict=True):
        body = {"prompt": prompt, "n_predict": request["new_tokens"], **how}
        if force is not None:
            body |= {"n_probs": 1, "logit_bias": [[force, 1e6]]}
        answer = _said(server.listening_address, body)
        steps = answer.get("completion_probabilities", [])
        answers.append({
            "tokens": answer["tokens"], "timings": answer["timings"], "logprob": steps[0]["logprob"] if steps else None,
        })  # fmt: skip
    print(ANSWERS + json.dumps(answers), flush=True)


def _said(address: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


if __name__ == "__main__":
    _main()
