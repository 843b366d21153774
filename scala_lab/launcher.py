"""What a process that was started by another one knows of it, and how it ends."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import NoReturn

LAUNCHER = "SCALA_LAB_LAUNCHER"
"""Variable that tells a process which one started it, so that it notices even an end before its own beginning."""


_STARTED_BY = os.getppid()


def orphaned() -> bool:
    """Whether the process that started this one is gone: then a fault of the other workers is only their end."""
    return os.getppid() != _STARTED_BY


def end_with_launcher() -> None:
    """End this process when the one that started it is gone, even by kill -9."""
    launcher = int(os.environ.pop(LAUNCHER, os.getppid()))  # not for processes that this one starts

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


def launched_workers(asked: int) -> int:
    """How many workers there are: under torchrun as many as it started, unless another number than 1 was asked for."""
    return int(os.environ["WORLD_SIZE"]) if asked == 1 and {"RANK", "WORLD_SIZE"} <= set(os.environ) else asked


def end_process(code: int) -> NoReturn:
    """End a worker whose work is done, without the interpreter's clearing up.

    Libraries leave native threads behind (Arrow, gloo, tokenizers). Now and then one of them meets the interpreter
    being taken down and aborts the process, and what was done and saved would count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
