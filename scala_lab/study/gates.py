"""Gates: what must hold of the runs before a claim on accuracy or sharpness is judged by them at all.

A model that never trained, a rate at the end of its grid or a score on the rows that chose the rate say nothing about a
method. A gate that fails makes the verdict "not testable here", whatever the numbers are.

The gates look at every run, not at the mean of an arm. One run of four that stays at chance still leaves a mean far
above chance, but it then is the difference that is measured: differences are no longer those of trained models, and
Student's t, which expects one hump, is no longer their interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

FITTED = 0.5
"""Largest share of chance's loss that the loss on training rows may keep: above it a model has not fitted its rows."""

MIN_STEPS = 40
"""Fewest steps of a run: below them warm-up and decay leave almost no step at a full rate."""

MIN_SEEDS = 2
"""Fewest seeds with all arms: below them there is no interval."""


@dataclass(frozen=True)
class Gate:
    """A condition on the runs, whether they pass it, and what it would take."""

    name: str
    passed: bool
    detail: str  # what was found
    remedy: str = ""  # what it would take; '' if passed

    def to_dict(self) -> dict[str, Any]:
        """Return the gate as an entry of claims.json."""
        return {"name": self.name, "passed": self.passed, "detail": self.detail, "remedy": self.remedy or None}


GATES = ("arms run", "clear of chance", "fitted", "best setting inside", "chosen on other rows", "steps", "seeds")
"""Names of all gates, in the order in which they are shown."""


def accuracy_gates(
    frame: pd.DataFrame,
    arms: Sequence[object],
    *,
    ask: Sequence[str] = GATES,
    tuned: Sequence[object] | None = None,
    column: str = "method",
    by: Sequence[str] = ("model", "task"),
) -> list[Gate]:
    """Return the gates of a claim from the frame of its runs, one row per run with the columns of `frame_of`.

    `arms` are the values of `column` that the claim compares, in every cell of `by`; other rows are left out. A claim
    may `ask` for some gates only. `tuned` are the arms whose setting must be the best inside of a grid: all, unless the
    claim is about an arm that is not tuned, such as one at the square-root rule's rate.
    """
    frame = frame[frame[column].isin(list(arms))]
    finished = frame[frame["status"] == "finished"] if "status" in frame.columns else frame
    named = _Names(frame, column)
    chosen = finished if tuned is None else finished[finished[column].isin(list(tuned))]
    gates: dict[str, Callable[[], Gate]] = {
        "arms run": lambda: arms_run(frame, arms, column, by),
        "clear of chance": lambda: clear_of_chance(finished, named),
        "fitted": lambda: fitted(finished, named),
        "best setting inside": lambda: best_setting_inside(chosen, named),
        "chosen on other rows": lambda: chosen_on_other_rows(finished, named),
        "steps": lambda: enough_steps(finished, named),
        "seeds": lambda: enough_seeds(finished, arms, column, by),
    }
    return [gates[name]() for name in GATES if name in ask]


class _Names:
    """Names a run in a sentence by its arm and by what else tells the frame's runs apart."""

    def __init__(self, frame: pd.DataFrame, column: str) -> None:
        forms = {"model": "{}", "task": "on {}", "batch_size": "at B={}"}
        self.column = column
        self.forms = {
            name: form
            for name, form in forms.items()
            if name != column and name in frame.columns and frame[name].nunique() > 1
        }

    def __call__(self, run: Any) -> str:
        return " ".join([str(run[self.column]), *(form.format(run[name]) for name, form in self.forms.items())])


def _seed(run: Any) -> str:
    return f" (seed {run['seed']})" if "seed" in run else ""


def _sentence(found: Sequence[str], most: int = 3) -> str:
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"{'; '.join(found[:most])}{more}"


def _number(run: Any, name: str) -> float:
    value = run.get(name)
    return math.nan if value is None else float(value)


def _cells(frame: pd.DataFrame, by: Sequence[str]) -> list[tuple[Any, ...]]:
    keys = [frame[name].tolist() for name in by if name in frame.columns]
    return list(zip(*keys, strict=True)) if keys else [()] * len(frame)


def arms_run(frame: pd.DataFrame, arms: Sequence[object], column: str, by: Sequence[str]) -> Gate:
    """Ask that every arm has runs in every cell, and that none of them diverged or failed.

    Leaving out a diverged run would compare the survivors of one arm with all runs of the other.
    """
    cells = _cells(frame, by)
    there = set(zip(cells, frame[column].tolist(), strict=True))
    missing = [
        " ".join([str(arm), *(["on", ", ".join(map(str, cell))] if cell else [])])
        for cell in (dict.fromkeys(cells) or [()])
        for arm in arms
        if (cell, arm) not in there
    ]
    if missing:
        return Gate(
            "arms run",
            False,
            f"not part of this profile: {_sentence(missing)}",
            f"a profile that also runs {_sentence(missing)}",
        )
    lost = frame[frame["status"] != "finished"] if "status" in frame.columns else frame.iloc[:0]
    if len(lost):
        counts = lost.groupby([column, "status"], sort=False).size()
        totals = frame[column].value_counts()
        found = [f"{count} of {totals[arm]} runs of {arm} {status}" for (arm, status), count in counts.items()]
        return Gate("arms run", False, _sentence(found), "runs that finish: run what is missing, or lower the rate")
    return Gate("arms run", True, f"{len(frame)} runs of {len(arms)} arms finished")


def clear_of_chance(runs: pd.DataFrame, name: Callable[[Any], str]) -> Gate:
    """Ask that every run's score is above chance by more than two standard errors of a guesser's score.

    A guesser's accuracy at chance c on n rows has the standard error sqrt(c (1 - c) / n); a correlation, whose chance
    is 0, has 1 / sqrt(n).
    """
    found, least = [], math.inf
    for run in runs.to_dict("records"):
        score, chance, rows = _number(run, "score"), _number(run, "chance_score"), _number(run, "rows")
        if not (rows > 0) and isinstance(run.get("correct"), np.ndarray):
            rows = len(run["correct"])
        if not (rows > 0 and math.isfinite(score) and math.isfinite(chance)):
            found.append(f"{name(run)}: no score, chance or rows recorded")
            continue
        share = chance / 100
        error = 100 * math.sqrt((share * (1 - share) if 0 < share < 1 else 1.0) / rows)
        above = (score - chance) / error
        least = min(least, above)
        if above <= 2:
            found.append(f"{name(run)}{_seed(run)} scores {score:.1f}%, chance {chance:.1f}% ± {error:.1f}")
    return _gate(
        "clear of chance",
        runs,
        found,
        f"every run at least {least:.0f} standard errors above chance",
        "more steps, more rows or another rate, until every run learns its task",
    )


def fitted(runs: pd.DataFrame, name: Callable[[Any], str], share: float = FITTED) -> Gate:
    """Ask that every run's loss on training rows is at most a share of chance's loss."""
    found, largest = [], 0.0
    for run in runs.to_dict("records"):
        kept = _number(run, "train_loss") / (_number(run, "chance_loss") or math.nan)
        if not math.isfinite(kept):
            found.append(f"{name(run)}: no training loss recorded")
        elif kept > share:
            found.append(f"{name(run)}{_seed(run)} ends at {kept:.2f} of chance's loss")
        largest = max(largest, kept)
    return _gate(
        "fitted",
        runs,
        found,
        f"training loss at most {largest:.2f} of chance's",
        f"training until the loss on training rows is at most {share:g} of chance's",
    )


def best_setting_inside(runs: pd.DataFrame, name: Callable[[Any], str]) -> Gate:
    """Ask that each arm's best setting lies inside of its grid; a setting that was not tuned fails too."""
    ends, untuned = [], []
    for run in runs.to_dict("records"):
        inside = run.get("interior")
        if inside is None or inside != inside:
            untuned.append(f"{name(run)} is not tuned")
        elif not inside:
            ends.append(f"the best setting of {name(run)} ends its grid")
    found = list(dict.fromkeys([*ends, *untuned]))
    remedy = "a grid extended until its best setting lies inside" if ends else "settings tuned on tuning rows"
    return _gate("best setting inside", runs, found, "every best setting lies inside of its grid", remedy)


def chosen_on_other_rows(runs: pd.DataFrame, name: Callable[[Any], str]) -> Gate:
    """Ask that scores are of other rows than those that chose settings; a run that nothing was chosen for passes."""
    found = []
    for run in runs.to_dict("records"):
        chosen, scored = run.get("selection_split"), run.get("score_split")
        if isinstance(chosen, str) and chosen == scored:
            found.append(f"{name(run)} was chosen and scored on {scored}")
    return _gate(
        "chosen on other rows",
        runs,
        list(dict.fromkeys(found)),
        "settings were chosen on other rows than those scored",
        "scores on rows that no choice has seen",
    )


def enough_steps(runs: pd.DataFrame, name: Callable[[Any], str], least: int = MIN_STEPS) -> Gate:
    """Ask that every run takes a minimum of steps."""
    found, fewest = [], math.inf
    for run in runs.to_dict("records"):
        steps = _number(run, "steps")
        if not steps >= least:
            found.append(f"{name(run)} has {steps:.0f} steps")
        fewest = min(fewest, steps)
    return _gate(
        "steps",
        runs,
        list(dict.fromkeys(found)),
        f"at least {fewest:.0f} steps",
        f"at least {least} steps: more rows, more epochs or smaller batches",
    )


def enough_seeds(
    runs: pd.DataFrame, arms: Sequence[object], column: str, by: Sequence[str], least: int = MIN_SEEDS
) -> Gate:
    """Ask that a minimum of seeds has all arms in all cells."""
    cells = _cells(runs, by)
    have: dict[Any, set[Any]] = {}
    for seed, cell, arm in zip(runs["seed"].tolist(), cells, runs[column].tolist(), strict=True):
        have.setdefault(seed, set()).add((cell, arm))
    wanted = {(cell, arm) for cell in cells for arm in arms}
    whole = sum(wanted <= places for places in have.values())
    text = f"{whole} seed{'s' * (whole != 1)} with all arms"
    if whole >= least:
        return Gate("seeds", True, text)
    return Gate("seeds", False, text, f"at least {least} seeds with all arms")


def _gate(name: str, runs: pd.DataFrame, found: Sequence[str], passed: str, remedy: str) -> Gate:
    if not len(runs):
        return Gate(name, False, "no finished run", "the runs of this claim")
    return Gate(name, False, _sentence(found), remedy) if found else Gate(name, True, passed)
