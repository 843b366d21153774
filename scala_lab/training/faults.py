"""Which worker of a run failed first, and why.

When one worker fails the others fail with it, because their connections to it break. So every worker records its
error, and the cause is chosen among all of them. Workers of our own launcher write a file each, into a folder of the
launcher's. Each also tells the first worker through the store at which they met, so that the first worker, which
writes the run's record, knows the cause under torchrun as well.
"""

from __future__ import annotations

import json
import signal
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from scala_lab.errors import UserError
from scala_lab.files import write_json


@dataclass(frozen=True)
class Fault:
    """Why a run's workers ended: which one failed and how, its traceback, and the user's error if there is one."""

    sentence: str
    trace: str = ""
    user_error: str | None = None


@dataclass(frozen=True)
class WorkerError:
    """The error of one worker on one line, with its traceback unless the user's input was wrong.

    A "lost peer" follows from the end of another worker.
    """

    rank: int
    kind: Literal["own fault", "lost peer", "user error"]
    sentence: str
    trace: str = ""

    @classmethod
    def of(cls, rank: int, error: Exception) -> WorkerError:
        """Describe an exception."""
        text = " ".join(str(error).split())
        if isinstance(error, UserError):
            return cls(rank, "user error", text)
        sentence = f"{type(error).__name__}: {text}".removesuffix(": ")
        trace = "".join(traceback.format_exception(error))
        return cls(rank, "lost peer" if _lost_peer(error) else "own fault", sentence, trace)

    def __str__(self) -> str:
        return f"worker {self.rank}: {self.sentence}"

    def write(self, folder: Path) -> None:
        """Write it for `find_fault`."""
        write_json(folder / f"{self.rank}.json", asdict(self))

    def fault(self, with_rank: bool = True) -> Fault:
        """Take this error as the reason why the workers ended."""
        user_error = self.sentence if self.kind == "user error" else None
        return Fault(str(self) if with_rank else self.sentence, self.trace, user_error)


def _lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or one that it arose from, is a broken connection to another worker."""
    while error is not None:
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "/gloo/transport/" in str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


class SharedErrors:
    """Errors that workers share through the store at which they met."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store

    def add(self, error: WorkerError) -> None:
        """Share an error, unless it follows from another's; call it while this worker is connected to the others."""
        if error.kind == "lost peer":
            return
        with suppress(RuntimeError):  # the store may have gone with the first worker
            number = self._store.add("faults", 1)
            self._store.set(f"fault {number}", json.dumps(asdict(error)))

    def first(self) -> WorkerError | None:
        """The error that was shared first, if any was."""
        with suppress(RuntimeError):
            for number in range(1, self._store.add("faults", 0) + 1):
                if self._store.check([f"fault {number}"]):
                    return WorkerError(**json.loads(self._store.get(f"fault {number}")))
        return None


def find_fault(folder: Path, workers: int, exit_codes: Mapping[int, int], code: int = 1) -> Fault:
    """Choose the cause among the errors that workers wrote and their exit codes.

    The first of: a worker that was killed by a signal and wrote nothing; the earliest error that does not follow from
    another; a worker that ended without writing; the earliest error. SIGABRT does not count as such a signal, because
    libraries abort a process when its peers are gone.

    Exit codes are by rank, in the order in which the workers ended; where they are not known there are none, and
    `code` is that of whatever started the workers.
    """
    files = sorted(folder.glob("[0-9]*.json"), key=lambda file: file.stat().st_mtime_ns)
    errors = [WorkerError(**json.loads(file.read_bytes())) for file in files]
    ranks = {error.rank for error in errors}
    silent = {rank: code for rank, code in exit_codes.items() if code and rank not in ranks}
    killed = [rank for rank, code in silent.items() if _signal(code) not in (0, signal.SIGABRT)]
    causes = [error for error in errors if error.kind != "lost peer"]
    if killed or (silent and not causes):
        rank = (killed or list(silent))[0]
        return Fault(f"worker {rank} {_describe_exit(silent[rank])}")
    if causes:
        return causes[0].fault()
    if not errors:
        return Fault(f"the workers' launcher {_describe_exit(code)}, without a word of why")
    missing = sorted(set(range(workers)) - ranks)
    if missing and not exit_codes:
        return Fault(f"{name_workers(missing)} ended without a word ({errors[0]})", errors[0].trace)
    return errors[0].fault()


def _signal(code: int) -> int:
    """The signal that an exit code stands for, as Python (-15) or as a shell (128 + 15) writes it; 0 for none."""
    return -code if code < 0 else max(0, code - 128)


def _describe_exit(code: int) -> str:
    names = {number.value: number.name for number in signal.Signals}
    number = _signal(code)
    return f"was ended by {names.get(number, f'signal {number}')}" if number else f"ended with exit code {code}"


def name_workers(ranks: list[int]) -> str:
    """Name workers in a sentence.

    >>> name_workers([0, 2, 3])
    'workers 0, 2 and 3'
    """
    if len(ranks) == 1:
        return f"worker {ranks[0]}"
    return f"workers {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
