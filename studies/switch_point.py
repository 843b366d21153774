"""Figure 8: from which epoch on should the noise act?"""

from __future__ import annotations

import math

import numpy as np

from scala_lab.report.figures.accuracy import lines_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.tables import best_runs, data_frame, grid_note, status_note
from scala_lab.study.variants import LAMB, delay_cells, side_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, above, below, difference, pair_keys, record

C17 = Claim(
    id="C17",
    source="Figure 8",
    study="switch_point",
    statement="Noise from the start gains little, noise from a middle t_s on gains most, noise too late loses again.",
    paper="accuracy rises with t_s and falls when it is late (MNLI, SST-2)",
    rule=f"Noise from the start minus none below {EQUAL} points; the mean over all t_s between the first and the last "
    "minus t_s=0 above 0, and minus the last t_s above 0.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return ScaLA at every t_s, and LAMB for no noise at all."""
    no_noise = LAMB.named("no noise (LAMB)")
    return [*delay_cells(profile), *side_cells(profile, no_noise, profile.large_batch, profile.pair, delay=math.inf)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy and cost over t_s."""
    best = best_runs(frame, ("task", "delay"))
    claim = c17(best)
    table = Tabulation(
        "",
        delay_table(best, profile.pair),
        f"Figure 8: accuracy (%) and cost over t_s at B={profile.large_batch}.",
        [
            f"{profile.settings['epochs']} epochs, means over {len(profile.side_seeds)} seeds. {grid_note(best)}",
            *status_note(frame),
            "The paper's Table 3 has t_s=0 above its t_s of 3 or 5 on average, 89.5 against 89.4, which its Figure 8 "
            "does not suggest.",
        ],
    )
    figures = []
    if len(best):
        figure = lines_figure(best, "delay", x_label="t_s (epochs before the noise)", title="When the noise starts")
        figures.append(Drawing("", figure, "Figure 8: accuracy over t_s; the level is training without noise."))
    start, over_start, over_late = (part.estimate for part in claim.parts)
    summary = (
        f"Noise from the start minus none {start}; a middle t_s minus the start {over_start}, minus the last t_s "
        f"{over_late}."
    )
    return Findings([table], figures, [claim], summary)


def delay_table(best: DataFrame, tasks: tuple[str, ...]) -> DataFrame:
    """Return a row per t_s: accuracy and passes by task."""
    rows = []
    for delay, runs in best.groupby("delay"):
        by_task = (runs[runs["task"] == task] for task in tasks)
        means = [task_runs[name].mean() for task_runs in by_task for name in ("score", "forward_passes")]
        rows.append(["never" if math.isinf(delay) else f"{delay:g}", *means])
    columns = ["t_s", *(f"{task} {heading}" for task in tasks for heading in ("accuracy", "passes"))]
    return data_frame(rows, columns).set_index("t_s")


def c17(best: DataFrame) -> ClaimRecord:
    """Compare scores over t_s, the column `delay`: 0, the values between, the last, and inf for no noise at all."""
    delays = best["delay"].astype(float)
    names = {0.0: "start", delays[np.isfinite(delays)].max(): "late", math.inf: "never"}
    phase = delays.map(lambda delay: names.get(delay, "middle"))
    by_phase = best.assign(phase=phase).groupby([*pair_keys(best), "phase"], as_index=False)["score"].mean()
    parts = [
        below("noise from the start minus none", difference(by_phase, "start", "never", column="phase"), EQUAL),
        above("middle t_s minus the start", difference(by_phase, "middle", "start", column="phase")),
        above("middle t_s minus the last", difference(by_phase, "middle", "late", column="phase")),
    ]
    return record(C17, parts)


STUDY = Study(
    name="switch_point",
    title="When the noise starts",
    question="From which epoch on should the noise act?",
    cells=cells,
    analyse=analyse,
    source="Figure 8",
    paper_found="MNLI and SST-2: noise from the start gains little, accuracy rises as t_s grows and falls when it is "
    "too late.",
    claims=(C17,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
