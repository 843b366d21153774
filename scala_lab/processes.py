"""What a process knows of the one that started it, and how it ends; with the version and location of the package."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

VERSION = "0.1.0"

PACKAGE_PARENT = Path(__file__).parent.parent
"""The folder from which `import scala_lab` works."""

LAUNCHER = "SCALA_LAB_LAUNCHER"
"""Environment variable with the process id of the launcher, for a process whose launcher may end before it starts."""

_STARTED_BY = os.getppid()


def launched_workers(workers: int) -> int:
    """Return the number of workers: that of torchrun, if `workers` is the default 1 and torchrun started this one."""
    under_torchrun = {"RANK", "WORLD_SIZE"} <= set(os.environ)
    return int(os.environ["WORLD_SIZE"]) if workers == 1 and under_torchrun else workers


def orphaned() -> bool:
    """Whether the process that started this one is gone; the other workers then fail only because they end too."""
    return os.getppid() != _STARTED_BY


def end_with_launcher() -> None:
    """End this process as soon as the one that started it is gone, even by kill -9."""
    launcher = int(os.environ.pop(LAUNCHER, os.getppid()))  # removed: it is not the launcher of this one's children

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()


def outlast_sigterm(has_more_to_record: Callable[[], bool], seconds: float = 10.0) -> None:
    """Delay the end by SIGTERM by some seconds if this process still has something to record.

    torchrun sends SIGTERM to all workers as soon as one of them has failed. Given time, the first worker notices its
    broken connection a moment later, and writes into the run's record which worker failed.

    A thread waits for the signal, because the main thread may be in a library that never lets Python's handlers run.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(reader, 64):
            pass
        if has_more_to_record():
            time.sleep(seconds)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="sigterm-watch", daemon=True).start()


def end_process(code: int) -> NoReturn:
    """End a process whose work is done, without the interpreter's finalisation.

    Libraries leave native threads behind (Arrow, gloo, tokenizers). Now and then one of them runs into the interpreter
    while it shuts down and aborts the process, so that finished and saved work would count as failed.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
