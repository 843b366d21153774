"""File locks: one process at a time works on a run or a measurement, and a process that is killed holds nothing.

A lock is an flock, which the system releases with the process: kill -9 leaves no stale lock on one host. Not every
file system carries flocks between hosts, so the file also names its holder and is touched while the lock is held:
the lock of another host counts until its file has not been touched for `STALE_SECONDS`.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0
"""How long the lock of another host outlives its last heartbeat."""


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Try to hold a lock for the block, and yield whether it was acquired; the file exists only while it is held."""
    handle = _acquire(file)
    if handle is None:
        yield False
        return
    ended = threading.Event()
    heartbeat = threading.Thread(target=_beat, args=(handle, ended), name="lock-heartbeat", daemon=True)
    heartbeat.start()
    try:
        yield True
    finally:
        ended.set()
        heartbeat.join()
        file.unlink(missing_ok=True)  # before the flock goes, so that nobody locks a file that is about to vanish
        handle.close()


def remove_stale_lock(file: Path) -> bool:
    """Remove the lock file that a killed process left behind; return whether the lock is free now."""
    if not file.exists():
        return True
    with locked(file) as acquired:
        return acquired


@contextmanager
def host_lock(file: Path, exclusive: bool) -> Iterator[None]:
    """Share this host with other blocks, or, if `exclusive`, wait for all of them to end and keep new ones waiting."""
    file = file.with_name(f"{file.name}-{platform.node()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield


def _acquire(file: Path) -> IO[str] | None:
    """Return the locked file with this process's name in it, or None if another process holds the lock."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = file.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle.fileno()), file.stat()):
                break
        handle.close()  # its holder removed the file after it was opened here
    if _held_by_other_host(handle):
        handle.close()
        return None
    handle.truncate(0)
    handle.write(json.dumps({"host": platform.node(), "pid": os.getpid()}))
    handle.flush()
    return handle


def _held_by_other_host(handle: IO[str]) -> bool:
    """Return whether another host, whose flock may be invisible here, has touched its lock recently."""
    handle.seek(0)
    try:
        host = json.load(handle)["host"]
    except (ValueError, KeyError, TypeError):  # a new file, or its writer was killed
        return False
    return host != platform.node() and time.time() - os.fstat(handle.fileno()).st_mtime < STALE_SECONDS


def _beat(handle: IO[str], ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_SECONDS):
        os.utime(handle.fileno())
