"""Refinement at the chosen budget, for `compress`; see `rewrite.refine`. The command `cut` does without it."""

from slimformer.rewrite.refine import refine as refine
