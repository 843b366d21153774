"""What a study needs: cells, each a run or a measurement under the words by which the study knows it.

Something computed once, from trained runs or from settings alone, and kept like a run: by the hash of its words.

A training run is addressed by its spec; everything else that a study needs (the curvature of a checkpoint, a timing,
a simulation) is a `Measurement`: the name of a function, the runs it looks at, and its settings.

One thing that a study needs, under the words by which it knows it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.errors import UserError

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult


MEASUREMENT_VERSION = 1
"""Part of every id: raised when the same measurement would give another result than before."""


@dataclass(frozen=True)
class Measurement:
    """What to compute.

    Attributes:
        function: Takes the runs and the settings, and returns a flat dict that JSON can hold: numbers, texts, lists of
            numbers. It stands at the top level of a module, so that other processes can import it.
        of: The runs it looks at; they are trained first.
        settings: Keywords of the function; plain values.
        alone: Whether nothing else may run meanwhile, because time is measured.
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
        """Where the function is found: `module:name`."""
        return f"{self.function.__module__}:{self.function.__qualname__}"

    @functools.cached_property
    def id(self) -> str:
        """Hash of all that determines the result."""
        words = [MEASUREMENT_VERSION, self.path, [spec.run_id for spec in self.of], dict(self.settings)]
        text = json.dumps(words, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """A short name for people."""
        what = self.function.__name__.replace("_", "-")
        return "-".join([what, *([self.of[0].recipe.method] if self.of else []), self.id[:8]])

    def compute(self, runs: Sequence[RunResult]) -> dict[str, Any]:
        """Call the function on the trained runs, in the order of `of`."""
        return self.function(runs, **self.settings)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for another process."""
        return {
            "function": self.path,
            "of": [spec.to_dict() for spec in self.of],
            "settings": dict(self.settings),
            "alone": self.alone,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Measurement:
        """The measurement that `to_json` wrote."""
        module, _, name = values["function"].partition(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise UserError(f"measurement {values['function']!r} cannot be found: {error}") from None
        return cls(function, tuple(map(RunSpec.from_dict, values["of"])), values["settings"], values["alone"])


class Cell:
    """A run or a measurement, and the words by which a study knows it.

    Args:
        what: A spec to train or a measurement to take.
        labels: Columns of the cell's row; one of them should tell repeated cells apart (`seed`).
    """

    def __init__(self, what: RunSpec | Measurement, **labels: Any) -> None:
        self.what = what
        self.labels: Mapping[str, Any] = labels

    @property
    def key(self) -> str:
        """The id of its run or measurement."""
        return self.what.id if isinstance(self.what, Measurement) else self.what.run_id

    @property
    def specs(self) -> tuple[RunSpec, ...]:
        """The runs that must be trained for this cell."""
        return self.what.of if isinstance(self.what, Measurement) else (self.what,)
