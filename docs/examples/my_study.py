"""Does large-batch training need its warm-up? A study in one file: what to run, and how to analyse it."""

from __future__ import annotations

import pandas as pd

from scala_lab.study import Cell, Findings, Profile, Study, Tabulation, main
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import difference_drawing, notes, table_by_task
from scala_lab.study.variants import LAMB, arm_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record

SHARES = (0.0, 0.1, 0.3)
CLAIM = Claim(
    id="W1",
    source="common practice",
    study="my_study",
    statement="At a large batch, warming up over a tenth of the steps beats no warm-up.",
    paper="not in the paper",
    rule="The difference, paired by seed, is significantly above 0, and not significantly below half a point.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return what to run: LAMB at its tuned rate with three shares of warm-up, over the profile's seeds."""
    variants = [LAMB.but(f"warm-up {share:g}", warmup=share) for share in SHARES]
    return arm_cells(profile, variants, profile.large_batch, profile.pair[:1])


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Compare the shares: `frame` has one row per cell, with its labels, its `score` and more."""
    claim = judge(w1, frame, profile.level)
    table = table_by_task(frame, ["method"], profile.pair[:1], against="warm-up 0", level=profile.level)
    return Findings(
        tables=[Tabulation("", table, "Accuracy by share of warm-up.", notes(profile, frame, against="warm-up 0"))],
        figures=difference_drawing(claim.parts, "Warm-up at a large batch", "Accuracy"),
        claims=[claim],
        found=f"Warming up over a tenth of the steps changes accuracy by {claim.parts[0].estimate}.",
    )


def w1(frame: pd.DataFrame) -> ClaimRecord:
    """Judge by runs that pass all gates: trained, at a tuned rate, scored on rows that no choice has seen."""
    arms = ("warm-up 0.1", "warm-up 0")
    gain = paired_difference(frame, *arms)
    return record(CLAIM, [effect("warm-up over none", gain, None, 0.5)], accuracy_gates(frame, arms))


STUDY = Study("my_study", "Warm-up", "Does LAMB need a warm-up at a large batch?", cells, analyse)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
