"""Beyond the paper: what regularises in ScaLA, the noise or the dropout masks that differ between its two passes?

The second pass of ScaLA differs from the clean one in the noise and, unless masks are shared, in its dropout masks.
Every kind of noise is tried with one draw of masks and with two, from the same t_s on: all arms branch off the same
LAMB run. R-Drop, the published method that is nothing but two draws, and ScaLA with noise that acts stand beside them.
"""

from functools import partial
from itertools import chain

from scala_lab.report.figures.accuracy import divergence_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference, paired_ratio
from scala_lab.study.tables import accuracy_findings, data_frame, two_digits
from scala_lab.study.variants import (
    EFFECTIVE,
    GAUSSIAN,
    LAMB,
    ONE_DRAW,
    RDROP,
    SCALA_OTHER,
    SCALA_TUNED,
    TUNED,
    TWO_DRAWS,
    arm_cells,
)
from scala_lab.study.verdicts import EQUAL, SAME_RATIO, Claim, ClaimRecord, at_most, effect, equivalent, record

DRAWS, NOISE = (cause.but(cause.method, **SCALA_TUNED.overrides) for cause in (TWO_DRAWS, ONE_DRAW))
OTHER_DRAWS = TWO_DRAWS.but(f"{TWO_DRAWS.method}, other t_s", **SCALA_OTHER.overrides)
"""Each cause alone, from ScaLA's t_s on."""
RANDOM = GAUSSIAN.but("Gaussian noise, two draws", delay=TUNED)
ALONG_TRUTH = SCALA_TUNED.but("noise along the label, two draws", target="GT")
FACTORS = {
    "none": (LAMB, DRAWS),
    "Gaussian": (RANDOM.but("Gaussian noise, one draw", masks="shared"), RANDOM),
    "along the label (GT)": (ALONG_TRUTH.but("noise along the label, one draw", masks="shared"), ALONG_TRUTH),
    "along the prediction (LP)": (NOISE, SCALA_TUNED),
}
"""Every kind of noise, with one draw of dropout masks and with two."""
GAIN = 0.8  # points that the paper claims for ScaLA over LAMB
SMALL_SHARE = 0.1  # share of the divergence below which its source does not matter

C21 = Claim(
    id="C21",
    source="ours, on Section 5 and the appendix on hyperparameters",
    statement="With the paper's rho and omega, what regularises is that two passes draw different dropout masks, not "
    "the noise.",
    paper="rho 1e-4 and omega 1e-5, dropout not spoken of; +0.8 points over LAMB",
    rule=f"Two draws without noise gain over LAMB at least half of the {GAIN} points claimed for ScaLA: else nothing "
    f"regularises. ScaLA minus two draws, and noise with one draw minus LAMB, are 0 within {EQUAL} points. The "
    f"divergence of two draws is ScaLA's within a factor of {SAME_RATIO}, that of noise with one draw at most "
    f"{SMALL_SHARE} of it. All at the t_s that is better on tuning rows; the other one is shown.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return every kind of noise with one and two draws, the other t_s, noise that acts, and R-Drop."""
    arms = (*chain(*FACTORS.values()), SCALA_OTHER, OTHER_DRAWS, EFFECTIVE)
    return [
        *arm_cells(profile, arms, profile.large_batch),
        *arm_cells(profile, RDROP, profile.large_batch, profile.pair),
    ]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and divergence with each cause switched off."""
    findings = accuracy_findings(
        profile,
        frame,
        [c21],
        caption=f"At B={profile.large_batch}: accuracy (%) and mean divergence r with noise, two dropout draws, both "
        "or neither.",
        note="r is the mean divergence between the two passes in the last step. ScaLA has the paper's rho and omega "
        "and draws masks anew; 'two draws, no noise' is ScaLA without noise; 'noise, one draw' shares the masks. "
        "ScaLA-effective has normalized ascent, a tuned radius and shared masks. R-Drop as published: both passes "
        "learn the task.",
        index=("method",),
        against=LAMB.method,
        tables=[_factors(profile, frame)],
        figures=_divergence_drawing(frame),
        title="Noise, dropout draws, both or neither",
        found="With the paper's rho and omega, two dropout draws without noise give {3} of ScaLA's divergence, the "
        "noise without them {4}; two draws minus LAMB is {0}.",
    )
    table = findings.tables[0].frame
    table.insert(0, "divergence r", two_digits(frame.groupby("method")["divergence"].mean()).reindex(table.index))
    return findings


def _factors(profile: Profile, frame: DataFrame) -> Tabulation:
    """Tabulate accuracy and divergence by kind of noise and number of draws."""
    rows = []
    for noise, arms in FACTORS.items():
        for draws, variant in zip(("one", "two"), arms, strict=True):
            runs = frame[frame["method"] == variant.method]
            row = {"noise": noise, "dropout draws": draws, "accuracy": runs["score"].mean()}
            if variant is not LAMB:
                gain = paired_difference(frame, variant.method, LAMB.method).at(profile.level)
                low, high = gain.interval
                row |= {f"minus {LAMB.method}": gain.value, "from": low, "to": high}
            rows.append({**row, "divergence r": runs["divergence"].mean()})
    table = data_frame(rows).set_index(["noise", "dropout draws"])
    table["divergence r"] = two_digits(table["divergence r"])
    caption = f"Which part regularises: kinds of noise by dropout draws at B={profile.large_batch}, the paper's omega."
    note = "All arms branch off the same LAMB runs at ScaLA's t_s. Without noise, one draw is LAMB: no second pass."
    return Tabulation("factors", table, caption, [note])


def _divergence_drawing(frame: DataFrame) -> list[Drawing]:
    """Draw r over the steps of training, the mean over seeds of each method."""
    lines = frame[["method", "divergences"]].explode("divergences").dropna()
    if lines.empty:
        return []
    lines["step"], lines["divergence"] = zip(*lines["divergences"], strict=True)
    figure = divergence_figure(lines, title="Size of the divergence r during training")
    return [Drawing("divergence", figure, "Mean divergence r between the two passes over the steps with noise.")]


def c21(frame: DataFrame) -> ClaimRecord:
    """Compare score and divergence (mean r of the last step) of ScaLA, of each cause alone, and of LAMB."""
    arms = lamb, scala, draws, noise = (LAMB.method, SCALA_TUNED.method, DRAWS.method, NOISE.method)
    other, other_draws = SCALA_OTHER.method, OTHER_DRAWS.method
    minus, share = partial(paired_difference, frame), partial(paired_ratio, frame, value="divergence")
    parts = [
        effect("two draws without noise minus LAMB", minus(draws, lamb), None, GAIN / 2),
        equivalent("ScaLA minus two draws without noise", minus(scala, draws), EQUAL),
        equivalent("noise with one draw minus LAMB", minus(noise, lamb), EQUAL),
        equivalent("divergence of two draws over ScaLA's", share(draws, scala), SAME_RATIO),
        at_most("divergence of noise with one draw over ScaLA's", share(noise, scala), SMALL_SHARE, fixed=True),
        effect("ScaLA minus LAMB", minus(scala, lamb), GAIN, contextual=True),
        effect("two draws minus LAMB, other t_s", minus(other_draws, lamb), None, GAIN / 2, contextual=True),
        equivalent("ScaLA minus two draws, other t_s", minus(other, other_draws), EQUAL, contextual=True),
    ]
    return record(C21, parts, accuracy_gates(frame, arms))


STUDY = declare(
    __name__,
    title="Noise or dropout",
    question="What regularises in ScaLA, the noise or the dropout masks that differ between its two passes?",
    paper_found="Not asked: dropout is not spoken of, and the gain is put down to the noise.",
)
