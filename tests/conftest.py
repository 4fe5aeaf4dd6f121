"""The same seed, one thread and no network in every test; shapes in linalg and decompose are checked at every call."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import jaxtyping
import pytest
import torch

# run by test_devices.py, in processes of their own: a device cannot be taken back
collect_ignore = [] if "ELSEWHERE_DOUBLE" in os.environ else ["devices"]

# Before anything imports them: from here on a wrong shape is an error where it happens, at no cost outside the tests.
jaxtyping.install_import_hook(["slimformer.linalg", "slimformer.decompose"], "beartype.beartype")
THREADS = os.environ.get("TEST_THREADS", "1")  # sums are ordered otherwise with more
torch.set_num_threads(int(THREADS))
os.environ.setdefault("OMP_NUM_THREADS", THREADS)  # of the processes that tests start


SHARED = Path(__file__).parents[2] / "shared"  # models and data of the development machines


def pytest_collection_finish() -> None:
    """Modules are not looked through again whenever garbage is collected, which tests of memory do often."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def forked_processes() -> Iterator[Any]:
    """What is saved is verified by forked processes, which saves seconds each time; the way to start real ones."""
    from fresh import NURSERY
    from slimformer.checkpoint import fresh

    started = fresh.start
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fresh, "start", NURSERY.start)
        yield started
    NURSERY.close()


@pytest.fixture
def real_processes(monkeypatch: pytest.MonkeyPatch, forked_processes: Any) -> None:
    """What is saved is verified as for a user: by processes that Python is started for."""
    monkeypatch.setattr("slimformer.checkpoint.fresh.start", forked_processes)


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reloading in a fresh process takes seconds and is tested elsewhere."""
    monkeypatch.setattr("slimformer.checkpoint.save.verify_reload", lambda *_: None)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models and data, read by all tests of a file and changed by none."""
    from terminal import furnish

    return furnish(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="module")
def stats(shelf: Path) -> Path:
    """Statistics of the LLaMA on the shelf."""
    from terminal import done

    done("calibrate", shelf / "llama", "--data", shelf / "text.txt", "--tokens", 600, "--out", shelf / "stats", "-q")
    return shelf / "stats"


@pytest.fixture(scope="module")
def plan(stats: Path, shelf: Path) -> Path:
    """A plan made from them."""
    from terminal import done

    done("plan", stats, "--macs", 0.6, "--out", shelf / "plan.json", "-q")
    return shelf / "plan.json"


def needs(path: Path) -> pytest.MarkDecorator:
    """Skip without a file of the development machines; where .ci/run knows it to be there, fail without it."""
    required = bool(os.environ.get("SLIMFORMER_NO_SKIP"))
    return pytest.mark.skipif(not path.exists() and not required, reason=f"{path} is absent")


def skip_or_fail(reason: str) -> NoReturn:
    """Skip for want of something outside the repository; where .ci/run knows it to be there, that is a failure."""
    if os.environ.get("SLIMFORMER_NO_SKIP"):
        pytest.fail(reason)
    pytest.skip(reason)
