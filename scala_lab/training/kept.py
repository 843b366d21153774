"""Inputs that a process trains many runs on: loaded once, where the process asked for that."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_keeping = False


def keep_inputs() -> None:
    """From now on keep what this process loads: for workers of a sweep, whose files do not change under them."""
    global _keeping
    _keeping = True


def kept(most: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a loader return what it returned before for the same arguments, once `keep_inputs` was called.

    Args:
        most: How many results are kept; the ones longest unused go first.
    """

    def decorate(load: Callable[P, R]) -> Callable[P, R]:
        remembered = functools.lru_cache(maxsize=most)(load)

        @functools.wraps(load)
        def loaded(*args: P.args, **kwargs: P.kwargs) -> R:
            return remembered(*args, **kwargs) if _keeping else load(*args, **kwargs)  # type: ignore[arg-type]

        return loaded

    return decorate


def own_copy(value: R) -> R:
    """What a kept loader returned, to be changed freely: a copy where the original is kept."""
    return copy.deepcopy(value) if _keeping else value
