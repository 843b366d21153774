"""The one exception that is meant for the person at the keyboard."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right: one sentence saying what was wrong, where, and what would be right.

    The command line prints the sentence without a traceback and ends with exit code 2.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """Say which valid name is closest to a mistyped one, or list what there is.

    Example:
        >>> nearest("scla", ["plain", "scala"])
        "did you mean 'scala'?"
    """
    names = [str(candidate) for candidate in valid]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "valid: " + ", ".join(sorted(names))
