"""Processes that tests start: every wait has an end that says what hung and what it had said, and nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parent.parent
PATIENCE = 900.0
"""Seconds; a loaded machine is slow, and what hangs must end all the same."""


class Started:
    """A process at the head of a group of its own, with what the whole group says kept in a file."""

    def __init__(self, command: Sequence[object], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
        self.command = [str(word) for word in command]
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process is watched
        self.process = subprocess.Popen(
            self.command,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,  # which nobody writes to: it ends with this process
            stdout=self._said,
            stderr=self._said,
            start_new_session=True,
        )
        self.pid = self.process.pid

    @property
    def said(self) -> str:
        """What it and its children have written so far."""
        self._said.seek(0)
        return self._said.read().decode(errors="replace")

    @property
    def ended(self) -> bool:
        """Whether the first process of the group has ended."""
        return self.process.poll() is not None

    def heard(self, word: str) -> bool:
        """Whether it has said a word; one that ends without it never will."""
        ended = self.ended
        assert word in self.said or not ended, self.describe(f"ended without saying {word!r}")
        return word in self.said

    def succeed(self) -> str:
        """Wait until it ends well; returns what it said."""
        wait_until(lambda: self.ended, "it has not ended", self)
        assert self.process.returncode == 0, self.describe(f"ended with exit code {self.process.returncode}")
        return self.said

    def kill(self) -> None:
        """Kill the first process alone, by kill -9, and wait until the others have noticed and ended."""
        self.process.kill()
        self.process.wait()
        wait_until(lambda: not group_alive(self.pid), "its children outlive it", self)

    def describe(self, what: str) -> str:
        """A complaint about this process, with what it said."""
        return f"{' '.join(self.command)[:2000]}\n{what}; it said:\n{self.said[-8000:]}"

    def clear(self) -> None:
        """End whatever is left of the group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self._said.close()


@contextlib.contextmanager
def started(command: Sequence[object], **options: object) -> Iterator[Started]:
    """A process for the block, after which nothing is left of it or of what it started."""
    process = Started(command, **options)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        process.clear()


@contextlib.contextmanager
def holding(command: Sequence[object], word: str, **options: object) -> Iterator[Started]:
    """A process for the block, begun when the process has said a word; it is killed at the end."""
    with started(command, **options) as process:
        wait_until(lambda: process.heard(word), f"it does not say {word!r}", process)
        yield process


def run(command: Sequence[object], **options: object) -> str:
    """Run a command that must end well; returns what it said."""
    with started(command, **options) as process:
        return process.succeed()


def wait_until(condition: Callable[[], object], complaint: str, *processes: Started, every: float = 0.01) -> None:
    """Look again and again until something holds; after `PATIENCE`, complain with what the processes said."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("\n".join([complaint, *(process.describe(complaint) for process in processes)]))
        time.sleep(every)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to notice does not."""
    fields = _fields(pid)
    return fields is not None and fields[0] not in "ZX"


def group_alive(group: int) -> bool:
    """Whether some process of a group runs."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    found = [(int(folder.name), _fields(int(folder.name))) for folder in Path("/proc").glob("[0-9]*")]
    members = [pid for pid, fields in found if fields is not None and int(fields[2]) == group]
    return any(map(alive, members)) if found else True  # without /proc, what ended and is not noticed counts


def _fields(pid: int) -> list[str] | None:
    """State, parent and group of a process (Linux); None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
