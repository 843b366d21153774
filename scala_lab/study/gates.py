"""Gates: what must hold of the runs before a claim on accuracy or sharpness is judged by them at all.

A model that never trained, a rate at the end of its grid or a score on the rows that chose the rate say nothing about a
method. A gate that fails makes the verdict "not testable here", whatever the numbers are.

The gates look at every run, not at the mean of an arm. One run of four that stays at chance still leaves a mean far
above chance, but it then is the difference that is measured: differences are no longer those of trained models, and
Student's t, which expects one hump, is no longer their interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scala_lab.study.statistics import cells_of

if TYPE_CHECKING:
    import pandas as pd

FITTED = 0.6
"""Largest share of chance's loss that the loss on training rows may keep: above it a model has not fitted its rows.

A calibrated model of two balanced classes that keeps 0.6 of it answers 85% of its training rows rightly.
"""

MIN_STEPS = 40  # fewest steps of a run: below them warm-up and decay leave almost no step at a full rate

MIN_SEEDS = 2  # fewest seeds with all arms: below them there is no interval


@dataclass(frozen=True)
class Gate:
    """A condition on the runs, whether they pass it, and what it would take."""

    name: str
    passed: bool
    detail: str  # what was found
    remedy: str = ""  # what it would take; '' once passed

    def __post_init__(self) -> None:
        if self.passed:
            object.__setattr__(self, "remedy", "")

    def to_dict(self) -> dict[str, Any]:
        """Return the gate as an entry of claims.json."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail, "remedy": self.remedy or None}


GATES = ("arms run", "clear of chance", "fitted", "best setting inside", "chosen on other rows", "steps", "seeds")
"""Names of all gates, in the order in which they are shown."""


def accuracy_gates(
    frame: pd.DataFrame, arms: Sequence[object], *, ask: Sequence[str] = GATES, column: str = "method"
) -> list[Gate]:
    """Return the gates of a claim from the frame of its runs, one row per run with the columns of `frame_of`.

    `arms` are the values of `column` that the claim compares, for every model and task; other rows are left out. A
    claim may `ask` for some gates only.
    """
    frame = frame[frame[column].isin(list(arms))]
    finished = frame[frame["status"] == "finished"]
    named = _Names(frame, column)
    each_run = (_clear_of_chance, _fitted, _best_setting_inside, _chosen_on_other_rows, _enough_steps)
    gates = [_arms_run(frame, arms, column), *(gate(finished, named) for gate in each_run)]
    return [gate for gate in [*gates, _enough_seeds(finished, arms, column)] if gate.name in ask]


class _Names:
    """Names a run in a sentence by its arm and by what else tells the frame's runs apart."""

    def __init__(self, frame: pd.DataFrame, column: str) -> None:
        forms = {"model": "{}", "task": "on {}", "batch_size": "at B={:.0f}"}  # a column with gaps is one of floats
        told = [name for name in forms if name != column and name in frame and frame[name].nunique() > 1]
        self.column, self.forms = column, {name: forms[name] for name in told}

    def __call__(self, run: Any, seed: bool = False) -> str:
        words = [str(run[self.column]), *(form.format(run[name]) for name, form in self.forms.items())]
        return " ".join([*words, f"(seed {run['seed']:g})"] if seed else words)


def _sentence(found: Sequence[str], most: int = 3) -> str:
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{'; '.join(found[:most])}{more}"


def _number(run: Any, name: str) -> float:
    value = run.get(name)
    return math.nan if value is None else float(value)


def _arms_run(frame: pd.DataFrame, arms: Sequence[object], column: str) -> Gate:
    """Ask that every arm has runs in every cell, and that none of them diverged or failed.

    Leaving out a diverged run would compare the survivors of one arm with all runs of the other.
    """
    cells = cells_of(frame)
    there = set(zip(cells, frame[column].tolist(), strict=True))
    missing = [
        " ".join([str(arm), *(["on", ", ".join(map(str, cell))] if cell else [])])
        for cell in (dict.fromkeys(cells) or [()])
        for arm in arms
        if (cell, arm) not in there
    ]
    if missing:
        lost = _sentence(missing)
        return Gate("arms run", False, f"not part of this profile: {lost}", f"a profile that also runs {lost}")
    totals = frame[column].value_counts()
    counts = frame[frame["status"] != "finished"].groupby([column, "status"], sort=False).size()
    found = [f"{count} of {totals[arm]} runs of {arm} {status}" for (arm, status), count in counts.items()]
    remedy = "runs that finish: run what is missing, or lower the rate"
    return _gate("arms run", frame, found, f"{len(frame)} runs of {len(arms)} arms finished", remedy)


def _clear_of_chance(runs: pd.DataFrame, name: _Names) -> Gate:
    """Ask that every run's score is above chance by more than two standard errors of a guesser's score.

    A guesser's accuracy at chance c on n rows has the standard error sqrt(c (1 - c) / n); a correlation, whose chance
    is 0, has 1 / sqrt(n).
    """
    found, least = [], math.inf
    for run in runs.to_dict("records"):
        score, chance, rows = _number(run, "score"), _number(run, "chance_score"), _number(run, "rows")
        if not (rows > 0 and math.isfinite(score) and math.isfinite(chance)):
            found.append(f"{name(run)}: no score, chance or rows recorded")
            continue
        share = chance / 100
        error = 100 * math.sqrt((share * (1 - share) if 0 < share < 1 else 1.0) / rows)
        above = (score - chance) / error
        least = min(least, above)
        if above <= 2:
            found.append(f"{name(run, seed=True)} scores {score:.1f}%, chance {chance:.1f}% ± {error:.1f}")
    passed = f"every run at least {least:.0f} standard errors above chance"
    remedy = "more steps, more rows or another rate, until every run learns its task"
    return _gate("clear of chance", runs, found, passed, remedy)


def _fitted(runs: pd.DataFrame, name: _Names) -> Gate:
    """Ask that every run's loss on training rows is at most a share of chance's loss."""
    found, largest = [], 0.0
    for run in runs.to_dict("records"):
        kept = _number(run, "train_loss") / (_number(run, "chance_loss") or math.nan)
        if not math.isfinite(kept):
            found.append(f"{name(run)}: no training loss recorded")
        elif kept > FITTED:
            found.append(f"{name(run, seed=True)} ends at {kept:.2f} of chance's loss")
        largest = max(largest, kept)
    remedy = f"training until the loss on training rows is at most {FITTED:g} of chance's"
    return _gate("fitted", runs, found, f"training loss at most {largest:.2f} of chance's", remedy)


def _best_setting_inside(runs: pd.DataFrame, name: _Names) -> Gate:
    """Ask that each arm's best setting lies inside of its grid; a setting that was not tuned fails too."""
    ends, untuned = [], []
    for run in runs.to_dict("records"):
        inside = run.get("interior")
        if inside is None or inside != inside:
            untuned.append(f"{name(run)} is not tuned")
        elif not inside:
            ends.append(f"the best setting of {name(run)} ends its grid")
    remedy = "a grid extended until its best setting lies inside" if ends else "settings tuned on tuning rows"
    passed = "every best setting lies inside of its grid"
    return _gate("best setting inside", runs, [*ends, *untuned], passed, remedy)


def _chosen_on_other_rows(runs: pd.DataFrame, name: _Names) -> Gate:
    """Ask that scores are of other rows than those that chose settings; a run that nothing was chosen for passes."""
    found = [
        f"{name(run)} was chosen and scored on {run['score_split']}"
        for run in runs.to_dict("records")
        if isinstance(run.get("selection_split"), str) and run["selection_split"] == run.get("score_split")
    ]
    passed = "settings were chosen on other rows than those scored"
    return _gate("chosen on other rows", runs, found, passed, "scores on rows that no choice has seen")


def _enough_steps(runs: pd.DataFrame, name: _Names) -> Gate:
    """Ask that every run takes a minimum of steps."""
    steps = [(run, _number(run, "steps")) for run in runs.to_dict("records")]
    found = [f"{name(run)} has {count:.0f} steps" for run, count in steps if not count >= MIN_STEPS]
    fewest = min((count for _, count in steps), default=math.nan)
    remedy = f"at least {MIN_STEPS} steps: more rows, more epochs or smaller batches"
    return _gate("steps", runs, found, f"at least {fewest:.0f} steps", remedy)


def _enough_seeds(runs: pd.DataFrame, arms: Sequence[object], column: str) -> Gate:
    """Ask that a minimum of seeds has all arms in all cells."""
    cells = cells_of(runs)
    have: dict[Any, set[Any]] = {}
    for seed, cell, arm in zip(runs["seed"].tolist(), cells, runs[column].tolist(), strict=True):
        have.setdefault(seed, set()).add((cell, arm))
    wanted = {(cell, arm) for cell in cells for arm in arms}
    whole = sum(wanted <= places for places in have.values())
    found = f"{whole} seed{'s' * (whole != 1)} with all arms"
    return Gate("seeds", whole >= MIN_SEEDS, found, f"at least {MIN_SEEDS} seeds with all arms")


def _gate(name: str, runs: pd.DataFrame, found: Sequence[str], passed: str, remedy: str) -> Gate:
    if not len(runs):
        return Gate(name, False, "no finished run", "the runs of this claim")
    return Gate(name, not found, _sentence(list(dict.fromkeys(found))) or passed, remedy)
