"""Run a sweep: have an executor train and measure everything that some cells need and that the store lacks.

A sweep has no state of its own: all results are in the store, so an interrupted sweep is continued by starting it
again, and two sweeps on one store share the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console

from scala_lab.config import RunSpec
from scala_lab.sweep.cells import Cell, Measurement, WorkItem, key_of, runs_alone
from scala_lab.sweep.cost import expected_cost
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.progress import SweepView
from scala_lab.sweep.store import ENDED, Records, RunStore, check_root, check_same_inputs, unique_items
from scala_lab.sweep.work import Ending, Executor, Job, carry_out

POLL_SECONDS = 0.5
"""How often a sweep checks the locks of other sweeps while none of its own jobs ends."""


def run_sweep(
    cells: Iterable[Cell],
    store: RunStore,
    executor: Executor | None = None,
    *,
    progress: bool = False,
    retry_failed: bool = False,
    save_every: float = 60.0,
) -> Records:
    """Train and measure what is missing, and return the records of all cells and of the runs they need.

    A run that diverged or failed, or a measurement that failed, is recorded as such and does not stop the sweep.

    Args:
        cells: What is needed; equal cells are computed once.
        store: Where the results are.
        executor: Default a pool of processes on this machine.
        progress: Show on stderr what is done, running and left.
        retry_failed: Try again what failed before; else it stays failed.
        save_every: Seconds between saved states of a run, from which an interrupted one continues.
    """
    cells = list(cells)
    check_root(store.root)
    jobs = {
        key: Job(_resolved(item), store.root.absolute(), save_every, retry_failed)
        for key, item in unique_items(cells).items()
    }
    _Sweep(jobs, store, executor or LocalPool(), Console(stderr=True, quiet=not progress)).run()
    return store.records(cells)


class _Sweep:
    """The jobs of a sweep: those left, those of them that were started, and those of these that others have locked."""

    def __init__(self, jobs: dict[str, Job], store: RunStore, executor: Executor, console: Console) -> None:
        self.jobs, self.store, self.executor = jobs, store, executor
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
        costs = {key: expected_cost(job.item) for key, job in jobs.items()}
        # The longest first, so that no long run is left over when the others are done; the dict is the queue.
        longest_first = sorted(jobs, key=lambda key: -costs[key])
        self.left = {key: jobs[key] for key in longest_first if key not in self.ended}
        self.started: set[str] = set()
        self.locked: set[str] = set()
        self.steps_at_death: dict[str, int] = {}
        self.view = SweepView(jobs, costs, self.ended, console)

    def run(self) -> None:
        """Start jobs and handle their endings until none is left."""
        check_same_inputs(self.store, [self.jobs[key].item for key in self.ended])
        for key in self.ended:
            self.store.remove_stale_lock(self.jobs[key].item)
        with self.view, self.executor:
            for key in self.ended:
                self.view.learn(key, self.store.seconds(self.jobs[key].item))
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
            if key in self.started or any(run in self.left for run in self.needs[key]):
                continue
            if any(self.store.status(spec) != "finished" for spec in self.needs[key].values()):
                self.started.add(key)
                self._handle(Ending(key, carry_out(job)))  # records that there is nothing to measure
                continue
            busy = self.started or any(not runs_alone(other.item) for other in self.left.values())
            if not (runs_alone(job.item) and busy):
                self.started.add(key)
                ready.append(job)
        return ready

    def _handle(self, ending: Ending) -> None:
        if ending.outcome == "done":
            self._end(ending.key)
        elif ending.outcome == "locked":
            self.locked.add(ending.key)
        else:
            self._retry_or_fail(ending)

    def _retry_or_fail(self, ending: Ending) -> None:
        """Try again a job whose process died, unless it died twice at the same step."""
        key, item = ending.key, self.left[ending.key].item
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
            else:
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
        self.view.learn(key, self.store.seconds(item))
        self.view.end(key, self.store.status(item))


def _resolved(item: WorkItem) -> WorkItem:
    """Fill in every default here, so that the item is the same on a machine with another number of cores."""
    if isinstance(item, Measurement):
        return replace(item, of=tuple(spec.resolved() for spec in item.of))
    return item.resolved()
