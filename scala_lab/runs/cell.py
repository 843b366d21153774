"""One thing that a study needs, under the words by which it knows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scala_lab.runs.measurement import Measurement
from scala_lab.spec import RunSpec


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
