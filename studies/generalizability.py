"""Figure 1(b): how do the best learning rate and the accuracy it reaches change with the batch size?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.report.figures.accuracy import rate_heat_map
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.statistics import mean_interval, slope_interval
from scala_lab.study.tables import best_runs, grid_note, status_note
from scala_lab.study.variants import BASELINE, grid_cells, tuned_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record, within

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile


def cells(profile: Profile) -> list[Cell]:
    """The baseline on the grid of batch sizes and rates, and at the small batch size."""
    task = profile.pair[0]
    heat = [
        cell
        for batch_size in profile.batch_sizes
        for cell in grid_cells(profile, BASELINE, batch_size, profile.heat_rates, profile.side_seeds, [task])
    ]
    return [*tuned_cells(profile, BASELINE, profile.small_batch, [task]), *heat]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """The heat map, the best rates and the gap to the small batch."""
    frame = frame[frame["seed"].isin(profile.side_seeds)]
    heat = frame[frame["batch_size"] != profile.small_batch]
    best = best_runs(frame, ("batch_size",))
    claims = [c3(heat), c4(best)]
    best_table = best_by_size(profile, best)
    tables = [
        Tabulation(
            "",
            heat_table(heat),
            f"Figure 1(b): accuracy (%) of the baseline on {profile.pair[0]}, batch sizes as rows, rates as columns.",
            _notes(profile, frame, best),
        ),
        Tabulation("best", best_table, "Figure 1(b): the best rate of each batch size and its gap to the small batch."),
    ]
    title = f"Baseline on {profile.pair[0]}: accuracy over batch size and rate"
    figure = Drawing("", rate_heat_map(heat_cells(heat), title), _caption(profile))
    exponent, slope = claims[0].parts[0].estimate, claims[1].parts[1].estimate
    found = (
        f"The best rate grows with B to the power {exponent}; the gap to B={profile.small_batch} grows by {slope} "
        "points per doubling."
    )
    return Findings(tables, [figure], claims, found)


def heat_cells(heat: pd.DataFrame) -> pd.DataFrame:
    """One row per batch size and rate: the mean score, nan unless all seeds finished, and whether any diverged."""
    groups = heat.groupby(["batch_size", "rate"], as_index=False)
    scores = groups["score"].agg(lambda values: values.mean(skipna=False))
    diverged = groups["status"].agg(lambda values: (values == "diverged").any()).rename(columns={"status": "diverged"})
    return scores.merge(diverged)


def heat_table(heat: pd.DataFrame) -> pd.DataFrame:
    """Batch sizes as rows, rates as columns; a cell says so if a seed diverged."""
    found = heat_cells(heat)
    shown = found.assign(score=found["score"].astype(object).where(~found["diverged"], "diverged"))
    table = shown.pivot(index="batch_size", columns="rate", values="score")
    return table.rename(columns=lambda rate: f"{rate:g}").rename_axis(columns=None, index="batch size")


def best_by_size(profile: Profile, best: pd.DataFrame) -> pd.DataFrame:
    """Best rate, whether it ends the grid, its score, and how far that lies below the small batch's."""
    import pandas as pd

    small = best[best["batch_size"] == profile.small_batch]["score"].mean()
    rows: list[dict[str, Any]] = [
        {
            "batch size": batch_size,
            "best rate": runs["rate"].iloc[0],
            "ends the grid": bool(runs["edge"].iloc[0]),
            "accuracy": runs["score"].mean(),
            f"gap to B={profile.small_batch}": small - runs["score"].mean(),
        }
        for batch_size, runs in best.groupby("batch_size")
    ]
    columns = ["batch size", "best rate", "ends the grid", "accuracy", f"gap to B={profile.small_batch}"]
    return pd.DataFrame(rows, columns=columns).set_index("batch size")


def _notes(profile: Profile, frame: pd.DataFrame, best: pd.DataFrame) -> list[str]:
    return [
        f"AdamW, {profile.settings['epochs']} epochs, means over {len(profile.side_seeds)} seeds. "
        f"{grid_note(best, ('batch_size',))}",
        *status_note(frame),
    ]


def _caption(profile: Profile) -> str:
    return (
        f"Figure 1(b): accuracy of the baseline on {profile.pair[0]} over batch size and rate. Framed: the best rate "
        "of a batch size, dashed where it ends the grid. Lines: rates that the square-root and the linear rule carry "
        "over from the smallest batch shown."
    )


ABOUT_SQRT = (0.25, 0.75)
"""Exponents of B that count as about a square root: nearer to 1/2 than to a constant rate or to the linear rule."""

C3 = Claim(
    id="C3",
    source="Figure 1(b)",
    study="generalizability",
    statement="The best learning rate grows about with the square root of the batch size.",
    paper="roughly sqrt(B) over B = 1K to 8K, not always",
    rule="The exponent of B in the best rate, found per batch size and seed from a parabola through the best cell and "
    "its neighbours, within {} to {}.".format(*ABOUT_SQRT),
)

C4 = Claim(
    id="C4",
    source="Figure 1(b)",
    study="generalizability",
    statement="Large batches are less accurate than the small one at their best rates, the more so the larger.",
    paper="the gap to B=32 grows from 1K to 8K",
    rule="The gap to the small batch above 0 on average over the large ones, and its slope per doubling above 0.",
)


def c3(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: the whole grid, with batch_size, rate, seed and score (nan where a run diverged)."""
    best = best_rates(frame)
    exponent = slope_interval(np.log(best["batch_size"].astype(float)), np.log(best["rate"].astype(float)))
    return record(C3, [within("exponent of B in the best rate", exponent, *ABOUT_SQRT)])


def best_rates(frame: pd.DataFrame) -> pd.DataFrame:
    """The best rate of each batch size and seed, columns batch_size, seed and rate.

    Where the best cell has neighbours on both sides, the rate is that of the top of the parabola through the three,
    over log rate; at the edge of the grid it is the cell's own.
    """
    import pandas as pd

    rows = []
    for (batch_size, seed), cells in frame.dropna(subset=["score"]).groupby(["batch_size", "seed"]):
        ordered = cells.sort_values("rate")
        rates, scores = ordered["rate"].to_numpy(float), ordered["score"].to_numpy(float)
        rows.append({"batch_size": batch_size, "seed": seed, "rate": _top(rates, scores)})
    return pd.DataFrame(rows, columns=["batch_size", "seed", "rate"])


def _top(rates: np.ndarray, scores: np.ndarray) -> float:
    best = int(scores.argmax())
    if not 0 < best < len(rates) - 1:
        return float(rates[best])
    near = slice(best - 1, best + 2)
    square, line, _ = np.polyfit(np.log(rates[near]), scores[near], 2)
    if square >= 0:
        return float(rates[best])
    return float(np.clip(np.exp(-line / (2 * square)), rates[best - 1], rates[best + 1]))


def c4(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: batch_size, seed and score at each batch size's best rate; the smallest is the small batch."""
    small = frame[frame["batch_size"] == frame["batch_size"].min()].set_index("seed")["score"]
    large = frame[frame["batch_size"] > frame["batch_size"].min()]
    gap = large["seed"].map(small) - large["score"]
    slope = slope_interval(np.log2(large["batch_size"].astype(float)), gap)
    return record(
        C4,
        [
            above("gap of large batches to the small one", mean_interval(gap, "points")),
            above("slope of the gap per doubling of B, in points", slope),
        ],
    )


STUDY = Study(
    name="generalizability",
    title="Accuracy over batch size and learning rate",
    question="How do the best learning rate and the accuracy it reaches change with the batch size?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(b)",
    paper_found="BERT-base on MNLI: the best rate grows roughly with the square root of B, though not always; the gap "
    "to the small batch grows from B=1K to 8K.",
    claims=(
        C3,
        C4,
    ),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
