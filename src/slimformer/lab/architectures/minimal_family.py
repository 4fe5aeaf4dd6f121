"""Minimal transformers as a family: pre- or post-norm encoders of images or text.

Heads and ranks can be cut where queries, keys, values and outputs have a matrix each (qk=full, vo=full); elsewhere the
attention says why not, and counts as it is.
"""

from importlib import resources

from slimformer.models.families import FAMILIES, parse_family


def register() -> None:
    """Let `describe` know minimal models. Doing it twice changes nothing."""
    if "minimal" not in FAMILIES:
        file = resources.files("slimformer.lab.architectures") / "minimal.yaml"
        FAMILIES["minimal"] = parse_family(file.read_text(encoding="utf-8"), file.name)
