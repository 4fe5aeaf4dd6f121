"""Open saved checkpoints in a process of its own and write down what they give.

    python visitor.py stranger|friend ROOT

A stranger cannot import slimformer: plain folders open by Auto classes as they are, ragged ones with trust_remote_code.
A friend has imported it: both open by Auto classes as they are, and by slimformer.load. One process opens all folders,
because starting one costs seconds.
"""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

WHO, ROOT = sys.argv[1], Path(sys.argv[2])
if WHO == "stranger":
    sys.path = [path for path in sys.path if not (Path(path) / "slimformer").is_dir()]

import importlib.util  # noqa: E402

assert (importlib.util.find_spec("slimformer") is None) == (WHO == "stranger")

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)
NO_PIPELINE = ("bart", "t5", "wav2vec2", "hubert", "whisper")  # none takes tiny inputs of them
KEYS = ("logits", "start_logits", "end_logits", "last_hidden_state")
TASKS = {
    "causal": "text-generation",
    "masked": "fill-mask",
    "classify": "text-classification",
    "bare": "feature-extraction",
}


def auto_class(config: dict[str, Any]) -> Any:
    """The Auto class that opens the head a folder was saved with."""
    from transformers.models.auto import modeling_auto as auto

    kind = transformers.CONFIG_MAPPING[config["model_type"]]
    for name in sorted(vars(auto)):
        mapping = getattr(getattr(auto, name), "_model_mapping", None) if name.startswith("AutoModel") else None
        if mapping is not None and kind in mapping and mapping[kind].__name__ == config["architectures"][0]:
            return getattr(transformers, name)
    raise LookupError(config["architectures"])


def routes(folder: Path) -> dict[str, Any]:
    """The ways in which this visitor opens a folder."""
    config = json.loads((folder / "config.json").read_text())
    auto, ragged = auto_class(config), "slimformer" in config
    if WHO == "stranger" and ragged:
        return {"remote": lambda: auto.from_pretrained(folder, trust_remote_code=True)}
    if WHO == "stranger":
        return {"stock": lambda: auto.from_pretrained(folder)}
    import slimformer

    return {"package": lambda: auto.from_pretrained(folder), "load": lambda: slimformer.load(folder)}


def visit(folder: Path, route: str, open_: Any) -> dict[str, Any]:
    model = open_().eval()
    with torch.no_grad():
        out = model(**load_file(folder / "sample.safetensors"))
    save_file({key: out[key].contiguous() for key in KEYS if key in out}, folder / f"{WHO}-{route}.safetensors")
    found: dict[str, Any] = {"class": type(model).__name__, "module": type(model).__module__}
    if folder.name.endswith("causal"):
        ids, how = torch.tensor([[5, 6, 7, 8]]), {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
        caches = {"dynamic": {}, "static": {"cache_implementation": "static"}, "none": {"use_cache": False}}
        found["generated"] = {name: model.generate(ids, **how, **cache).tolist() for name, cache in caches.items()}
    return found


def pipe(folder: Path) -> Any:
    """What a pipeline makes of the folder, opened by name."""
    from PIL import Image

    head, image = folder.name.split("-")[-1], "patch_size" in json.loads((folder / "config.json").read_text())
    code = {"trust_remote_code": True} if WHO == "stranger" and folder.name.startswith("ragged") else {}
    if image:
        task = "image-classification" if head == "classify" else "image-feature-extraction"
        return transformers.pipeline(task, model=str(folder), device="cpu", **code)(
            Image.new("RGB", (20, 20), (90, 9, 200))
        )
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    made = transformers.pipeline(TASKS[head], model=str(folder), tokenizer=tokenizer, device="cpu", **code)
    return made("w5 <mask> w7", **({"max_new_tokens": 5} if head == "causal" else {}))


def stay_out(folder: Path) -> str:
    """What happens when a ragged folder is opened as if it were plain."""
    try:
        auto_class(json.loads((folder / "config.json").read_text())).from_pretrained(folder)
    except Exception as error:
        return type(error).__name__
    return "opened"


def main() -> None:
    result: dict[str, Any] = {}
    for folder in sorted(ROOT.iterdir()):
        for route, open_ in routes(folder).items():
            try:
                result[f"{folder.name} {route}"] = visit(folder, route, open_)
            except Exception:
                result[f"{folder.name} {route}"] = {"error": traceback.format_exc()}
        if not folder.name.endswith("answer") and folder.name.split("-")[1] not in NO_PIPELINE:
            try:
                result[f"{folder.name} pipeline"] = {"pipeline": len(pipe(folder))}
            except Exception:
                result[f"{folder.name} pipeline"] = {"error": traceback.format_exc()}
        if WHO == "stranger" and folder.name.startswith("ragged"):
            result[f"{folder.name} unaided"] = {"unaided": stay_out(folder)}
    result["slimformer"] = {"imported": "slimformer" in sys.modules}
    (ROOT.parent / f"{WHO}.json").write_text(json.dumps(result))


main()
