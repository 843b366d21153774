"""Figure 1(b): how do the best learning rate and the accuracy it reaches change with the batch size?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scala_lab.claims.batch_size import c3, c4
from scala_lab.report.figures.accuracy import rate_heat_map
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, grid_note, status_note
from scala_lab.study.variants import BASELINE, grid_cells, tuned_cells

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


STUDY = Study(
    name="generalizability",
    title="Accuracy over batch size and learning rate",
    question="How do the best learning rate and the accuracy it reaches change with the batch size?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(b)",
    paper_found="BERT-base on MNLI: the best rate grows roughly with the square root of B, though not always; the gap "
    "to the small batch grows from B=1K to 8K.",
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
