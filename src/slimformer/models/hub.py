"""The hub, or what was fetched from it before.

Its clients try again for half a minute and more before they say that there is no network. Here one request is made
first; where nobody answers it, they are told to look at what was fetched before and at nothing else.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub import constants, get_session

SECONDS = 5.0  # to wait for an answer, of whatever kind
_ONE = threading.RLock()  # the settings are those of the process: two at once would keep what the other has set


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Inside, nobody waits for a hub that cannot be reached. One thread at a time."""
    with _ONE:
        yield from _inside()


def _inside() -> Iterator[None]:
    modules: list[Any] = [constants, *([sys.modules["datasets.config"]] if "datasets.config" in sys.modules else [])]
    before = [module.HF_HUB_OFFLINE for module in modules]
    answers = _answers()
    try:
        for module, offline in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = offline or not answers
        yield
    finally:
        for module, offline in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = offline


def _answers() -> bool:
    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # no name, no route, no answer, offline by choice: the client has a kind for each
        return False
    return True
