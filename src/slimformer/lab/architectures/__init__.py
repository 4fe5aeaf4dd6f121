"""Architectures that live only in the lab: Linformer and minimal transformers.

`import slimformer` registers them, so that the Auto classes of transformers, and every command, open their checkpoints.
"""

import transformers  # noqa: F401  the files below wait for it

from slimformer.lab.architectures import linformer_models, minimal_family, minimal_model


def register() -> None:
    """Let Auto classes know both architectures, and `describe` the one that can be cut. Twice changes nothing."""
    linformer_models.register()
    minimal_model.register()
    minimal_family.register()
