"""Starting Python processes of this package, and ending them with the process that started them.

The version, and where the package is: of use to whoever starts other processes of it.

What a process that was started by another one knows of it, and how it ends.
"""

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
"""The folder that `import scala_lab` finds it in."""


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


def outlast_sigterm(has_more_to_say: Callable[[], bool], seconds: float = 10.0) -> None:
    """Let SIGTERM end this process only after a while, if there is something that it will note by itself.

    torchrun sends it to all workers as soon as one of them has failed. Left alone, the first worker finds its
    connection broken a moment later, and writes into the run's record whose fault it was.

    A thread waits for the signal, because the main one may be in a library that never lets Python's handlers run.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGTERM not in os.read(woken, 64):
            pass
        if has_more_to_say():
            time.sleep(seconds)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="sigterm-watch", daemon=True).start()


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
