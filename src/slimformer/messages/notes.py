"""Notes: what one should know of a result, and what is no error."""

from __future__ import annotations


class OpeningNote(UserWarning):
    """A model was opened otherwise than its folder says. The command line prints it as a note."""
