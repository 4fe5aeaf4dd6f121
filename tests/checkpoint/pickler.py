"""Open a ragged checkpoint in a process of its own, send the model through every kind of pickle, and compare outputs.

    python pickler.py stranger|friend FOLDER ROUTE …

A stranger cannot import slimformer and opens with trust_remote_code; a friend has it. Prints a JSON object: for every
route the largest difference to the outputs of the model that was opened.
"""

import copy
import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

WHO, FOLDER, ROUTES = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
if WHO == "stranger":
    sys.path = [path for path in sys.path if not (Path(path) / "slimformer").is_dir()]

import torch  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor  # noqa: E402

torch.set_num_threads(1)
IDS = torch.arange(5, 17)[None]
TEXTS = ["w5 w6 w7", "w8 w9", "w10", "w11 w12"]


@torch.no_grad()
def outputs(model: Any) -> Tensor:
    found: Tensor = model(input_ids=IDS)[0]
    return found


class Answers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A dataset that asks its model."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __len__(self) -> int:
        return 1

    def __getitem__(self, _index: int) -> Tensor:
        return outputs(self.model)


def answer(model: Any, answers: Any) -> None:
    """What a spawned process does. Numbers, not a tensor: its memory would go with the process."""
    answers.put(outputs(model).tolist())


def by_pickle(model: Any) -> Tensor:
    return outputs(pickle.loads(pickle.dumps(model)))


def by_deepcopy(model: Any) -> Tensor:
    return outputs(copy.deepcopy(model))


def by_torch(model: Any) -> Tensor:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return outputs(torch.load(file, weights_only=False))


def by_process(model: Any) -> Tensor:
    context = processes.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=answer, args=(model, answers))
    process.start()
    found = torch.tensor(answers.get())
    process.join()
    return found


def by_loader(model: Any) -> Tensor:
    loader = torch.utils.data.DataLoader(Answers(model), num_workers=1, multiprocessing_context="spawn")
    (found,) = loader
    return found[0]


def by_pool(_model: Any) -> float:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(FOLDER), device="cpu", trust_remote_code=WHO == "stranger")
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    found = torch.as_tensor(model.encode(TEXTS, pool=pool, batch_size=1, chunk_size=1))
    model.stop_multi_process_pool(pool)
    return float((found - torch.as_tensor(model.encode(TEXTS, batch_size=1))).abs().max())


def difference(model: Any, route: str) -> float:
    if route == "pool":
        return by_pool(model)
    return float((globals()[f"by_{route}"](model) - outputs(model)).abs().max())


def main() -> None:
    if WHO == "friend":
        import slimformer  # noqa: F401
    kind = json.loads((FOLDER / "config.json").read_text())["architectures"][0]
    auto = transformers.AutoModelForCausalLM if kind.endswith("CausalLM") else transformers.AutoModel
    model = auto.from_pretrained(FOLDER, trust_remote_code=WHO == "stranger").eval()
    assert ("slimformer" in sys.modules) == (WHO == "friend")
    print(json.dumps({route: difference(model, route) for route in ROUTES}))


if __name__ == "__main__":
    main()
