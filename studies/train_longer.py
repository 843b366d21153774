"""Figure 6: does the large-batch baseline reach ScaLA when it trains for twice the epochs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scala_lab.report.figures.accuracy import lines_figure
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, grid_note, status_note, time_note
from scala_lab.study.variants import BASELINE, EFFECTIVE, SCALA, side_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, above, difference, record

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

LONGER = "baseline, longer"


def cells(profile: Profile) -> list[Cell]:
    """The baseline for the usual epochs and for longer, and ScaLA for the usual ones, at twice the large batch."""
    longer = BASELINE.but(LONGER, epochs=profile.longer * profile.settings["epochs"])
    return [
        cell
        for row in (BASELINE, longer, SCALA, EFFECTIVE)
        for cell in side_cells(profile, row, profile.longer_batch, profile.pair[:1], seeds=profile.seeds)
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy after every epoch."""
    best = best_runs(frame)
    claim = c15(best)
    task, batch_size = profile.pair[0], profile.longer_batch
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
        figure = lines_figure(
            curves, "epoch", x_label="epoch", title=f"Training longer at B={batch_size}", panel="task"
        )
        figures.append(Drawing("", figure, f"Figure 6: accuracy after every epoch on {task} at B={batch_size}."))
    found = f"ScaLA minus the baseline trained {profile.longer} times as long: {claim.parts[0].estimate}."
    return Findings([table], figures, [claim], found)


def longer_table(profile: Profile, best: pd.DataFrame) -> pd.DataFrame:
    """A row per method: its epochs, cost and accuracy."""
    import pandas as pd

    epochs = profile.settings["epochs"]
    rows = [
        {
            "method": method,
            "epochs": epochs * (profile.longer if method == LONGER else 1),
            "passes": runs["forward_passes"].mean(),
            "time (s)": runs["train_seconds"].mean(),
            "accuracy": runs["score"].mean(),
            "best epoch's accuracy": runs["best_score"].mean(),
        }
        for method, runs in best.groupby("method", sort=False)
    ]
    columns = ["method", "epochs", "passes", "time (s)", "accuracy", "best epoch's accuracy"]
    return pd.DataFrame(rows, columns=columns).set_index("method")


def epoch_scores(best: pd.DataFrame) -> pd.DataFrame:
    """One row per run and epoch: task, method, seed, epoch and score, of the first metric on the first split."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for _, run in best.iterrows():
        for line in run["epochs"] if isinstance(run["epochs"], list) else []:
            metrics = next(value for value in line.values() if isinstance(value, dict))
            score = 100 * next(iter(metrics.values()))
            rows.append({**{name: run[name] for name in ("task", "method", "seed")}, "epoch": line["epoch"]})
            rows[-1]["score"] = score
    return pd.DataFrame(rows, columns=["task", "method", "seed", "epoch", "score"])


C15 = Claim(
    id="C15",
    source="Figure 6",
    study="train_longer",
    statement="Training the large-batch baseline for twice the epochs does not reach ScaLA's accuracy.",
    paper="below 84 after 12 epochs against 85.2 after 6 (MNLI, B=2K)",
    rule="ScaLA minus the baseline trained longer above 0.",
)


def c15(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA and baseline, longer."""
    longer = difference(frame, "ScaLA", "baseline, longer")
    return record(C15, [above("ScaLA minus the baseline trained longer", longer)])


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
