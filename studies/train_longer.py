"""Figure 6: does the large-batch baseline reach ScaLA when it trains for twice the epochs?"""

from __future__ import annotations

from scala_lab.report.figures.accuracy import lines_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import HEADINGS, best_runs, data_frame, grid_note, status_note, time_note
from scala_lab.study.variants import BASELINE, EFFECTIVE, SCALA, side_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, above, difference, record

LONGER = "baseline, longer"

C15 = Claim(
    id="C15",
    source="Figure 6",
    study="train_longer",
    statement="Training the large-batch baseline for twice the epochs does not reach ScaLA's accuracy.",
    paper="below 84 after 12 epochs against 85.2 after 6 (MNLI, B=2K)",
    rule="ScaLA minus the baseline trained longer above 0.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline for the usual epochs and for longer, and ScaLA, at twice the large batch size."""
    longer = BASELINE.but(LONGER, epochs=profile.longer * profile.settings["epochs"])
    variants = (BASELINE, longer, SCALA, EFFECTIVE)
    return side_cells(profile, variants, 2 * profile.large_batch, profile.pair[:1], seeds=profile.seeds)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy after every epoch."""
    best = best_runs(frame)
    claim = c15(best)
    task, batch_size = profile.pair[0], 2 * profile.large_batch
    table = Tabulation(
        "",
        longer_table(profile, best),
        f"Figure 6: accuracy (%) on {task} at B={batch_size} after the last epoch and at the best one.",
        [
            f"Means over {len(profile.seeds)} seeds. {grid_note(best)} The rate of the longer run falls over its own "
            "epochs.",
            *status_note(frame),
            time_note(profile),
        ],
    )
    curves = epoch_scores(best)
    figures = []
    if len(curves):
        figure = lines_figure(curves, "epoch", x_label="epoch", title=f"Training longer at B={batch_size}")
        figures = [Drawing("", figure, f"Figure 6: accuracy after every epoch on {task} at B={batch_size}.")]
    summary = f"ScaLA minus the baseline trained {profile.longer} times as long: {claim.parts[0].estimate}."
    return Findings([table], figures, [claim], summary)


def longer_table(profile: Profile, best: DataFrame) -> DataFrame:
    """Return a row per method: its epochs, cost and accuracy."""
    epochs, shown = profile.settings["epochs"], ("forward_passes", "train_seconds", "score", "best_score")
    rows = [
        (method, epochs * (profile.longer if method == LONGER else 1), *(runs[name].mean() for name in shown))
        for method, runs in best.groupby("method", sort=False)
    ]
    return data_frame(rows, ["method", "epochs", *(HEADINGS[name] for name in shown)]).set_index("method")


def epoch_scores(best: DataFrame) -> DataFrame:
    """Return a row per run and epoch: task, method, seed, epoch and score, of the first metric on the first split."""
    rows = []
    for _, run in best.iterrows():
        for epoch in run["epochs"] if isinstance(run["epochs"], list) else []:
            metrics = next(value for value in epoch.values() if isinstance(value, dict))
            score = 100 * next(iter(metrics.values()))
            rows.append((run["task"], run["method"], run["seed"], epoch["epoch"], score))
    return data_frame(rows, ["task", "method", "seed", "epoch", "score"])


def c15(best: DataFrame) -> ClaimRecord:
    """Compare ScaLA with the baseline that trains longer."""
    return record(C15, [above("ScaLA minus the baseline trained longer", difference(best, "ScaLA", LONGER))])


STUDY = Study(
    name="train_longer",
    title="Training the baseline longer",
    question="Does the large-batch baseline reach ScaLA when it trains for twice the epochs?",
    cells=cells,
    analyse=analyse,
    source="Figure 6",
    paper_found="MNLI at B=2K: ScaLA 85.2 after 6 epochs, the baseline hardly 84 after 12.",
    claims=(C15,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
