"""The exception for mistakes of the user, and suggestions for mistyped names."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can correct: one sentence saying what was wrong, where, and what would be right.

    The command line prints the sentence without a traceback and ends with exit code 2.
    """


def check_at_least(minimum: int, of: str = "", /, **flags: float | None) -> None:
    """Refuse flags, given by name, that are smaller or nan; `of`, such as `launch: `, begins the sentence."""
    for name, value in flags.items():
        if value is not None and not value >= minimum:
            raise UserError(f"{of}--{name.replace('_', '-')} must be at least {minimum}, not {value}")


def nearest(name: str, valid: Iterable[str]) -> str:
    """Suggest the valid name that is closest to a mistyped one, or list all.

    Example:
        >>> nearest("scla", ["plain", "scala"])
        "did you mean 'scala'?"
    """
    names = list(map(str, valid))
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else "valid: " + ", ".join(sorted(names))
