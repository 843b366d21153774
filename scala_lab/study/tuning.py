"""Settings that are tuned: each is chosen on rows of its own, by a grid that grows until its best point is inside.

A study asks `Choices.choose` for a setting, such as the learning rate of LAMB at a batch size. The first answer may be
provisional: the trials that are still to be run are then in `pending`. The caller runs them and asks the study again,
until nothing is pending. Nothing but the records of the trials enters a choice, so a report that holds them makes the
same choices again without training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scala_lab.config import RunSpec

TUNING_SPLIT = "tuning"
MAX_TRIALS = 9

DISAGREEMENT = 0.04
"""Share of answers that differ between two trials: what the standard error of their difference follows from."""


def score_error(rows: int) -> float:
    """Return the standard error of the difference of two trials' scores, in points, by the choice of tuning rows."""
    return 100 * math.sqrt(DISAGREEMENT / rows)


@dataclass(frozen=True)
class Choice:
    """The value chosen for a setting, and the trials behind it."""

    value: float
    scores: Mapping[float, float]  # by value, in percent on the tuning rows; -inf where the trial diverged or failed
    closed: bool = False  # whether nothing below the lowest value is left to try

    @property
    def interior(self) -> bool:
        """Whether the grid goes on at both sides of the chosen value, or ends where it should."""
        above_lowest = self.closed or min(self.scores, default=self.value) < self.value
        return above_lowest and self.value < max(self.scores, default=self.value)


class Choices:
    """The choices that the records of trials allow; `find` returns the record of a run, or None if there is none.

    Trials that depend on another choice wait until that is made, unless `ahead` asks for them at its provisional value,
    to count them.
    """

    def __init__(
        self, find: Callable[[RunSpec], Mapping[str, Any] | None] = lambda spec: None, *, ahead: bool = False
    ) -> None:
        self.find, self.ahead = find, ahead
        self.made: dict[tuple[RunSpec, str], Choice] = {}  # by the spec without the setting, and the setting's name
        self.trials: dict[str, RunSpec] = {}  # all that were asked for, by run id
        self.pending: dict[str, RunSpec] = {}  # those of them that have no record yet

    def choose(
        self,
        spec: RunSpec,
        setting: str,
        grid: Sequence[float],
        *,
        after: Choice | None = None,
        extend: bool = True,
        radius: bool = False,
    ) -> Choice:
        """Return the value with the best score on the tuning rows, extending a grid of ratio 2 beyond its best end.

        A setting of several words, such as `omega rho`, is that many settings with one value. The grid has at most
        `MAX_TRIALS` points; one that is not to be extended stays as it is. While trials are pending, its own or those
        of the choice that it comes after, the middle of the grid is returned.

        A `radius` is a size of noise, and 0 is the method without it, whose score is that of the choice it comes after.
        Its grid goes down only while its lowest point scores below that by more than a standard error: anything
        smaller would be no noise at all.
        """
        if (spec, setting) in self.made:
            return self.made[spec, setting]
        values = sorted(grid)
        if after is not None and not after.scores and not self.ahead:
            return Choice(values[len(values) // 2], {})
        while True:
            scores = {value: self._score(spec.override(**dict.fromkeys(setting.split(), value))) for value in values}
            if any(score is None for score in scores.values()):
                return Choice(values[len(values) // 2], {})
            known = {value: score for value, score in scores.items() if score is not None}
            best = max(known, key=lambda value: (known[value], -value))
            closed = False
            if radius and after is not None and after.scores:
                error = score_error(spec.data.tuning_samples)
                closed = known[values[0]] >= after.scores[after.value] - error
            found = Choice(best, known, closed)
            if not extend or len(values) == MAX_TRIALS or found.interior:
                break
            values = [rounded(best / 2), *values] if best == values[0] else [*values, rounded(best * 2)]
        self.made[spec, setting] = found
        return found

    def _score(self, trial: RunSpec) -> float | None:
        self.trials[trial.run_id] = trial
        record = self.find(trial)
        if record is None or record["status"] not in ("finished", "diverged", "failed"):
            self.pending[trial.run_id] = trial
            return None
        self.pending.pop(trial.run_id, None)
        if record["status"] != "finished":
            return -math.inf
        metrics = record["metrics"][TUNING_SPLIT]
        return 100 * next(iter(metrics.values()))


def rounded(value: float) -> float:
    """Round to three digits, so that a value is written as it is used."""
    return float(f"{value:.3g}")
