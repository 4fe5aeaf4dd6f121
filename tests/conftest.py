"""The same seed, one thread and no network in every test; shapes in linalg and decompose are checked at every call."""

import os
from typing import NoReturn

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jaxtyping
import pytest
import torch

# Before anything imports them: from here on a wrong shape is an error where it happens, at no cost outside the tests.
jaxtyping.install_import_hook(["slimformer.linalg", "slimformer.decompose"], "beartype.beartype")
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip for want of something outside the repository; where .ci/run knows it to be there, that is a failure."""
    if os.environ.get("SLIMFORMER_NO_SKIP"):
        pytest.fail(reason)
    pytest.skip(reason)
