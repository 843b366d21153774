"""Carrying out one run or measurement in whatever process, and what a sweep asks of an executor.

Carrying out one cell in whatever process: claim it, see whether it is done by now, do it, record what came of it.

What a sweep asks of whoever carries out its jobs: this machine, a cluster.
"""

from __future__ import annotations

import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.store import ENDED, RunStore, WorkItem, key_of

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


Outcome = Literal["done", "held"]
"""done: its record says how it ended; held: another process is at it."""


@dataclass(frozen=True)
class Job:
    """A cell on its way to whoever carries it out.

    Attributes:
        what: A spec, resolved here and not where it runs, or a measurement.
        store: Folder of the store.
        save_every: Seconds between saved states of a run.
        retry_failed: Whether what failed before is tried again.
    """

    what: WorkItem
    store: Path
    save_every: float = 60.0
    retry_failed: bool = False

    @cached_property
    def key(self) -> str:
        """The id of the run or measurement."""
        return key_of(self.what)

    @cached_property
    def name(self) -> str:
        """What people know it by."""
        return self.what.name

    @property
    def cores(self) -> int:
        """How many cores it keeps busy; for a measurement, what its settings call `threads`."""
        if isinstance(self.what, Measurement):
            return int(self.what.settings.get("threads") or 1)
        return self.what.machine.workers * (self.what.machine.threads or 1)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for another process."""
        what = self.what.to_json() if isinstance(self.what, Measurement) else self.what.to_dict()
        return {"what": what, "store": str(self.store), "options": [self.save_every, self.retry_failed]}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        """The job that `to_json` wrote."""
        what = values["what"]
        item: WorkItem = Measurement.from_json(what) if "function" in what else RunSpec.from_dict(what)
        return cls(item, Path(values["store"]), *values["options"])


def carry_out(job: Job, train: Callable[..., object] | None = None) -> Outcome:
    """Do what the job says unless it is done already or another process is at it.

    Whatever goes wrong is recorded with the run or measurement, so that one bad cell does not stop a sweep.

    Args:
        job: What to do.
        train: In place of `scala_lab.train`, for runs that start in some other way.
    """
    store = RunStore(job.store)
    with store.claim(job.what) as mine:
        if not mine:
            return "held"
        status = store.status(job.what)
        if status == "failed" and job.retry_failed:
            store.forget_failure(job.what)
        elif status in ENDED:
            return "done"
        if isinstance(job.what, Measurement):
            return _measure(store, job.what, job.cores)
        with store.quiet(job.what):
            return _train(store, job.what, job.save_every, train)


def _train(store: RunStore, spec: RunSpec, save_every: float, train: Callable[..., object] | None) -> Outcome:
    import scala_lab.training
    from scala_lab.training.run_dir import FolderInUse

    try:
        (train or scala_lab.training.train)(spec, store.run_folder(spec), resume=True, save_every=save_every)
    except FolderInUse:
        return "held"
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this run alone
        store.record_failure(spec, *_describe(error))
    return "done"


def _measure(store: RunStore, measurement: Measurement, threads: int) -> Outcome:
    started = time.perf_counter()
    try:
        runs = [_finished_run(store, spec) for spec in measurement.of]
        with store.quiet(measurement):
            started = time.perf_counter()
            _start_afresh(threads)
            result = measurement.compute(runs)
        store.record_measurement(measurement, result=result, seconds=time.perf_counter() - started)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this measurement alone
        message, trace = _describe(error)
        store.record_measurement(measurement, error=message, trace=trace, seconds=time.perf_counter() - started)
    return "done"


def _finished_run(store: RunStore, spec: RunSpec) -> RunResult:
    run = store.run(spec)
    if run is None or run.status != "finished":
        how = run.status if run is not None and run.status in ENDED else "did not finish"
        raise UserError(f"there is nothing to measure: run {spec.name} {how}")
    return run


def _start_afresh(threads: int) -> None:
    """Give a measurement the threads and random states of a new process, whatever this one did before."""
    import numpy as np
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def _describe(error: Exception) -> tuple[str, str | None]:
    """A sentence, and for anything but a mistake of the user's also where it happened."""
    from scala_lab.training.distributed import WorkerFailure

    if isinstance(error, UserError):
        return str(error), None
    if isinstance(error, WorkerFailure):
        return error.fault.sentence, error.fault.trace or None
    return f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


@dataclass(frozen=True)
class Ending:
    """How a job came back.

    Attributes:
        key: The job's.
        outcome: done: its record says how it ended; held: another process is at it; died: the process that did it
            is gone, and nothing was recorded.
        detail: For people: why it died.
    """

    key: str
    outcome: Literal["done", "held", "died"]
    detail: str = ""


class Executor(Protocol):
    """Carries out jobs; used as a context that, when left, stops what still runs."""

    def __enter__(self) -> Executor: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def submit(self, jobs: Sequence[Job]) -> None:
        """Take these on, the first ones first; what does not fit yet waits its turn."""
        ...

    def endings(self, seconds: float) -> list[Ending]:
        """What has come back since the last call; waits up to that long for the first."""
        ...

    def running(self) -> list[Job]:
        """What is being carried out at this moment."""
        ...

    def at_once(self) -> float:
        """About how many jobs run side by side, for the time that is left."""
        ...


def child_pythonpath() -> str:
    """A PYTHONPATH on which another process of this interpreter finds every module that this one finds."""
    entries = (entry or os.getcwd() for entry in sys.path)
    own = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix})
    return os.pathsep.join(dict.fromkeys(entry for entry in entries if not entry.startswith(own)))
