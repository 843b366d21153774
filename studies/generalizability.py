"""Figure 1(b): how do the best learning rate and the accuracy it reaches change with the batch size?"""

from __future__ import annotations

import numpy as np

from scala_lab.report.figures.accuracy import rate_heat_map
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import mean_interval, slope_interval
from scala_lab.study.tables import best_runs, data_frame, grid_note, status_note
from scala_lab.study.variants import BASELINE, grid_cells, tuned_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record, within

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


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline at the small batch size, and on the grid of batch sizes and rates."""
    task = profile.pair[0]
    heat = [
        cell
        for batch_size in profile.batch_sizes
        for cell in grid_cells(profile, BASELINE, batch_size, profile.heat_rates, profile.side_seeds, [task])
    ]
    return [*tuned_cells(profile, BASELINE, profile.small_batch, [task]), *heat]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw the heat map; compare the best rates and the gaps to the small batch."""
    task, small = profile.pair[0], profile.small_batch
    frame = frame[frame["seed"].isin(profile.side_seeds)]
    heat = frame[frame["batch_size"] != small]
    best = best_runs(frame, ("batch_size",))
    claims = [c3(heat), c4(best)]
    budget = f"AdamW, {profile.settings['epochs']} epochs, means over {len(profile.side_seeds)} seeds."
    best_caption = "Figure 1(b): the best rate of each batch size and its gap to the small batch."
    tables = [
        Tabulation(
            "",
            heat_table(heat),
            f"Figure 1(b): accuracy (%) of the baseline on {task}, batch sizes as rows, rates as columns.",
            [f"{budget} {grid_note(best, ('batch_size',))}", *status_note(frame)],
        ),
        Tabulation("best", best_by_size(best, small), best_caption),
    ]
    figure = Drawing(
        "",
        rate_heat_map(heat_cells(heat), f"Baseline on {task}: accuracy over batch size and rate"),
        f"Figure 1(b): accuracy of the baseline on {task} over batch size and rate. Framed: the best rate of a batch "
        "size, dashed where it ends the grid. Lines: rates that the square-root and the linear rule carry over from "
        "the smallest batch shown.",
    )
    exponent, slope = claims[0].parts[0].estimate, claims[1].parts[1].estimate
    summary = (
        f"The best rate grows with B to the power {exponent}; the gap to B={small} grows by {slope} points per "
        "doubling."
    )
    return Findings(tables, [figure], claims, summary)


def heat_cells(heat: DataFrame) -> DataFrame:
    """Return a row per batch size and rate: the mean score, nan unless all seeds finished, and whether any diverged."""
    groups = heat.groupby(["batch_size", "rate"], as_index=False)
    scores = groups["score"].agg(lambda values: values.mean(skipna=False))
    diverged = groups["status"].agg(lambda values: (values == "diverged").any()).rename(columns={"status": "diverged"})
    return scores.merge(diverged)


def heat_table(heat: DataFrame) -> DataFrame:
    """Return batch sizes as rows, rates as columns; a cell says so if a seed diverged."""
    cells = heat_cells(heat)
    cells["score"] = cells["score"].astype(object).where(~cells["diverged"], "diverged")
    table = cells.pivot(index="batch_size", columns="rate", values="score")
    return table.rename(columns=lambda rate: f"{rate:g}").rename_axis(columns=None, index="batch size")


def best_by_size(best: DataFrame, small: int) -> DataFrame:
    """Return the best rate of each batch size, whether it ends the grid, its score, and the gap to the small batch."""
    small_score = best[best["batch_size"] == small]["score"].mean()
    rows = [
        (size, runs["rate"].iloc[0], bool(runs["edge"].iloc[0]), score := runs["score"].mean(), small_score - score)
        for size, runs in best.groupby("batch_size")
    ]
    columns = ["batch size", "best rate", "ends the grid", "accuracy", f"gap to B={small}"]
    return data_frame(rows, columns).set_index("batch size")


def c3(heat: DataFrame) -> ClaimRecord:
    """Fit the exponent on the whole grid: batch_size, rate, seed and score (nan where a run diverged)."""
    best = best_rates(heat)
    exponent = slope_interval(np.log(best["batch_size"].astype(float)), np.log(best["rate"].astype(float)))
    return record(C3, [within("exponent of B in the best rate", exponent, *ABOUT_SQRT)])


def best_rates(heat: DataFrame) -> DataFrame:
    """Return the best rate of each batch size and seed, columns batch_size, seed and rate.

    Where the best cell has neighbours on both sides, the rate is that of the top of the parabola through the three,
    over log rate; at the edge of the grid it is the cell's own.
    """
    groups = heat.dropna(subset=["score"]).sort_values("rate").groupby(["batch_size", "seed"])
    rows = [(*key, _top(runs["rate"].to_numpy(float), runs["score"].to_numpy(float))) for key, runs in groups]
    return data_frame(rows, ["batch_size", "seed", "rate"])


def _top(rates: np.ndarray, scores: np.ndarray) -> float:
    best = int(scores.argmax())
    if not 0 < best < len(rates) - 1:
        return float(rates[best])
    near = slice(best - 1, best + 2)
    square, line, _ = np.polyfit(np.log(rates[near]), scores[near], 2)
    if square >= 0:
        return float(rates[best])
    return float(np.clip(np.exp(-line / (2 * square)), rates[best - 1], rates[best + 1]))


def c4(best: DataFrame) -> ClaimRecord:
    """Compare the scores of large batches at their best rates with those of the smallest batch_size, by seed."""
    small = best[best["batch_size"] == best["batch_size"].min()].set_index("seed")["score"]
    large = best[best["batch_size"] > best["batch_size"].min()]
    gap = large["seed"].map(small) - large["score"]
    slope = slope_interval(np.log2(large["batch_size"].astype(float)), gap)
    parts = [
        above("gap of large batches to the small one", mean_interval(gap, "points")),
        above("slope of the gap per doubling of B, in points", slope),
    ]
    return record(C4, parts)


STUDY = Study(
    name="generalizability",
    title="Accuracy over batch size and learning rate",
    question="How do the best learning rate and the accuracy it reaches change with the batch size?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(b)",
    paper_found="BERT-base on MNLI: the best rate grows roughly with the square root of B, though not always; the gap "
    "to the small batch grows from B=1K to 8K.",
    claims=(C3, C4),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
