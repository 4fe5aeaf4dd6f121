"""Advice and bars of the libraries below, switched off in processes that train."""

from __future__ import annotations

import logging
import os
import warnings


def quieten() -> None:
    """Their lines would run into the bars of the parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    warnings.filterwarnings("ignore")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    for name in ("datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
