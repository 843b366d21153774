"""Beyond the paper: how strong must the noise be to act, and when is it too strong?

Three kinds over decades of omega, all with shared dropout masks, so that the noise is the only difference between the
two passes: adversarial with normalized ascent (rho = omega), adversarial with the printed ascent (rho = 10 omega, the
paper's ratio), and Gaussian.
"""

from __future__ import annotations

import math

from scala_lab.report.figures.accuracy import ACCURACY, lines_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import HEADINGS, best_runs, grid_note, means_by, panel_rows, status_note, two_digits
from scala_lab.study.variants import EFFECTIVE, LAMB, side_cells

NORMALIZED, LITERAL, GAUSSIAN = "normalized ascent, rho = omega", "printed ascent, rho = 10 omega", "Gaussian"
NO_NOISE = "no noise (LAMB)"
DIVERGENCE = HEADINGS["divergence"]


def cells(profile: Profile) -> list[Cell]:
    """Return LAMB, and each kind of noise at every omega."""
    batch_size, tasks = profile.large_batch, profile.pair[1:]
    cells = side_cells(profile, LAMB.named(NO_NOISE), batch_size, tasks, omega=math.inf)
    for omega in profile.radii:
        kinds = (
            EFFECTIVE.but(NORMALIZED, omega=omega, rho=omega),
            EFFECTIVE.but(LITERAL, omega=omega, rho=10 * omega, ascent="literal"),
            EFFECTIVE.but(GAUSSIAN, omega=omega, noise="gaussian"),
        )
        cells += side_cells(profile, kinds, batch_size, tasks, omega=omega)
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and divergence over omega."""
    task = profile.pair[1]
    best = best_runs(frame, ("method", "omega"))
    table = Tabulation(
        "",
        strength_table(best),
        f"Accuracy (%) and mean divergence r over omega on {task}, B={profile.large_batch}.",
        [
            f"Means over {len(profile.side_seeds)} seeds. {grid_note(best)}",
            *status_note(frame),
            "Shared dropout masks, delay of the effective recipe. r is that of the last step.",
        ],
    )
    figures = []
    if len(best):
        positive = best.assign(divergence=best["divergence"].where(best["divergence"] > 0))
        figure = lines_figure(
            panel_rows(positive, {ACCURACY: "score", DIVERGENCE: "divergence"}),
            "omega",
            x_label="omega, log scale",
            title=f"Strength of the noise on {task}",
            y="value",
            y_label="",
            panel="panel",
            log_x=True,
            log_y=(DIVERGENCE,),
        )
        figures.append(Drawing("", figure, f"Accuracy and divergence over omega on {task}."))
    return Findings([table], figures, (), _summary(best))


def strength_table(best: DataFrame) -> DataFrame:
    """Return a row per kind and omega."""
    means = means_by(best, ("method", "omega"), ("score", "divergence")).reset_index()
    means["omega"] = means["omega"].where(means["omega"] != math.inf)
    means[DIVERGENCE] = two_digits(means[DIVERGENCE])
    return means.set_index(["method", "omega"])


def _summary(best: DataFrame) -> str:
    plain = best[best["method"] == NO_NOISE]["score"].mean()
    scores = best[best["method"] == NORMALIZED].groupby("omega")["score"].mean()
    if scores.empty:
        return ""
    return (
        f"Without noise {plain:.2f}%; with normalized ascent the best is {scores.max():.2f}% at omega "
        f"{scores.idxmax():g}, the worst {scores.min():.2f}% at {scores.idxmin():g}."
    )


STUDY = Study(
    name="noise_strength",
    title="Strength of the noise",
    question="How strong must the noise be to act, and when is it too strong?",
    cells=cells,
    analyse=analyse,
    paper_found="Only rho 1e-4 and omega 1e-5 are reported, as values that worked well enough.",
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
