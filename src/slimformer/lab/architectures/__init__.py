"""Architectures that live only in the lab: Linformer and minimal transformers.

`import slimformer` registers them, so that the Auto classes of transformers, and every command, open their checkpoints.
"""


def register() -> None:
    """Let Auto classes know both architectures, and `describe` the one that can be cut. Twice changes nothing."""
    from slimformer.lab.architectures import linformer_models, minimal_family, minimal_model

    linformer_models.register()
    minimal_model.register()
    minimal_family.register()


import transformers  # noqa: E402, F401  its import calls `register`, which must be there before the files of this folder
