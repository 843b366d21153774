"""Cells of a study, each a training run or a measurement with the labels of its row, and the jobs that compute them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec, plain_epochs
from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

MEASUREMENT_VERSION = 1
"""Part of every measurement's id: raised when the same measurement would give another result than before."""


@dataclass(frozen=True)
class Measurement:
    """A function of trained runs or of settings alone: the curvature of a checkpoint, a timing.

    The function stands at the top level of a module, so that other processes can import it; it takes the runs `of`,
    which are trained first, and the plain `settings` as keywords, and returns a flat dict of JSON values. It runs
    `alone` if it measures time.
    """

    function: Callable[..., dict[str, Any]]
    of: tuple[RunSpec, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False

    def __post_init__(self) -> None:
        if "<" in self.path:
            raise UserError(f"measurement {self.path} stands inside another function: other processes cannot import it")

    @property
    def path(self) -> str:
        """Import path of the function, `module:name`."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @functools.cached_property
    def id(self) -> str:
        """Hash of all that determines the result."""
        parts = [MEASUREMENT_VERSION, self.path, [spec.run_id for spec in self.of], dict(self.settings)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, allow_nan=False).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """Short name for people; a function that is only called `measure` goes by its module."""
        module, name = self.path.split(":")
        stem = module.rpartition(".")[2] if name == "measure" else name
        return "-".join([stem.replace("_", "-"), *(spec.recipe.method for spec in self.of[:1]), self.id[:8]])

    def compute(self, runs: Sequence[RunResult]) -> dict[str, Any]:
        """Call the function on the trained runs, given in the order of `of`."""
        return self.function(runs, **self.settings)

    def resolved(self) -> Measurement:
        """Return this with every default of its runs filled in."""
        return replace(self, of=tuple(spec.resolved() for spec in self.of))


WorkItem = RunSpec | Measurement  # a piece of work with an id: a run to train or a measurement to take


def key_of(item: WorkItem) -> str:
    """The id of a run or a measurement."""
    return item.id if isinstance(item, Measurement) else item.run_id


def runs_alone(item: WorkItem) -> bool:
    """Whether nothing else may run at the same time."""
    return isinstance(item, Measurement) and item.alone


class Cell:
    """A run or a measurement, with the labels of its row, one of which should tell repeated cells apart (`seed`)."""

    def __init__(self, item: WorkItem, /, **labels: Any) -> None:
        self.item = item
        self.labels: Mapping[str, Any] = labels

    @property
    def key(self) -> str:
        """The id of its run or measurement."""
        return key_of(self.item)

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs that must be trained for this cell."""
        return self.item.of if isinstance(self.item, Measurement) else (self.item,)


@dataclass(frozen=True)
class Job:
    """A measurement or a resolved spec, the folder of its store, and the options of `run_sweep` that concern it."""

    item: WorkItem
    store: Path
    save_every: float = 60.0
    retry_failed: bool = False
    keep_states: tuple[float, ...] = ()
    trunk: Path | None = None
    log_to: tuple[str, ...] = ()

    @functools.cached_property
    def key(self) -> str:
        """The id of the run or measurement."""
        return key_of(self.item)

    @property
    def cores(self) -> int:
        """How many cores it keeps busy; for a measurement, the `threads` of its settings."""
        if isinstance(self.item, Measurement):
            return int(self.item.settings.get("threads") or 1)
        return self.item.machine.workers * (self.item.machine.threads or 1)


def find_trunks(runs: Mapping[str, RunSpec]) -> dict[str, str]:
    """Return which of these runs, resolved and by key, can branch off which other one, their trunk.

    The trunk of runs with one prefix is the first one with the most plain epochs, such as LAMB's for ScaLA's.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for key, spec in runs.items():
        if plain_epochs(spec) > 0:
            groups[spec.prefix_id].append(key)
    trunks = {prefix: max(group, key=lambda key: plain_epochs(runs[key])) for prefix, group in groups.items()}
    return {key: trunks[prefix] for prefix, group in groups.items() for key in group if key != trunks[prefix]}
