"""A sweep: everything that some cells need and that is not there yet, carried out by an executor.

A sweep keeps nothing of its own: what is done stands in the store, so a sweep that was cut off anywhere is
continued by starting it again, and two sweeps on one store share the work.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from scala_lab.config import RunSpec
from scala_lab.sweep.cells import Cell, Measurement
from scala_lab.sweep.cost import expected_cost
from scala_lab.sweep.progress import SweepView, open_view
from scala_lab.sweep.store import (
    ENDED,
    Records,
    RunStore,
    WorkItem,
    check_root,
    check_same_inputs,
    key_of,
    unique_items,
)
from scala_lab.sweep.work import Ending, Executor, Job, carry_out

POLL_SECONDS = 0.5
"""How often the sweep looks at what other sweeps hold, while nothing of its own comes back."""


def run_sweep(
    cells: Iterable[Cell],
    store: RunStore,
    executor: Executor | None = None,
    *,
    progress: bool = False,
    retry_failed: bool = False,
    save_every: float = 60.0,
) -> Records:
    """Train and measure what is missing; returns the records of all cells and of the runs they need.

    A run that diverged or failed, or a measurement that failed, is recorded as such and does not stop the sweep.

    Args:
        cells: What is needed; cells that are alike are done once.
        store: Where it is kept.
        executor: Who does it; default a pool on this machine.
        progress: Show on stderr what is done, running and left.
        retry_failed: Try again what failed before; else it stays failed.
        save_every: Seconds between saved states of a run, from which an interrupted one goes on.
    """
    cells = list(cells)
    check_root(store.root)
    if executor is None:
        from scala_lab.sweep.local import LocalPool

        executor = LocalPool()
    with open_view(progress) as view:
        _Sweep(cells, store, executor, view, retry_failed, save_every).run()
    return store.records(cells)


class _Sweep:
    """One sweep's bookkeeping: what is left, what is under way, what others hold."""

    def __init__(
        self,
        cells: list[Cell],
        store: RunStore,
        executor: Executor,
        view: SweepView,
        retry_failed: bool,
        save_every: float,
    ) -> None:
        self.store, self.executor, self.view = store, executor, view
        self.jobs = {
            key: Job(_resolved(what), store.root.absolute(), save_every, retry_failed)
            for key, what in unique_items(cells).items()
        }
        self.costs = {key: expected_cost(job.what) for key, job in self.jobs.items()}
        self.needs = {key: [key_of(spec) for spec in _needs(job.what)] for key, job in self.jobs.items()}
        statuses = {key: store.status(job.what) for key, job in self.jobs.items()}
        over = {"finished", "diverged"} if retry_failed else set(ENDED)
        # Longest first, so that no long run is left over when the others are done; dict order is the queue's.
        self.left = {
            key: self.jobs[key]
            for key in sorted(self.jobs, key=lambda key: -self.costs[key])
            if statuses[key] not in over
        }
        done = [job.what for key, job in self.jobs.items() if key not in self.left]
        check_same_inputs(store, done)
        for what in done:
            store.remove_stale_lock(what)
        self.under_way: set[str] = set()
        self.held: set[str] = set()
        self.deaths: dict[str, int] = {}
        view.begin(self.jobs, self.costs, {key: status for key, status in statuses.items() if key not in self.left})
        for key, status in statuses.items():
            self._learn(key, status)

    def run(self) -> None:
        """Go on until nothing is left."""
        with self.executor:
            while self.left:
                self.executor.submit(self._ready())
                for ending in self.executor.endings(POLL_SECONDS if self.under_way else 0.0):
                    self._hear(ending)
                self._look_at_held()
                held = [self.left[key].name for key in self.held]
                self.view.update(self.executor.running(), held, self.executor.at_once())

    def _ready(self) -> list[Job]:
        """What can be started now; a measurement that is to be alone waits until nothing else is left."""
        ready = []
        for key, job in list(self.left.items()):
            if key in self.under_way or any(run in self.left for run in self.needs[key]):
                continue
            if any(self.store.status(spec) != "finished" for spec in _needs(job.what)):
                self.under_way.add(key)
                self._hear(Ending(key, carry_out(job)))  # which finds nothing to measure, and says so in its record
            elif not _alone(job) or not (self.under_way or any(not _alone(other) for other in self.left.values())):
                ready.append(job)
                self.under_way.add(key)
        return ready

    def _hear(self, ending: Ending) -> None:
        if ending.outcome == "done":
            self._end(ending.key)
        elif ending.outcome == "held":
            self.held.add(ending.key)
        else:
            self._retry_or_fail(ending)

    def _look_at_held(self) -> None:
        """See how far other processes have come with what they hold, and take over what they let go unfinished."""
        for key in list(self.held):
            if self.store.is_locked(self.left[key].what):
                continue
            self.held.discard(key)
            if self.store.status(self.left[key].what) in ENDED:
                self._end(key)
            else:
                self.under_way.discard(key)

    def _retry_or_fail(self, ending: Ending) -> None:
        """Try again what died with its process, unless it died twice without having come any further."""
        job = self.left[ending.key]
        run = self.store.run(job.what) if isinstance(job.what, RunSpec) else None
        come = run.record["steps_done"] if run is not None else 0
        if self.deaths.get(ending.key) != come:
            self.deaths[ending.key] = come
            self.under_way.discard(ending.key)
            return
        with self.store.claim(job.what) as mine:
            if mine:
                self.store.record_failure(job.what, f"tried twice: {ending.detail}")
                self._end(ending.key)
            else:
                self.held.add(ending.key)

    def _end(self, key: str) -> None:
        job = self.left.pop(key)
        self.under_way.discard(key)
        status = self.store.status(job.what)
        self._learn(key, status)
        self.view.ended(key, status)

    def _learn(self, key: str, status: str) -> None:
        """Tell the view how long something took that ran to its end."""
        seconds = self.store.seconds(self.jobs[key].what) if status == "finished" else None
        if seconds is not None:
            self.view.learn(self.jobs[key].what, self.costs[key], seconds)


def _needs(what: WorkItem) -> tuple[RunSpec, ...]:
    return what.of if isinstance(what, Measurement) else ()


def _alone(job: Job) -> bool:
    return isinstance(job.what, Measurement) and job.what.alone


def _resolved(what: WorkItem) -> WorkItem:
    """The same with every default filled in here, so that it means the same on a machine with other cores."""
    if isinstance(what, Measurement):
        return replace(what, of=tuple(spec.resolved() for spec in what.of))
    return what.resolved()
