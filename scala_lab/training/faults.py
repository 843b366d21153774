"""Which worker failed first, and why.

When one worker fails the others fail with it: their connections to it break. So each leaves word of what went wrong,
and the cause is looked for among all of it. Workers of our own launcher leave a file each, in a folder of the
launcher's; beside that, every worker tells the first one by the store through which the workers met, so that also
under torchrun the first worker, which writes the run's record, knows whose fault it was.
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scala_lab.errors import UserError
from scala_lab.files import write_json

if TYPE_CHECKING:
    from torch.distributed import Store


@dataclass(frozen=True)
class Complaint:
    """What one worker says of its end.

    Attributes:
        rank: The worker's.
        kind: own fault; lost peer, which follows from the end of another worker; or user error.
        sentence: What went wrong, on one line.
        trace: Where.
    """

    rank: int
    kind: Literal["own fault", "lost peer", "user error"]
    sentence: str
    trace: str = ""

    def __str__(self) -> str:
        return f"worker {self.rank}: {self.sentence}"

    def fault(self, with_rank: bool = True) -> Fault:
        """This, as why a run's workers ended."""
        user_error = self.sentence if self.kind == "user error" else None
        return Fault(str(self) if with_rank else self.sentence, self.trace, user_error)


@dataclass(frozen=True)
class Fault:
    """Why a run's workers ended.

    Attributes:
        sentence: Which worker it was and what ended it.
        trace: Where, if the worker could say it.
        user_error: The sentence for the user, if it was the input's fault.
    """

    sentence: str
    trace: str = ""
    user_error: str | None = None


def complaint_of(rank: int, error: Exception) -> Complaint:
    """What a worker has to say of an error."""
    if isinstance(error, UserError):
        return Complaint(rank, "user error", describe(error))
    kind: Literal["lost peer", "own fault"] = "lost peer" if lost_peer(error) else "own fault"
    return Complaint(rank, kind, describe(error), "".join(traceback.format_exception(error)))


def describe(error: BaseException) -> str:
    """An error on one line: its kind and text, or the text alone if it is meant for the user."""
    text = " ".join(str(error).split())
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}".removesuffix(": ")


def lost_peer(error: BaseException) -> bool:
    """Whether an error, or what it arose from, is a broken connection to another worker."""
    import torch.distributed as dist

    return any(
        isinstance(each, dist.DistError) or (isinstance(each, RuntimeError) and "/gloo/transport/" in str(each))
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def leave_complaint(folder: Path, complaint: Complaint) -> None:
    """Leave word for the launcher."""
    write_json(folder / f"{complaint.rank}.json", asdict(complaint))


def find_fault(folder: Path, workers: int, ended: Mapping[int, int], code: int = 1) -> Fault:
    """The cause among all that went wrong.

    A worker that a signal ended without a word of its own; else the first fault that does not follow from another's
    end; else a worker that ended without a word; else the first complaint. Abort is no such signal: libraries abort a
    process when its peers are gone.

    Args:
        folder: Of the complaints.
        workers: How many there were.
        ended: Exit codes of the workers that ended by themselves, in this order; empty where they are not known.
        code: Exit code of whatever started the workers, where theirs are not known.
    """
    said = [Complaint(**json.loads(file.read_bytes())) for file in _oldest_first(folder)]
    silent = {rank: code for rank, code in ended.items() if code and rank not in {each.rank for each in said}}
    killed = [rank for rank, code in silent.items() if _signal(code) not in (0, signal.SIGABRT)]
    own = [complaint for complaint in said if complaint.kind != "lost peer"]
    if killed or (silent and not own):
        rank = (killed or list(silent))[0]
        return Fault(f"worker {rank} {_ending(silent[rank])}")
    if own or said:
        first = (own or said)[0]
        quiet = sorted(set(range(workers)) - {each.rank for each in said})
        if not own and not ended and quiet:
            return Fault(f"{name_workers(quiet)} ended without a word ({first})", first.trace)
        return first.fault()
    return Fault(f"the workers' launcher {_ending(code)}, without a word of why")


def _oldest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*.json"), key=lambda file: file.stat().st_mtime_ns)


def _signal(code: int) -> int:
    """The signal that an exit code stands for, as Python (-15) or as a shell (128 + 15) writes it; 0 for none."""
    return -code if code < 0 else max(0, code - 128)


def _ending(code: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    number = _signal(code)
    return f"was ended by {names.get(number, f'signal {number}')}" if number else f"ended with exit code {code}"


def name_workers(ranks: list[int]) -> str:
    """Workers in words.

    Example:
        >>> name_workers([0, 2, 3])
        'workers 0, 2 and 3'
    """
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


class Words:
    """What workers that fail say to the first one, by the store through which they met."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def leave(self, complaint: Complaint) -> None:
        """Say why this worker ends; to be called while it is still connected to the others."""
        if complaint.kind == "lost peer":
            return
        with suppress(RuntimeError):  # the store may have gone with the first worker
            number = self._store.add("faults", 1)
            self._store.set(f"fault {number}", json.dumps(asdict(complaint)))

    def first(self) -> Complaint | None:
        """What the first worker to fail said, if any did."""
        with suppress(RuntimeError):
            for number in range(1, self._store.add("faults", 0) + 1):
                if self._store.check([f"fault {number}"]):
                    return Complaint(**json.loads(self._store.get(f"fault {number}")))
        return None
