"""Figure 8: from which epoch on should the noise act?"""

import math
from functools import partial

from scala_lab.study import Cell, DataFrame, Findings, Profile, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import contrast
from scala_lab.study.tables import accuracy_findings, lines_drawing
from scala_lab.study.variants import LAMB, SCALA, arm_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, at_most, effect, record

C17 = Claim(
    id="C17",
    statement="Noise from the start gains little, noise from a middle t_s on gains most, noise too late loses again.",
    paper="accuracy rises with t_s and falls when it is late (MNLI, SST-2; curves without numbers)",
    rule=f"Noise from the start minus LAMB is at most {EQUAL} points, half of what the paper claims for ScaLA; the "
    "mean over all t_s between the first and the last minus t_s=0, and minus the last t_s, are effects of at least "
    f"{EQUAL} points.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA at every t_s, and LAMB for no noise at all."""
    cells = arm_cells(profile, LAMB, profile.large_batch, profile.pair, delay=math.inf)
    for delay in profile.delays:
        variant = SCALA.but(f"t_s={delay:g}", delay=delay)
        cells += arm_cells(profile, variant, profile.large_batch, profile.pair, delay=delay)
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and cost over t_s."""
    lines = frame.assign(method=["ScaLA" if math.isfinite(delay) else LAMB.method for delay in frame["delay"]])
    return accuracy_findings(
        profile,
        frame,
        [c17],
        caption=f"Figure 8: accuracy (%) and cost over t_s at B={profile.large_batch}.",
        note="The paper's Table 3 has t_s=0 above its t_s of 3 or 5 on average, 89.5 against 89.4, which its Figure 8 "
        "does not suggest.",
        tasks=profile.pair,
        shown=("score", "dev", "forward_passes"),
        index=("method",),
        against=LAMB.method,
        title="What the start of the noise changes",
        figures=lines_drawing(
            lines,
            "delay",
            "Figure 8: accuracy over t_s; the level is training without noise.",
            x_label="t_s (epochs before the noise)",
            title="When the noise starts",
        ),
        found="Noise from the start minus none {}; a middle t_s minus the start {}, minus the last t_s {}.",
    )


def c17(frame: DataFrame) -> ClaimRecord:
    """Compare scores over t_s, the column `delay`: 0, the values between, the last, and inf for no noise at all."""
    delays = sorted(delay for delay in frame["delay"].unique().tolist() if math.isfinite(delay))
    gates = accuracy_gates(frame, [*delays, math.inf], column="delay")
    if len(delays) < 3:
        return record(C17, (), gates)
    first, *between, last = delays
    middle, of = dict.fromkeys(between, 1 / len(between)), partial(contrast, frame, column="delay")
    parts = [
        at_most("noise from the start minus none", of({first: 1.0, math.inf: -1.0}), EQUAL),
        effect("a middle t_s minus the start", of({**middle, first: -1.0}), None, EQUAL),
        effect("a middle t_s minus the last", of({**middle, last: -1.0}), None, EQUAL),
        effect("a middle t_s minus none", of({**middle, math.inf: -1.0}), 0.8, contextual=True),
        effect("the last t_s minus none", of({last: 1.0, math.inf: -1.0}), 0.8, contextual=True),
    ]
    return record(C17, parts, gates)


STUDY = declare(
    __name__,
    title="When the noise starts",
    question="From which epoch on should the noise act?",
    source="Figure 8",
    paper_found="MNLI and SST-2: noise from the start gains little, accuracy rises as t_s grows and falls when it is "
    "too late.",
)
