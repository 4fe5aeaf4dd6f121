"""Silence of the libraries below, whose loading bars and advice would bury our own output."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial

from slimformer.start.after_import import after_import


def quieten_libraries() -> None:
    """Errors only. Each library is told after its import, at which it sets a level of its own."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore")
    for name in ("datasets", "huggingface_hub"):
        after_import(f"{name}.utils.logging", partial(logging.getLogger(name).setLevel, logging.ERROR))
    after_import("transformers", _quieten_transformers)


def _quieten_transformers() -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
