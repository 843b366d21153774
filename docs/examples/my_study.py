"""Does large-batch training need its warm-up? A study in one file: what to run, and how to analyse it."""

from __future__ import annotations

import pandas as pd

from scala_lab.report.figures.style import new_figure, styled
from scala_lab.study import Cell, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import paired_columns, paired_difference
from scala_lab.study.verdicts import Claim, above, record

CLAIM = Claim(
    id="W1",
    source="common practice",
    study="my_study",
    statement="At a large batch, warming up over a tenth of the steps beats no warm-up.",
    paper="not in the paper",
    rule="Reproduced if the 95% interval of the difference, paired by seed, lies above 0 points.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return what to run: LAMB at the large batch size with three shares of warm-up, over the profile's seeds."""
    task, batch_size = profile.pair[1], profile.large_batch
    return [
        Cell(profile.spec(task, "lamb", batch_size, seed=seed, warmup=share), warmup=share, seed=seed)
        for share in (0.0, 0.1, 0.3)
        for seed in profile.seeds
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Compare the shares: `frame` has one row per cell, with its labels, its `score` and more."""
    table = frame.groupby("warmup")["score"].agg(["mean", "std", "count"]).reset_index()
    pairs = paired_columns(frame[["score", "warmup", "seed"]], "score", "warmup", 0.1, 0.0)
    gain = paired_difference(pairs["left"], pairs["right"])
    with styled():
        figure = new_figure(5.6, 3.2)
        axes = figure.subplots()
        axes.errorbar(table["warmup"], table["mean"], yerr=table["std"], marker="o", capsize=4)
        axes.set(xlabel="share of the steps spent warming up", ylabel=f"accuracy on {profile.pair[1]} (%)")
    budget = f"LAMB at B={profile.large_batch}, {profile.settings['epochs']} epochs in every row."
    return Findings(
        tables=[Tabulation("", table, "Accuracy by share of warm-up, over seeds.", [budget])],
        figures=[Drawing("", figure, "Accuracy over the share of warm-up; whiskers are deviations over seeds.")],
        claims=[record(CLAIM, [above("warm-up over none", gain)])],
        found=f"Warming up over a tenth of the steps changes accuracy by {gain}.",
    )


STUDY = Study("my_study", "Warm-up", "Does LAMB need a warm-up at a large batch?", cells, analyse)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
