"""What every benchmark ends in: measures with their goals, in one form, so that the summary need not know the script.

A measure is judged by its ratio, or by our own value where there is nothing to divide by. The goal says whether the
judged value is to be at least or at most a number; the limit is what counting the work says is possible, in the same
unit. Costs that both sides share, and that the count leaves out, can bring a ratio past it by some percent.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from scala_lab.files import write_json

RESULTS = Path(__file__).parent / "results"

Bound = Literal["at least", "at most"]
RatioOf = Literal["peer over ours", "ours over peer"]


@dataclass(frozen=True)
class Measure:
    """One thing that was measured.

    Attributes:
        name: What it is.
        unit: Of `ours` and `peer`.
        ours: Median of the rounds.
        peer: Median of the rounds; None where there is no peer.
        peer_name: Who or what it is measured against.
        ratio: Of the two medians.
        bound: Whether more is better ("at least") or less ("at most").
        goal: For the judged value; None for a measure that is only told.
        limit: Of the judged value.
        ours_range: Least and most of the rounds.
        peer_range: Least and most of the rounds.
    """

    name: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    bound: Bound = "at least"
    goal: float | None = None
    limit: float | None = None
    ours_range: tuple[float, float] | None = None
    peer_range: tuple[float, float] | None = None

    @property
    def judged(self) -> float:
        """What the goal and the limit are about."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none."""
        if self.goal is None:
            return None
        return self.judged >= self.goal if self.bound == "at least" else self.judged <= self.goal

    @property
    def share_of_limit(self) -> float | None:
        """How much of what is possible was reached: 1 at the limit."""
        if self.limit is None:
            return None
        return self.judged / self.limit if self.bound == "at least" else self.limit / self.judged


def alone(name: str, values: Sequence[float], unit: str, **about: Any) -> Measure:
    """A measure without a peer, from the values of all rounds."""
    return Measure(name, unit, statistics.median(values), ours_range=(min(values), max(values)), **about)


def compared(
    name: str, ours: Sequence[float], peer: Sequence[float], unit: str, ratio: RatioOf, peer_name: str, **about: Any
) -> Measure:
    """A measure against a peer, from the values of all rounds of both."""
    mine, theirs = statistics.median(ours), statistics.median(peer)
    return Measure(
        name,
        unit,
        mine,
        theirs,
        peer_name,
        ratio=theirs / mine if ratio == "peer over ours" else mine / theirs,
        ours_range=(min(ours), max(ours)),
        peer_range=(min(peer), max(peer)),
        **about,
    )


@dataclass(frozen=True)
class Result:
    """One benchmark's file.

    Attributes:
        area: Name of the script, of its file and of its figure.
        title: For people.
        measures: In the order they are to be read.
        settings: What was run.
        environment: Versions, machine, commit and command.
        details: Values of all rounds, and whatever else explains the measures.
        curves: Series for an area that is drawn as curves: panel, x, y, and the slope of y over x on logarithmic axes.
    """

    area: str
    title: str
    measures: tuple[Measure, ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    details: Mapping[str, Any]
    curves: tuple[Mapping[str, Any], ...] = ()


def write_result(
    area: str,
    title: str,
    measures: Sequence[Measure],
    settings: Mapping[str, Any],
    details: Mapping[str, Any],
    curves: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Print the measures as a table and write results/<area>.json with the command and the environment."""
    from tables import print_measures

    from scala_lab.machine import describe_environment

    plain = json.loads(json.dumps(settings, default=str))
    result = Result(area, title, tuple(measures), plain, describe_environment(), details, tuple(curves))
    print_measures([result])
    write_json(RESULTS / f"{area}.json", asdict(result))


def read_results(folder: Path = RESULTS) -> list[Result]:
    """All results of a folder that carry measures, by name of the area."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [
        Result(**{**values, "measures": tuple(Measure(**entry) for entry in values["measures"])})
        for values in found
        if "measures" in values
    ]
