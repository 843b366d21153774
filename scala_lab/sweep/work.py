"""Jobs of a sweep: carry out one run or measurement in whatever process, and the interface of executors."""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Measurement, WorkItem, key_of
from scala_lab.sweep.store import ENDED, RunStore

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

Outcome = Literal["done", "locked", "died"]
"""done: its record says how it ended; locked: another process works on it; died: its process ended without a record."""

STDERR_CHARACTERS = 2000
"""How many characters of a dead process's stderr are reported."""


@dataclass(frozen=True)
class Job:
    """A measurement or a resolved spec, the folder of its store, and the options of `run_sweep` that concern it."""

    item: WorkItem
    store: Path
    save_every: float = 60.0
    retry_failed: bool = False

    @cached_property
    def key(self) -> str:
        """The id of the run or measurement."""
        return key_of(self.item)

    @property
    def cores(self) -> int:
        """How many cores it keeps busy; for a measurement, the `threads` of its settings."""
        if isinstance(self.item, Measurement):
            return int(self.item.settings.get("threads") or 1)
        return self.item.machine.workers * (self.item.machine.threads or 1)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for another process."""
        item = self.item.to_json() if isinstance(self.item, Measurement) else self.item.to_dict()
        return {"item": item, "store": str(self.store), "options": [self.save_every, self.retry_failed]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        """Rebuild the job that `to_json` wrote."""
        read = Measurement.from_json if "function" in values["item"] else RunSpec.from_dict
        return cls(read(values["item"]), Path(values["store"]), *values["options"])


def carry_out(job: Job, train: Callable[..., object] | None = None) -> Outcome:
    """Train or measure unless that is done already or another process is doing it; return done or locked.

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
            return _train(store, job.item, job.save_every, train)


def _train(store: RunStore, spec: RunSpec, save_every: float, train: Callable[..., object] | None) -> Outcome:
    from scala_lab.training import train as training
    from scala_lab.training.run_dir import FolderInUse

    try:
        (train or training.train)(spec, store.run_folder(spec), resume=True, save_every=save_every)
    except FolderInUse:
        return "locked"
    except Exception as error:  # noqa: BLE001 - any error belongs to this run alone
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
        store.record_measurement(measurement, result=result, seconds=time.perf_counter() - started)
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


def _describe(error: Exception) -> tuple[str, str | None]:
    """Return a sentence and, unless the user made a mistake, the traceback."""
    from scala_lab.training.distributed import WorkerFailure

    if isinstance(error, UserError):
        return str(error), None
    if isinstance(error, WorkerFailure):
        return error.fault.sentence, error.fault.trace or None
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


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
        """Return the jobs that run at this moment."""

    @abstractmethod
    def at_once(self) -> float:
        """Return about how many jobs run side by side, to estimate the time that is left."""


def child_pythonpath() -> str:
    """Return a PYTHONPATH with which another process of this interpreter finds every module that this one finds."""
    entries = (entry or os.getcwd() for entry in sys.path)
    own = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))
