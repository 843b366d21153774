"""Does large-batch training need its warm-up? A study in one file: what to run, and how to analyse it."""

from __future__ import annotations

import pandas as pd

from scala_lab.report.figures.accuracy import difference_figure
from scala_lab.study import Cell, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import paired_difference
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record

CLAIM = Claim(
    id="W1",
    source="common practice",
    study="my_study",
    statement="At a large batch, warming up over a tenth of the steps beats no warm-up.",
    paper="not in the paper",
    rule="Supported if the 95% interval of the paired difference lies above 0; 1 point is the least of interest.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return what to run: LAMB at the large batch size with three shares of warm-up, over the profile's seeds."""
    task, batch_size = profile.pair[0], profile.large_batch
    return [
        Cell(profile.spec(task, "lamb", batch_size, seed=seed, warmup=share), warmup=share, seed=seed)
        for share in (0.0, 0.1, 0.3)
        for seed in profile.seeds
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Compare the shares: `frame` has one row per cell, with its labels, its `score` and more."""
    table = frame.groupby("warmup")["score"].agg(["mean", "std", "count"]).reset_index()
    claim = judge(warm_up_helps, frame)
    figure = difference_figure(claim.parts, title=f"Warm-up on {profile.pair[0]}")
    budget = f"LAMB at B={profile.large_batch}, {profile.settings['epochs']} epochs in every row."
    return Findings(
        tables=[Tabulation("", table, "Accuracy by share of warm-up, over seeds.", [budget])],
        figures=[Drawing("", figure, "Accuracy with warm-up minus without; marks are seeds.")],
        claims=[claim],
        found=f"Warming up over a tenth of the steps changes accuracy by {claim.parts[0].estimate}.",
    )


def warm_up_helps(frame: pd.DataFrame, scale: float = 1.0) -> ClaimRecord:
    """Judge the claim; `scale` multiplies what is of interest, to see how far the verdict depends on it."""
    gain = paired_difference(frame, 0.1, 0.0, column="warmup")
    return record(CLAIM, [effect("warm-up minus none", gain, paper=None, smallest=1.0, scale=scale)])


STUDY = Study("my_study", "Warm-up", "Does LAMB need a warm-up at a large batch?", cells, analyse)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
