"""This machine as an executor: a pool of long-lived processes, each with one run at a time.

A long-lived process of the local pool: `python -m scala_lab.sweep.local`.

It says when it is ready, then reads one job per line from stdin and answers each with a line on stdout. What
loading costs (libraries, data, pretrained weights) is paid once per process, not once per run.

This machine as an executor: a pool of processes, each with one run at a time.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.processes import LAUNCHER, end_process, end_with_launcher
from scala_lab.sweep.work import Ending, Job, child_pythonpath

READY = "ready"


def main() -> int:
    """Carry out jobs until stdin ends, or the process that started this one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep decides what it means
    end_with_launcher()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a run prints is no answer
    from scala_lab.sweep.work import Job, carry_out
    from scala_lab.training.preparation import cache_inputs

    cache_inputs()
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


LAST_WORDS = 2000
"""How many characters of a dead process's stderr are passed on."""

MOST_STILLBORN = 3
"""How many workers in a row may die before they are ready."""


class LocalPool:
    """Long-lived worker processes on this machine.

    A worker that dies takes only its job with it; the next job gets a new one. All workers end when this process is
    gone, however it ended.

    Args:
        processes: Jobs at once; default as many as the cores have room for, by the threads and workers of each.
    """

    def __init__(self, processes: int | None = None) -> None:
        if processes is not None and processes < 1:
            raise UserError(f"a pool needs at least one process, not {processes}")
        self.processes = processes
        self._cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._queue: list[Job] = []
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._stillborn = 0

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            self._drop(worker)
        self._workers.clear()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs and start those that there is room for."""
        self._queue += jobs
        self._start_what_fits()

    def endings(self, seconds: float) -> list[Ending]:
        """What came back; places that became free are filled."""
        endings = [self._ending(key.data) for key, _ in self._selector.select(seconds)]
        self._start_what_fits()
        return [ending for ending in endings if ending is not None]

    def running(self) -> list[Job]:
        """What the workers are at."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def at_once(self) -> float:
        """Processes, or cores over the cores of the jobs at hand."""
        jobs = self.running() + self._queue
        per_job = sum(map(self._cores_of, jobs)) / len(jobs) if jobs else 1
        return self.processes or max(1.0, self._cores / per_job)

    def _start_what_fits(self) -> None:
        for job in list(self._queue):
            if self._has_room(job):
                self._queue.remove(job)
                self._idle_worker().start(job)

    def _has_room(self, job: Job) -> bool:
        running = self.running()
        if self.processes is not None:
            return len(running) < self.processes
        return not running or sum(map(self._cores_of, running)) + self._cores_of(job) <= self._cores

    def _cores_of(self, job: Job) -> int:
        """Cores that a job keeps from others; one on a GPU has the machine to itself."""
        on_gpu = isinstance(job.what, RunSpec) and job.what.machine.device == "cuda"
        return self._cores if on_gpu else min(job.cores, self._cores)

    def _idle_worker(self) -> _Worker:
        for worker in self._workers:
            if worker.job is None:
                return worker
        worker = _Worker()
        self._workers.append(worker)
        self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def _ending(self, worker: _Worker) -> Ending | None:
        job, answer = worker.job, worker.answers.readline().decode().strip()
        if answer == READY:
            worker.ready, self._stillborn = True, 0
            return None
        worker.job = None
        if answer in ("done", "held") and job is not None:
            return Ending(job.key, answer)  # type: ignore[arg-type]
        self._drop(worker)
        self._workers.remove(worker)
        if job is not None and worker.ready:
            return Ending(job.key, "died", f"its {worker.last_words()}")
        if not worker.ready:
            self._start_again(job, worker)
        return None

    def _start_again(self, job: Job | None, worker: _Worker) -> None:
        """Put back the job of a worker that died before it could begin; when none can begin, it is not the job's fault.

        Raises:
            UserError: Several in a row died that way.
        """
        self._stillborn += 1
        if self._stillborn >= MOST_STILLBORN:
            raise UserError(f"worker processes do not start on this machine: the last one's {worker.last_words()}")
        if job is not None:
            self._queue.insert(0, job)

    def _drop(self, worker: _Worker) -> None:
        self._selector.unregister(worker.answers)
        worker.process.wait()


class _Worker:
    """A process that carries out one job at a time."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.ready = False
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scala_lab.sweep.local"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": child_pythonpath(), LAUNCHER: str(os.getpid())},
        )

    @property
    def answers(self) -> IO[bytes]:
        """Where its answers come from."""
        assert self.process.stdout is not None
        return self.process.stdout

    def start(self, job: Job) -> None:
        """Give it a job; if it is dead by now, the end of its answers will tell."""
        assert self.process.stdin is not None
        self.job = job
        try:
            self.process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
        except BrokenPipeError:
            return

    def last_words(self) -> str:
        """How it ended and what it said last."""
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - LAST_WORDS))
        said = self._stderr.read().decode(errors="replace").strip()
        return f"process {how}" + (f", saying: {said}" if said else "")


if __name__ == "__main__":
    end_process(main())
