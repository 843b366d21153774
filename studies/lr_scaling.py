"""Table 6: does the square-root rule serve as well as tuning the rate at the large batch size?

The rule carries the rate that is tuned at the small batch size over: the baseline's own, and for ScaLA that of its
optimizer, LAMB.
"""

from scala_lab.study import Cell, DataFrame, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference
from scala_lab.study.tables import accuracy_findings
from scala_lab.study.variants import BASELINE, SCALA_TUNED, SMALL_BATCH, arm_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, effect, equivalent, record
from studies._paper_tables import paper_table

TUNED = (BASELINE.but("baseline, tuned rate"), SCALA_TUNED.but("ScaLA, tuned rate"))
RULED = (BASELINE.but("baseline, rule's rate"), SCALA_TUNED.but("ScaLA, rule's rate"))
PAPER_NOTE = "The tuned baseline at B=1024 has 88.5 here and 88.4 in the paper's Tables 2 and 5."

C18 = Claim(
    id="C18",
    statement="For ScaLA the square-root rule serves as well as tuning the rate.",
    paper="89.7 by rule, 89.4 tuned",
    rule=f"ScaLA at the rule's rate minus ScaLA at the tuned rate is equal to 0 within {EQUAL} points. Where both "
    "rates are the same, so are the runs, and it is exactly 0. ScaLA has the t_s that is better on tuning rows.",
)
C25 = Claim(
    id="C25",
    statement="With the square-root rule's rate the large-batch baseline stays below the small batch.",
    paper="88.7 against 89.4",
    rule="The baseline at the large batch size and the rule's rate minus the baseline at the small batch size is an "
    "effect below 0, and not smaller than half of the paper's -0.7 points; at its tuned rate it is shown.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the small-batch baseline, and both methods at the tuned and at the rule's rate."""
    cells, large = arm_cells(profile, SMALL_BATCH, profile.small_batch), profile.large_batch
    for tuned, ruled in zip(TUNED, RULED, strict=True):
        cells += [*arm_cells(profile, tuned, large), *arm_cells(profile, ruled, large, by_rule=True)]
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy with tuned rates and with the rule's."""
    rates = frame.groupby(["method", "batch_size", "task"], sort=False)["rate"].first().unstack("task")
    rates = rates.rename_axis(index=["method", "batch size"], columns=None)
    return accuracy_findings(
        profile,
        frame,
        [c18, c25],
        caption=f"Table 6: accuracy (%) with tuned rates and with the square-root rule at B={profile.large_batch}.",
        note=f"The rule carries over the rate tuned at B={profile.small_batch}: the baseline's own, and for ScaLA "
        "LAMB's.",
        against=SMALL_BATCH.method,
        title="The rule's rate and the tuned one",
        tables=[
            Tabulation("rates", rates, "Table 6: the rates behind it, by task."),
            paper_table(6, [PAPER_NOTE]),
        ],
        found="ScaLA with the rule's rate minus ScaLA tuned: {}; the baseline with the rule's rate minus the small "
        "batch: {}.",
    )


def c18(frame: DataFrame) -> ClaimRecord:
    """Compare ScaLA by rule with ScaLA tuned at the large batch size."""
    ruled, tuned = RULED[1].method, TUNED[1].method
    gain = paired_difference(frame, ruled, tuned)
    part = equivalent("ScaLA at the rule's rate minus ScaLA tuned", gain, EQUAL, paper=0.3)
    return record(C18, [part], accuracy_gates(frame, (ruled, tuned)))


def c25(frame: DataFrame) -> ClaimRecord:
    """Compare the baseline at the large batch size, by rule and tuned, with that at the small one."""
    ruled, tuned, small = RULED[0].method, TUNED[0].method, SMALL_BATCH.method
    by_rule, at_best = (paired_difference(frame, large, small) for large in (ruled, tuned))
    parts = [
        effect("baseline at the rule's rate minus small batch", by_rule, -0.7),
        effect("baseline at the tuned rate minus small batch", at_best, -0.9, contextual=True),
    ]
    return record(C25, parts, accuracy_gates(frame, (ruled, small)))


STUDY = declare(
    __name__,
    title="Tuned rates and the square-root rule",
    question="Does the square-root rule serve as well as tuning the rate at the large batch size?",
    source="Table 6",
    paper_found="ScaLA averages 89.7 by rule and 89.4 tuned; the baseline 88.7 and 88.5, both below its 89.4 at B=32.",
)
