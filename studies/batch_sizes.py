"""Figure 7: how does accuracy fall as the batch grows, by method?"""

from __future__ import annotations

import numpy as np

from scala_lab.report.figures.accuracy import lines_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes
from scala_lab.study.variants import BASELINE, LAMB, SCALA, side_cells
from scala_lab.study.verdicts import PAIRED_BY, Claim, ClaimRecord, above, below, difference, mean_slope, record

C16 = Claim(
    id="C16",
    source="Figure 7",
    study="batch_sizes",
    statement="Accuracy falls as the batch grows, and ScaLA stays above LAMB and the baseline at every large batch.",
    paper="at 8K: 84.4 / 83.9 / 83.5 (MNLI), 92.6 / 91.7 / 91.3 (SST-2) for ScaLA / LAMB / baseline",
    rule="Slope of the baseline's accuracy per doubling of B below 0; ScaLA minus LAMB and ScaLA minus baseline over "
    "all large batches above 0.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return three methods at the small batch size and from the large one on."""
    large = [batch_size for batch_size in profile.batch_sizes if batch_size >= profile.large_batch]
    return [
        cell
        for variant in (BASELINE, LAMB, SCALA)
        for batch_size in (profile.small_batch, *large)
        for cell in side_cells(profile, variant, batch_size, profile.pair)
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy over batch sizes."""
    best = best_runs(frame, ("task", "method", "batch_size"))
    claim = c16(best)
    rule = "moved by the square-root rule" if profile.scale_rates else "the same at every large batch"
    table = Tabulation(
        "",
        size_table(frame, best),
        "Figure 7: accuracy (%) over batch sizes.",
        [*notes(profile, frame, best), f"Rates at other batch sizes are those of the large one, {rule}."],
    )
    figures = []
    if len(best):
        figure = lines_figure(
            best, "batch_size", x_label="batch size, log scale", title="Accuracy over batch sizes", log_x=True
        )
        figures.append(Drawing("", figure, "Figure 7: accuracy over batch sizes; bars standard deviations over seeds."))
    slope, over_lamb, over_baseline = (part.estimate for part in claim.parts)
    summary = (
        f"The baseline changes by {slope} per doubling of B; at large batches ScaLA minus LAMB is {over_lamb}, ScaLA "
        f"minus baseline {over_baseline}."
    )
    return Findings([table], figures, [claim], summary)


def size_table(frame: DataFrame, best: DataFrame) -> DataFrame:
    """Return tasks and methods as rows, batch sizes as columns; a cell says so if all its rates diverged."""
    keys = ["task", "method", "batch_size"]
    diverged = frame.groupby(keys, sort=False)["status"].agg(lambda values: (values == "diverged").any())
    scores = best.groupby(keys, sort=False)["score"].mean().astype(object).reindex(diverged.index)
    table = scores.where(scores.notna() | ~diverged, "diverged").unstack("batch_size")
    return table.rename(columns=lambda size: f"B={size}").rename_axis(columns=None)


def c16(best: DataFrame) -> ClaimRecord:
    """Compare baseline, LAMB and ScaLA over `batch_size`, whose smallest value is the small batch."""
    baseline = best[best["method"] == "baseline"]
    baseline = baseline.assign(doublings=np.log2(baseline["batch_size"].astype(float)))
    large = best[best["batch_size"] > best["batch_size"].min()]
    paired_by = (*PAIRED_BY, "batch_size")
    parts = [
        below("slope of the baseline per doubling of B", mean_slope(baseline, "doublings")),
        above("ScaLA minus LAMB at large batches", difference(large, "ScaLA", "LAMB", paired_by=paired_by)),
        above("ScaLA minus baseline at large batches", difference(large, "ScaLA", "baseline", paired_by=paired_by)),
    ]
    return record(C16, parts)


STUDY = Study(
    name="batch_sizes",
    title="Accuracy over batch sizes",
    question="How does accuracy fall as the batch grows, by method?",
    cells=cells,
    analyse=analyse,
    source="Figure 7",
    paper_found="Accuracy falls from B=32 to 8K; at 8K ScaLA, LAMB and baseline reach 84.4, 83.9, 83.5 on MNLI and "
    "92.6, 91.7, 91.3 on SST-2.",
    claims=(C16,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
