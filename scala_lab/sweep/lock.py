"""Holding a piece of work so that no other process starts it, and letting go of it however the process ends.

A claim is a lock on a file, which the system drops with the process: kill -9 leaves no stale claim on one host.
Not every file system carries such locks between hosts, so the file also names its holder and is touched while the
claim lasts: a claim of another host counts until its file has been left untouched for a while.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 120.0
"""How long another host's claim outlives its last heartbeat."""


@contextmanager
def locked(file: Path) -> Iterator[bool]:
    """Hold a claim for the block; yields whether it could be had. The file exists only while it is held."""
    handle = _take(file)
    if handle is None:
        yield False
        return
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(handle, ended), name="claim-heartbeat", daemon=True)
    heart.start()
    try:
        yield True
    finally:
        ended.set()
        heart.join()
        _let_go(file, handle)


def is_locked(file: Path) -> bool:
    """Whether another process holds the claim now."""
    if not file.exists():
        return False
    handle = _take(file)
    if handle is None:
        return True
    _let_go(file, handle)
    return False


@contextmanager
def on_this_host(file: Path, alone: bool) -> Iterator[None]:
    """Keep timings undisturbed: a block that is `alone` waits for all others of this host to end, and they for it."""
    file = file.with_name(f"{file.name}-{platform.node()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


def _take(file: Path) -> IO[str] | None:
    """The locked file with our name in it, or None if somebody else holds it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while True:
        handle = file.open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            return None
        if not _still_there(handle, file):  # its holder let go of it after we opened it
            handle.close()
            continue
        if _held_elsewhere(handle):
            handle.close()
            return None
        handle.truncate(0)
        handle.write(json.dumps({"host": platform.node(), "pid": os.getpid()}))
        handle.flush()
        return handle


def _let_go(file: Path, handle: IO[str]) -> None:
    file.unlink(missing_ok=True)  # before the lock goes, so that nobody takes a file that is about to vanish
    handle.close()


def _still_there(handle: IO[str], file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle.fileno()), file.stat())
    except FileNotFoundError:
        return False


def _held_elsewhere(handle: IO[str]) -> bool:
    """Whether another host, whose lock we may not see, has lately said that it holds the claim."""
    handle.seek(0)
    try:
        host = json.load(handle)["host"]
    except (ValueError, KeyError, TypeError):  # new, or its writer was cut off
        return False
    return host != platform.node() and time.time() - os.fstat(handle.fileno()).st_mtime < STALE_SECONDS


def _beat(handle: IO[str], ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT_SECONDS):
        os.utime(handle.fileno())
