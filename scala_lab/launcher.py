"""What a process knows of the one that started it."""

from __future__ import annotations

import os
import threading
import time

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
