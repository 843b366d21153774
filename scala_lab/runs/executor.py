"""What a sweep asks of whoever carries out its jobs: this machine, a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol

from scala_lab.runs.work import Job


@dataclass(frozen=True)
class Ending:
    """How a job came back.

    Attributes:
        key: The job's.
        outcome: done: its record says how it ended; held: another process is at it; died: the process that did it
            is gone, and nothing was recorded.
        detail: For people: why it died.
    """

    key: str
    outcome: Literal["done", "held", "died"]
    detail: str = ""


class Executor(Protocol):
    """Carries out jobs; used as a context that, when left, stops what still runs."""

    def __enter__(self) -> Executor: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take these on, the first ones first; what does not fit yet waits its turn."""
        ...

    def endings(self, seconds: float) -> list[Ending]:
        """What has come back since the last call; waits up to that long for the first."""
        ...

    def running(self) -> list[Job]:
        """What is being carried out at this moment."""
        ...

    def at_once(self) -> float:
        """About how many jobs run side by side, for the time that is left."""
        ...


def way_to_our_modules() -> str:
    """A PYTHONPATH on which another process of this interpreter finds every module that this one finds."""
    entries = (entry or os.getcwd() for entry in sys.path)
    own = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))
