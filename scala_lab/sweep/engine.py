"""Run a sweep: have an executor train and measure everything that some cells need and that the store lacks.

A sweep has no state of its own: all results are in the store, so an interrupted sweep is continued by starting it
again, and two sweeps on one store share the work.
"""

from __future__ import annotations

import random
import shutil
import time
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from scala_lab.config import RunSpec, plain_epochs
from scala_lab.errors import UserError
from scala_lab.files import check_writable
from scala_lab.sweep.cells import Cell, Job, Measurement, find_trunks, key_of, runs_alone
from scala_lab.sweep.cost import Pace, describe_seconds, expected_cost
from scala_lab.sweep.store import ENDED, Records, RunStore, check_same_inputs, unique_items

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

POLL_SECONDS = 0.5  # how often a sweep checks the locks of other sweeps while none of its own jobs ends
MAX_NAMES = 6  # how many running cells are named in the live view
STDERR_CHARACTERS = 2000  # how much of a dead process's stderr is reported

Outcome = Literal["done", "locked", "died"]
"""done: its record says how it ended; locked: another process works on it; died: its process ended without a record."""

Costs = Mapping[str, float]


@dataclass(frozen=True)
class Ending:
    """The end of a job: its key, the outcome and, if its process died, why."""

    key: str
    outcome: Outcome
    detail: str = ""


class Executor(AbstractContextManager["Executor"]):
    """Carries out jobs of a sweep on this machine or a cluster; leaving its context stops those that still run."""

    @abstractmethod
    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs, the first ones first."""

    @abstractmethod
    def endings(self, seconds: float) -> list[Ending]:
        """Return the jobs that ended since the last call; wait up to that long for the first."""

    @abstractmethod
    def running(self) -> list[Job]:
        """Return the jobs that run now, or ran when that was last asked."""

    def at_once(self) -> float:
        """Return about how many jobs run side by side, to estimate the time that is left."""
        return max(1, len(self.running()))


def run_sweep(
    cells: Iterable[Cell],
    store: RunStore,
    executor: Executor,
    *,
    progress: bool = False,
    retry_failed: bool = False,
    save_every: float = 60.0,
    log_to: Sequence[str] = (),
) -> Records:
    """Train and measure what is missing, and return the records of all cells and of the runs they need.

    Equal cells are computed once. A run that diverged or failed, or a measurement that failed, is recorded as such and
    does not stop the sweep; what failed in an earlier sweep stays so unless `retry_failed`. With `progress`, stderr
    shows what is done, running and left. A run saves its state every `save_every` seconds, and gives its metrics to the
    trackers `log_to` as well.

    Runs that differ only in the method's options wait for the one with the most plain steps, their trunk, and start
    from the states that it keeps until they have ended.
    """
    cells, root = list(cells), store.root.absolute()
    check_writable(store.root, "a store of runs is a folder")
    # resolved here, so that an item is the same on a machine with another number of cores
    options: dict[str, Any] = {"save_every": save_every, "retry_failed": retry_failed, "log_to": tuple(log_to)}
    jobs = {key: Job(item.resolved(), root, **options) for key, item in unique_items(cells).items()}
    _Sweep(jobs, store, executor, Console(stderr=True, quiet=not progress)).run()
    return store.records(cells)


class _Sweep:
    """The jobs of a sweep: those left, those of them that were started, and those of these that others have locked."""

    def __init__(self, jobs: dict[str, Job], store: RunStore, executor: Executor, console: Console) -> None:
        self.jobs, self.executor = jobs, executor
        self.needs = {
            key: {key_of(spec): spec for spec in job.item.of} if isinstance(job.item, Measurement) else {}
            for key, job in jobs.items()
        }
        statuses = {key: store.status(job.item) for key, job in jobs.items()}
        self.ended = {
            key: status
            for key, status in statuses.items()
            if status in ENDED and not (status == "failed" and jobs[key].retry_failed)
        }
        for key in jobs.keys() - self.ended.keys():  # a record is not enough where a trained model is to be measured
            for run, spec in self.needs[key].items():
                if self.ended.get(run) == "finished" and not store.has_model(spec):
                    del self.ended[run]
        check_same_inputs(store, [jobs[key].item for key in self.ended])
        self.seconds = {key: store.seconds(jobs[key].item) for key in self.ended}
        self.store = RunStore(store.root)  # all that follows happens in its folder
        runs = {key: job.item for key, job in jobs.items() if isinstance(job.item, RunSpec)}
        kept = {key: runs[key] for key in runs if key in self.ended and self._kept_states(key).is_dir()}
        trunks = find_trunks({**kept, **{key: spec for key, spec in runs.items() if key not in self.ended}})
        self.trunks = {key: trunk for key, trunk in trunks.items() if key not in self.ended}
        keep: dict[str, set[float]] = defaultdict(set)
        for key, trunk in self.trunks.items():
            keep[trunk].add(plain_epochs(runs[key]))
        self.keeping = {*keep, *(key for pair in find_trunks(runs).items() for key in pair if key in kept)}
        costs = {key: expected_cost(job.item) for key, job in jobs.items()}
        left_costs = {key: expected_cost(runs[key], branch=True) if key in self.trunks else costs[key] for key in jobs}
        # The longest first, so that no long run is left over when the others are done; the dict is the queue.
        queue = sorted((key for key in jobs if key not in self.ended), key=lambda key: -left_costs[key])
        self.left = {key: replace(jobs[key], keep_states=tuple(sorted(keep[key]))) for key in queue}
        self.started: set[str] = set()
        self.locked: set[str] = set()
        self.steps_at_death: dict[str, int] = {}
        self.view = SweepView(jobs, costs, left_costs, self.ended, console)

    def run(self) -> None:
        """Start jobs and handle their endings until none is left."""
        for key in self.ended:
            self.store.remove_stale_lock(self.jobs[key].item)
            self._drop_states(key)
        with self.view, self.executor:
            for key, seconds in self.seconds.items():
                self.view.learn(key, seconds)
            while self.left:
                self.executor.submit(self._ready())
                for ending in self.executor.endings(POLL_SECONDS if self.started else 0.0):
                    self._handle(ending)
                self._check_locked()
                locked = [self.left[key] for key in self.locked]
                self.view.update(self.executor.running(), locked, self.executor.at_once())

    def _ready(self) -> list[Job]:
        """Return the jobs that can start; one that runs alone waits until nothing else is left."""
        ready = []
        for key, job in list(self.left.items()):
            trunk = self.trunks.get(key)
            if key in self.started or trunk in self.left or any(run in self.left for run in self.needs[key]):
                continue
            if any(self.store.status(spec) != "finished" for spec in self.needs[key].values()):
                self.started.add(key)
                self._handle(Ending(key, carry_out(job)))  # records that there is nothing to measure
                continue
            busy = self.started or any(not runs_alone(other.item) for other in self.left.values())
            if not (runs_alone(job.item) and busy):
                self.started.add(key)
                ready.append(job if trunk is None else replace(job, trunk=self._kept_states(trunk).parent))
        return ready

    def _handle(self, ending: Ending) -> None:
        """Take note of an ending; a job whose process died is tried again, unless it died twice at one saved step."""
        key, item = ending.key, self.left[ending.key].item
        if ending.outcome == "done":
            self._end(key)
            return
        if ending.outcome == "died":
            record = self.store.record(item) if isinstance(item, RunSpec) else None
            steps = record["steps_done"] if record is not None else 0
            if self.steps_at_death.get(key) != steps:
                self.steps_at_death[key] = steps
                self.started.discard(key)
                return
            with self.store.lock(item) as acquired:
                if acquired:
                    self.store.record_failure(item, f"tried twice: {ending.detail}")
                    self._end(key)
                    return
        self.locked.add(key)

    def _check_locked(self) -> None:
        """End the jobs that other processes have completed, and take over those that they unlocked unfinished."""
        for key in list(self.locked):
            item = self.left[key].item
            if not self.store.remove_stale_lock(item):
                continue
            self.locked.discard(key)
            if self.store.status(item) in ENDED:
                self._end(key)
            else:
                self.started.discard(key)

    def _end(self, key: str) -> None:
        item = self.left.pop(key).item
        self.started.discard(key)
        self._drop_states(self.trunks.pop(key, key))
        self.view.learn(key, self.store.seconds(item))
        self.view.end(key, self.store.status(item))

    def _kept_states(self, key: str) -> Path:
        job = self.jobs[key]
        return RunStore(job.store).run_folder(job.item) / "trunk"  # type: ignore[arg-type]

    def _drop_states(self, key: str) -> None:
        """Delete the states that a trunk of this sweep keeps, unless a branch that is left needs them."""
        if key in self.keeping and key not in self.trunks.values():
            shutil.rmtree(self._kept_states(key), ignore_errors=True)


class SweepView(AbstractContextManager["SweepView"]):
    """Shows how many jobs are done, running, failed and left, and for how long: live on a terminal, else line by line.

    `jobs` are all by key, with their costs whole and as far as they are left to do (less for branches), `statuses`
    those that had ended before the sweep.
    """

    def __init__(
        self, jobs: Mapping[str, Job], costs: Costs, left_costs: Costs, statuses: Mapping[str, str], console: Console
    ) -> None:
        self._jobs, self._costs, self._left_costs = jobs, costs, left_costs
        self._statuses, self._console = dict(statuses), console
        self._pace, self._at_once = Pace(), 1.0
        live = console.is_terminal and not console.quiet
        self._live = Live(console=console, auto_refresh=False, transient=True) if live else None

    def __enter__(self) -> SweepView:
        if self._live:
            self._live.start()
        else:
            self._print(self._summary())
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._print(self._summary())

    def learn(self, key: str, seconds: float | None) -> None:
        """Use how long a job took, if it is known, to estimate the time that is left."""
        if seconds is not None:
            self._pace.learn(self._jobs[key].item, self._costs[key], seconds)

    def end(self, key: str, status: str) -> None:
        """Count a job that ended; name it if there is no live view, or if it did not finish."""
        self._statuses[key] = status
        if status != "finished" or not self._live:
            self._print(f"{status} {self._jobs[key].item.name}" + ("" if self._live else f": {self._summary()}"))

    def update(self, running: Sequence[Job], locked: Sequence[Job], at_once: float) -> None:
        """Redraw the live view with the jobs that run here and those that other sweeps work on."""
        self._at_once = at_once
        if not self._live:
            return
        lines = [f"running  {job.item.name}" for job in running[:MAX_NAMES]]
        lines += [f"and {len(running) - MAX_NAMES} more"] if len(running) > MAX_NAMES else []
        lines += [f"waiting for another sweep  {job.item.name}" for job in locked[:MAX_NAMES]]
        bar = ProgressBar(total=max(1, len(self._jobs)), completed=len(self._statuses), width=None)
        texts = (Text(f"  {line}", no_wrap=True) for line in lines)
        self._live.update(Group(bar, Text(self._summary(), style="bold"), *texts), refresh=True)

    def _summary(self) -> str:
        counts = Counter(self._statuses.values())
        left = [(job.item, self._left_costs[key]) for key, job in self._jobs.items() if key not in self._statuses]
        parts = [f"{len(self._statuses)} of {len(self._jobs)} done"]
        parts += [f"{counts[status]} {status}" for status in ("diverged", "failed") if counts[status]]
        if left:
            parts.append(f"{len(left)} left")
            seconds = self._pace.seconds_left(left, self._at_once)
            if seconds is not None:
                parts.append(f"about {describe_seconds(seconds)} to go")
        return ", ".join(parts)

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def carry_out(job: Job, train: Callable[..., object] | None = None) -> Outcome:
    """Train or measure, in whatever process, unless that is done already or another one does it; return done or locked.

    Whatever goes wrong is recorded with the run or measurement, so that one bad cell does not stop a sweep. `train`
    replaces `scala_lab.train`, for runs whose workers are started in another manner.
    """
    store = RunStore(job.store)
    with store.lock(job.item) as acquired:
        if not acquired:
            return "locked"
        status = store.status(job.item)
        if status == "failed" and job.retry_failed:
            store.forget_failure(job.item)
        elif status in ENDED:
            return "done"
        if isinstance(job.item, Measurement):
            return _measure(store, job.item, job.cores)
        with store.share_host(job.item):
            return _train(store, job, job.item, train)


def _train(store: RunStore, job: Job, spec: RunSpec, train: Callable[..., object] | None) -> Outcome:
    """Train a run, from the state that its trunk keeps or, if there is none that can be read, from scratch."""
    from scala_lab.training import train as training
    from scala_lab.training.run_dir import FolderInUse, kept_state

    options: dict[str, Any] = {"save_every": job.save_every, "keep_states": job.keep_states, "log_to": job.log_to}
    try:
        if job.trunk is not None and kept_state(job.trunk, spec) is not None:
            options["trunk"] = job.trunk
        (train or training.train)(spec, store.run_folder(spec), resume=True, **options)
    except FolderInUse:
        return "locked"
    except Exception as error:  # noqa: BLE001 - any error belongs to this run alone
        if job.trunk is not None and isinstance(error, UserError):  # such as a state that another sweep is deleting
            return _train(store, replace(job, trunk=None), spec, train)
        store.record_failure(spec, *_describe(error))
    return "done"


def _measure(store: RunStore, measurement: Measurement, threads: int) -> Outcome:
    started = time.perf_counter()
    try:
        runs = [_finished_run(store, spec) for spec in measurement.of]
        with store.share_host(measurement):
            started = time.perf_counter()
            _reset_process(threads)
            result = measurement.compute(runs)
        store.record_measurement(measurement, result, seconds=time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001 - any error belongs to this measurement alone
        store.record_failure(measurement, *_describe(error), seconds=time.perf_counter() - started)
    return "done"


def _finished_run(store: RunStore, spec: RunSpec) -> RunResult:
    run = store.run(spec)
    if run is None or run.status != "finished":
        how = run.status if run is not None and run.status in ENDED else "did not finish"
        raise UserError(f"there is nothing to measure: run {spec.name} {how}")
    return run


def _reset_process(threads: int) -> None:
    """Set the threads and random states of a new process, whatever this one did before."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def _describe(error: Exception) -> tuple[str, str]:
    """Return a sentence and, unless the user made a mistake, the traceback."""
    from scala_lab.training.distributed import Fault, WorkerFailure

    fault = error.fault if isinstance(error, WorkerFailure) else Fault.of(error)
    return fault.sentence, fault.trace
