"""This machine as an executor: a pool of long-lived worker processes, each with one job at a time.

A worker (`python -m scala_lab.sweep.local`) reads pickled jobs from stdin and answers each with a line on stdout.
The cost of loading libraries, data and pretrained weights is paid once per process, not once per run.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import LAUNCHER, child_pythonpath, end_process, end_with_launcher, usable_cores
from scala_lab.sweep.cells import Job, Measurement
from scala_lab.sweep.engine import STDERR_CHARACTERS, Ending, Executor, carry_out

READY = "ready"
MAX_FAILED_STARTS = 3  # how many workers in a row may die before they are ready


class LocalPool(Executor):
    """Worker processes, by default as many at once as the cores have room for; they end when this process is gone.

    A worker that dies takes only its job with it; the next job gets a new one.
    """

    def __init__(self, processes: int | None = None) -> None:
        if processes is not None and processes < 1:
            raise UserError(f"a pool needs at least one process, not {processes}")
        self.processes = processes
        self._cores = usable_cores()
        self._queue: list[Job] = []
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0

    def __exit__(self, *_: object) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._remove(worker)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue the jobs and start those there is room for.

        Measurements go first, so that little is left to measure if the sweep is interrupted, then branches, so that
        the states kept for them can go.
        """
        self._queue = sorted([*self._queue, *jobs], key=_urgency)
        self._start_jobs()

    def endings(self, seconds: float) -> list[Ending]:
        """Return the jobs that ended, and start others in their place."""
        endings = [self._read_answer(key.data) for key, _ in self._selector.select(seconds)]
        self._start_jobs()
        return [ending for ending in endings if ending is not None]

    def running(self) -> list[Job]:
        """Return the jobs of the workers."""
        return [worker.job for worker in self._workers if worker.job is not None]

    def at_once(self) -> float:
        """Return the number of processes, or the cores over the mean cores of running and queued jobs."""
        jobs = self.running() + self._queue
        per_job = sum(map(self._cores_of, jobs)) / len(jobs) if jobs else 1
        return self.processes or max(1.0, self._cores / per_job)

    def _start_jobs(self) -> None:
        for job in list(self._queue):
            running = self.running()
            has_room = not running or sum(map(self._cores_of, [*running, job])) <= self._cores
            if self.processes is not None:
                has_room = len(running) < self.processes
            if has_room:
                self._queue.remove(job)
                self._idle_worker().start(job)

    def _cores_of(self, job: Job) -> int:
        """Return the cores that a job occupies; a job on a GPU has the whole machine to itself."""
        on_gpu = isinstance(job.item, RunSpec) and job.item.machine.device == "cuda"
        return self._cores if on_gpu else min(job.cores, self._cores)

    def _idle_worker(self) -> _Worker:
        worker = next((worker for worker in self._workers if worker.job is None), None)
        if worker is None:
            worker = _Worker()
            self._workers.append(worker)
            self._selector.register(worker.answers, selectors.EVENT_READ, worker)
        return worker

    def _read_answer(self, worker: _Worker) -> Ending | None:
        """Read a line from a worker, or notice that it died, which is its job's fault unless it was not ready yet."""
        job, answer = worker.job, worker.answers.readline().decode().strip()
        if answer == READY:
            worker.ready, self._failed_starts = True, 0
            return None
        worker.job = None
        if answer in ("done", "locked") and job is not None:
            return Ending(job.key, answer)  # type: ignore[arg-type]
        self._remove(worker)
        if worker.ready:
            return None if job is None else Ending(job.key, "died", f"its {worker.describe_end()}")
        self._failed_starts += 1
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise UserError(f"worker processes do not start on this machine: the last one's {worker.describe_end()}")
        if job is not None:
            self._queue.insert(0, job)
        return None

    def _remove(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self._selector.unregister(worker.answers)
        worker.process.wait()


def _urgency(job: Job) -> int:
    return 0 if isinstance(job.item, Measurement) else 1 if job.trunk is not None else 2


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
        assert self.process.stdin
        assert self.process.stdout
        self._jobs, self.answers = self.process.stdin, self.process.stdout

    def start(self, job: Job) -> None:
        """Send it a job; if it is dead, the end of its answers will tell."""
        self.job = job
        with contextlib.suppress(BrokenPipeError):
            self._jobs.write(pickle.dumps(job))

    def describe_end(self) -> str:
        """Return how the process ended and the end of its stderr."""
        code = self.process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace")[-STDERR_CHARACTERS:].strip()
        return f"process {how}" + (f", saying: {said}" if said else "")


def main() -> int:
    """Carry out jobs until stdin ends, or the process that started this one does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep decides what it means
    end_with_launcher()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a run prints is no answer
    from scala_lab.training.preparation import cache_inputs

    cache_inputs()
    print(READY, file=answers, flush=True)
    with contextlib.suppress(EOFError):
        while True:
            job = pickle.load(sys.stdin.buffer)
            with contextlib.suppress(OSError):  # reset the peak memory (Linux), so that each run records its own
                Path("/proc/self/clear_refs").write_text("5")
            print(carry_out(job), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    end_process(main())
