"""A long-lived process of the local pool: `python -m scala_lab.runs.worker`.

It says when it is ready, then reads one job per line from stdin and answers each with a line on stdout. What
loading costs (libraries, data, pretrained weights) is paid once per process, not once per run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import IO

from scala_lab.launcher import end_process, end_with_launcher

READY = "ready"


def main() -> int:
    """Carry out jobs until stdin ends, or the process that started this one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep decides what it means
    end_with_launcher()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a run prints is no answer
    from scala_lab.runs.work import Job, carry_out
    from scala_lab.training.kept import keep_inputs

    keep_inputs()
    _answer(answers, READY)
    for line in sys.stdin:
        _forget_peak_memory()
        _answer(answers, carry_out(Job.from_json(json.loads(line))))
    return 0


def _answer(answers: IO[str], word: str) -> None:
    answers.write(word + "\n")
    answers.flush()


def _forget_peak_memory() -> None:
    """Have the system count the most memory held from now on, so that it is the next run's own (Linux)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        return


if __name__ == "__main__":
    end_process(main())
