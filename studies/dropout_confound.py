"""Beyond the paper: what regularises in ScaLA, the noise or the dropout masks that differ between its two passes?

The second pass of ScaLA differs from the clean one in the noise and, unless masks are shared, in its dropout masks.
Each cause is switched off in turn, with the paper's rho and omega and with noise large enough to act. R-Drop, the
published method that is nothing but two draws, stands beside them.
"""

from __future__ import annotations

from scala_lab.report.figures.accuracy import dots_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, notes, table_by_task, two_digits
from scala_lab.study.variants import EFFECTIVE, LAMB, ONE_DRAW, RDROP, SCALA, TWO_DRAWS, side_cells
from scala_lab.study.verdicts import EQUAL, SAME_RATIO, Claim, ClaimRecord, below, difference, ratio, record, within

STRONG_TWO_DRAWS = EFFECTIVE.but("ScaLA-effective, two draws", masks="independent")
SMALL_SHARE = 0.1
"""Share of the divergence below which its source does not matter."""

C21 = Claim(
    id="C21",
    source="ours, on Section 5 and the appendix on hyperparameters",
    study="dropout_confound",
    statement="With the paper's rho and omega, what regularises is that two passes draw different dropout masks, not "
    "the noise.",
    paper="rho 1e-4 and omega 1e-5, dropout not spoken of",
    rule=f"Without noise but with two draws, accuracy within {EQUAL} points of ScaLA's and divergence within "
    f"{SAME_RATIO[0]} to {SAME_RATIO[1]} of it; with noise but one draw, accuracy within {EQUAL} points of LAMB's and "
    f"divergence below {SMALL_SHARE} of ScaLA's.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return both causes, each alone, neither; then the same with noise that acts, and R-Drop."""
    return [
        *side_cells(profile, (LAMB, SCALA, TWO_DRAWS, ONE_DRAW, EFFECTIVE), profile.large_batch),
        *side_cells(profile, (STRONG_TWO_DRAWS, RDROP), profile.large_batch, profile.pair),
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and divergence with each cause switched off."""
    best = best_runs(frame)
    claim = c21(best)
    scores = table_by_task(frame, best, ("method",), profile.tasks)
    scores.insert(0, "divergence r", two_digits(best.groupby("method")["divergence"].mean()).reindex(scores.index))
    table = Tabulation(
        "",
        scores,
        f"Accuracy (%) and mean divergence r at B={profile.large_batch} with noise, two dropout draws, both or "
        "neither.",
        [
            *notes(profile, frame, best),
            "r is the mean divergence between the two passes in the last step. ScaLA has the paper's rho and omega "
            "and draws masks anew; 'two draws, no noise' is ScaLA without noise; 'noise, one draw' shares the "
            "masks. ScaLA-effective has normalized ascent, shared masks and an earlier start. R-Drop as published "
            "draws twice from the first step on, and both passes learn the task.",
        ],
    )
    figures = []
    if len(best):
        figure = dots_figure(best, title="Noise, dropout draws, both or neither")
        caption = "Accuracy with noise, two dropout draws, both or neither; marks are seeds, bars standard deviations."
        figures.append(Drawing("", figure, caption))
    _, draws, _, noise = (part.estimate for part in claim.parts)
    summary = (
        f"With the paper's rho and omega, two dropout draws without noise give {draws} of ScaLA's divergence, the "
        f"noise without them {noise}."
    )
    return Findings([table], figures, [claim], summary)


def c21(best: DataFrame) -> ClaimRecord:
    """Compare score and divergence (mean r of the last step) of ScaLA, of each cause alone, and of LAMB."""
    scala, draws, one_draw = "ScaLA", "two draws, no noise", "noise, one draw"
    draws_share, noise_share = (ratio(best, alone, scala, value="divergence") for alone in (draws, one_draw))
    parts = [
        within("accuracy of ScaLA minus two draws without noise", difference(best, scala, draws), -EQUAL, EQUAL),
        within("divergence of two draws without noise over ScaLA's", draws_share, *SAME_RATIO),
        within("accuracy of noise with one draw minus LAMB", difference(best, one_draw, "LAMB"), -EQUAL, EQUAL),
        below("divergence of noise with one draw over ScaLA's", noise_share, SMALL_SHARE),
    ]
    return record(C21, parts)


STUDY = Study(
    name="dropout_confound",
    title="Noise or dropout",
    question="What regularises in ScaLA, the noise or the dropout masks that differ between its two passes?",
    cells=cells,
    analyse=analyse,
    paper_found="Not asked: dropout is not spoken of, and the gain is put down to the noise.",
    claims=(C21,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
