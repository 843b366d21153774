"""Figure 3: where the time of a step goes, without and with noise, in units of a forward pass."""

import math
from dataclasses import replace

from scala_lab.clock import PHASES
from scala_lab.report.figures.timing import phase_bars
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import Gate
from scala_lab.study.tables import data_frame
from scala_lab.study.variants import FREELB, LAMB, WITHOUT_DELAY
from scala_lab.study.verdicts import SLACK, Claim, ClaimRecord, judge, record, within
from scala_lab.sweep.cells import Measurement
from scala_lab.timing.harness import STEP, phases
from studies._timings import WARMUP, factor_of, first_steps

PLAIN, NOISE, FUSED = "plain", "PGA-1", "PGA-1 fused"
ROWS = {
    PLAIN: LAMB,
    NOISE: WITHOUT_DELAY.but(NOISE, pga="exact"),
    FUSED: WITHOUT_DELAY.but(FUSED, pga="fused", masks="shared"),
    "FreeLB": FREELB.but("FreeLB", optimizer="lamb"),
}
"""All with the same optimizer, so that what differs is the step."""
TITLES = {NOISE: "PGA-1 as written"}  # names in table and figure, where they differ
STEPS = 8
MIN_CPU_SHARE = 0.85  # A process that computes for less than this share of its time was not alone on the machine


def cells(profile: Profile) -> list[Cell]:
    """Return one measurement in which the methods take turns."""
    task = profile.pair[0]
    specs = tuple(first_steps(profile, row, task, profile.large_batch) for row in ROWS.values())
    settings = {"names": list(ROWS), "steps": STEPS, "warmup": WARMUP, "threads": profile.settings.get("threads") or 1}
    measurement = Measurement(phases, specs, settings, alone=True)
    return [Cell(measurement, task=task, batch_size=profile.large_batch)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare the phases of a step in units of a forward pass."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    rows = phase_rows(done)
    middles = rows.groupby(["method", "phase"], sort=False)["seconds"].median()
    in_passes = (middles / middles[PLAIN, "clean forward"]).rename("value").reset_index().replace({"method": TITLES})
    table = in_passes.pivot_table("value", "method", "phase", sort=False)
    table = table[[name for name in (*PHASES, STEP) if name in table]]
    task, batch = (done[name].iloc[0] for name in ("task", "batch_size"))
    steps = rows[rows["phase"] == STEP].pivot_table("seconds", "step", "method")
    counted = rows[rows["phase"] != STEP].pivot_table("seconds", "step", "method", aggfunc="sum") / steps
    over_plain, saved = factor_of(steps[FUSED] / steps[PLAIN]), factor_of(steps[NOISE] / steps[FUSED])
    notes = [
        f"Medians over {STEPS} steps of {batch} samples of {task} after {WARMUP} of warm-up; methods take turns in one "
        "process, one worker, LAMB for all. A forward pass: the clean forward of a plain step.",
        "The inner backward here computes the gradient of the noise alone. The paper counts a full one, so the claim "
        "does too: a plain step's backward in its place.",
        "Fused, the ascent's direction comes from the clean pass's own backward, which is counted as inner backward "
        "where it serves the noise alone; it needs shared dropout masks, those of the other rows are independent.",
        f"Phases sum to {100 * counted.median().min():.1f}% of a step or more. One worker does not communicate; what "
        "communication adds is in the study of scalability.",
    ]
    if profile.settings.get("device") == "cuda":
        rows = rows.drop(columns="cpu_share")  # beside a GPU the process waits by nature
    bars = phase_bars(in_passes[in_passes["phase"] != STEP])
    claim = judge(c7, rows)
    return Findings(
        tables=[Tabulation("", table, "Figure 3: phases of a step in forward passes.", notes)],
        figures=[Drawing("", bars, "Figure 3: time breakdown without and with PGA-1, FreeLB beside them.")],
        claims=[claim],
        found="; ".join(f"{part.statement}: {part.estimate}" for part in claim.parts) + f". Fused, a step with PGA-1 "
        f"takes {over_plain} as long as a plain one; as written, {saved} as long as fused.",
    )


def phase_rows(done: DataFrame) -> DataFrame:
    """Return one row per method, step and phase."""
    rows = [
        (*key.split(":"), step, value)
        for cell in done.to_dict("records")
        for key, values in cell.items()
        if isinstance(values, list) and ":" in key
        for step, value in enumerate(values)
    ]
    share = float(done["cpu_share"].min())
    return data_frame(rows, ["method", "phase", "step", "seconds"]).assign(cpu_share=share)


C7 = Claim(
    id="C7",
    source="Figure 3, Section 4",
    statement="PGA-1 costs about three forward passes, doubles the backward pass and leaves the optimizer alone; a "
    "step takes at least twice as long.",
    paper="3 forward passes; backward about 2x; optimizer 1x; in all at least 2x",
    rule=f"With a full backward for PGA-1, as the paper counts: PGA-1 in forward passes within a factor of {SLACK} of "
    f"3, backward over plain of 2, optimizer over plain of 1; step over plain at least 2 / {SLACK}. A step as this "
    "trainer takes it, whose inner backward serves the noise alone, stands beside. The unit is the timed step; takes a "
    f"machine that leaves the process at least {100 * MIN_CPU_SHARE:.0f}% of its time, and for the three forward "
    "passes, which the paper makes of one forward and one backward pass, a model whose backward pass takes two forward "
    f"passes within a factor of {SLACK}.",
)


def c7(frame: DataFrame) -> ClaimRecord:
    """Judge the four parts of the cost."""
    if not {PLAIN, NOISE} <= set(frame["method"]):
        return record(C7, ())
    wide = frame.pivot_table("seconds", ["method", "step"], "phase")
    plain, noise = wide.loc[PLAIN], wide.loc[NOISE]
    whole = noise[STEP] - noise["inner backward"] + plain["backward"]
    inner = noise["inner forward"] + plain["backward"]
    ratios = {
        "PGA-1 with a full backward, in forward passes": (inner / plain["clean forward"], 3.0),
        "backward over plain": (noise["backward"] / plain["backward"], 2.0),
        "optimizer over plain": (noise["optimizer"] / plain["optimizer"], 1.0),
    }
    parts = [
        within(statement, factor_of(values), paper / SLACK, paper * SLACK, paper=paper)
        for statement, (values, paper) in ratios.items()
    ]
    least, full = 2.0 / SLACK, "step with a full inner backward over plain"
    parts += [
        within(full, factor_of(whole / plain[STEP]), least, math.inf, paper=2.0),
        within("step as taken here over plain", factor_of(noise[STEP] / plain[STEP]), least, math.inf, contextual=True),
    ]
    share = float(frame["cpu_share"].min()) if "cpu_share" in frame else 1.0
    alone, passes = share >= MIN_CPU_SHARE, factor_of(plain["backward"] / plain["clean forward"]).value
    gates = [
        Gate(
            "machine to itself",
            alone,
            f"the process was computing for {100 * share:.0f}% of the time",
            "a machine that others do not keep busy",
        ),
        Gate(
            "backward of two forward passes",
            2 / SLACK <= passes <= 2 * SLACK,
            f"a plain backward takes {passes:.2f} forward passes, and three for PGA-1 presuppose 2",
            "an encoder large enough for matrix products to outweigh all else",
        ),
    ]
    # the ratios to a plain step presuppose nothing of the kind
    return record(C7, [parts[0], *(replace(part, gated=not alone) for part in parts[1:])], gates)


STUDY = declare(
    __name__,
    title="Time breakdown",
    question="What does PGA-1 add to a step, phase by phase?",
    source="Figure 3",
    paper_found="PGA-1 takes about as long as three forward passes, the backward about twice as long, the optimizer as "
    "long as before; in all at least 2x.",
)
