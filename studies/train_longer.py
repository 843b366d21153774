"""Figure 6: does the large-batch baseline reach ScaLA when it trains for twice the epochs?"""

from functools import partial

from scala_lab.study import Cell, DataFrame, Findings, Profile, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import accuracy_findings
from scala_lab.study.variants import BASELINE, SCALA_OTHER, SCALA_TUNED, arm_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, record

LONGER = "baseline, longer"

C15 = Claim(
    id="C15",
    statement="Training the large-batch baseline for twice the epochs does not reach ScaLA's accuracy.",
    paper="hardly 84 after 12 epochs against 85.2 after 6 (MNLI, B=2K)",
    rule="ScaLA minus the baseline trained longer is above 0, and not below half of the paper's 1.2 points. ScaLA "
    "has the t_s that is better on tuning rows; the other one is shown.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline for the usual epochs and for longer, and ScaLA."""
    longer = BASELINE.but(LONGER, epochs=profile.longer * profile.settings["epochs"])
    variants = (BASELINE, longer, SCALA_TUNED, SCALA_OTHER)
    return arm_cells(profile, variants, profile.longer_batch or profile.large_batch, profile.pair[:1])


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and cost."""
    task, batch_size = profile.pair[0], profile.longer_batch or profile.large_batch
    return accuracy_findings(
        profile,
        frame,
        [c15],
        caption=f"Figure 6, on {task}: accuracy (%) at B={batch_size} after the last epoch.",
        note=f"The baseline that trains longer has {profile.longer} times the epochs, over which its rate falls, and "
        "the peak rate that is tuned for the usual epochs.",
        tasks=[task],
        shown=("steps", "forward_passes", "score", "dev"),
        against=LONGER,
        title=f"Training longer at B={batch_size}",
        found=f"ScaLA minus the baseline trained {profile.longer} times as long: {{}}.",
    )


def c15(frame: DataFrame) -> ClaimRecord:
    """Compare ScaLA with the baseline that trains longer."""
    scala, other, minus = SCALA_TUNED.method, SCALA_OTHER.method, partial(paired_difference, frame)
    parts = [
        effect("ScaLA minus the baseline trained longer", minus(scala, LONGER), 1.2),
        effect(f"{other} minus the baseline trained longer", minus(other, LONGER), 1.2, contextual=True),
        effect("gain of training longer", minus(LONGER, BASELINE.method), None, 0.6, contextual=True),
    ]
    return record(C15, parts, accuracy_gates(frame, (scala, LONGER)))


STUDY = declare(
    __name__,
    title="Training the baseline longer",
    question="Does the large-batch baseline reach ScaLA when it trains for twice the epochs?",
    source="Figure 6",
    paper_found="MNLI at B=2K: ScaLA 85.2 after 6 epochs, the baseline hardly 84 after 12.",
)
