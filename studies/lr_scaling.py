"""Table 6: does the square-root rule serve as well as tuning the rate at the large batch size?

The rule carries the best rate at the small batch size over. For ScaLA that rate is found with its optimizer, LAMB, on
one seed: a rule that needed a search of its own would be no rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scala_lab.study import Cell, Findings, Study, Tabulation
from scala_lab.study.api import main
from scala_lab.study.tables import best_runs, notes, table_by_task
from scala_lab.study.variants import BASELINE, LAMB, SCALA, MethodVariant, grid_cells, tuned_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, above, difference, record
from studies._paper_tables import TABLE_6, paper_frame

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

INDEX = ("method", "batch size")
TUNED = (BASELINE.named("baseline, tuned"), SCALA.named("ScaLA, tuned"))
RULED = (BASELINE.named("baseline, rule"), SCALA.named("ScaLA, rule"))
REFERENCE = LAMB.named("LAMB at the small batch")


def cells(profile: Profile) -> list[Cell]:
    """Tuned rows, the search at the small batch size, and every rate that the rule could make of it."""
    small, large = profile.small_batch, profile.large_batch
    return [
        *tuned_cells(profile, TUNED[0], small),
        *grid_cells(profile, REFERENCE, small, profile.rates(LAMB.recipe, small), profile.seeds[:1]),
        *(
            cell
            for tuned, ruled in zip(TUNED, RULED, strict=True)
            for cell in (
                *tuned_cells(profile, tuned, large),
                *grid_cells(profile, ruled, large, _ruled(profile, ruled), profile.seeds),
            )
        ),
    ]


def _ruled(profile: Profile, row: MethodVariant) -> tuple[float, ...]:
    """What the rule makes of each rate tried at the small batch size."""
    return tuple(profile.rule_rate(rate, row.recipe, profile.large_batch) for rate in _searched(profile, row))


def _searched(profile: Profile, row: MethodVariant) -> tuple[float, ...]:
    return profile.rates(LAMB.recipe if row.recipe == SCALA.recipe else row.recipe, profile.small_batch)


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Accuracy with tuned rates and with the rule's."""
    frame = frame.rename(columns={"batch_size": "batch size"})
    chosen = chosen_runs(profile, frame)
    shown = frame[frame["method"] != REFERENCE.method]
    claim = c18(chosen)
    tables = [
        Tabulation(
            "",
            table_by_task(shown, chosen, INDEX, profile.tasks),
            f"Table 6: accuracy (%) with tuned rates and with the square-root rule at B={profile.large_batch}.",
            [
                *notes(profile, frame, chosen[~chosen["method"].str.endswith("rule")]),
                f"The rule carries over the best rate at B={profile.small_batch}: the baseline's own, and for ScaLA "
                "that of LAMB on one seed.",
            ],
        ),
        Tabulation("rates", rate_table(chosen), "Table 6: the rates behind it, by task."),
        Tabulation(
            "paper",
            paper_frame(TABLE_6, INDEX),
            "Table 6 as the paper has it.",
            ["The tuned baseline at B=1024 has 88.5 here and 88.4 in the paper's Tables 2 and 5."],
        ),
    ]
    found = f"ScaLA with the rule's rate minus ScaLA tuned: {claim.parts[0].estimate}."
    return Findings(tables, (), [claim], found)


def chosen_runs(profile: Profile, frame: pd.DataFrame) -> pd.DataFrame:
    """Tuned rows at their best rates, and ruled rows at what the rule makes of the best one at the small batch."""
    import pandas as pd

    best = best_runs(frame, ("task", "method", "batch size"))
    at_small = best[best["batch size"] == profile.small_batch]
    parts = [best[best["method"].isin([row.method for row in TUNED])]]
    for row, source in zip(RULED, (TUNED[0].method, REFERENCE.method), strict=True):
        rates = at_small[at_small["method"] == source].groupby("task")["rate"].first()
        wanted = {task: profile.rule_rate(rate, row.recipe, profile.large_batch) for task, rate in rates.items()}
        runs = frame[frame["method"] == row.method]
        parts.append(runs[runs["rate"] == runs["task"].map(wanted)].assign(edge=False, grid_points=1))
    return pd.concat([part for part in parts if len(part)] or parts)


def rate_table(chosen: pd.DataFrame) -> pd.DataFrame:
    """The rate of every row and task."""
    rates = chosen.groupby(["method", "batch size", "task"], sort=False)["rate"].first().unstack("task")
    return rates.rename_axis(columns=None)


C18 = Claim(
    id="C18",
    source="Table 6",
    study="lr_scaling",
    statement="For ScaLA the square-root rule serves as well as tuning the rate.",
    paper="89.7 by rule, 89.4 tuned",
    rule=f"ScaLA by rule minus ScaLA tuned above -{EQUAL} points.",
)


def c18(frame: pd.DataFrame) -> ClaimRecord:
    """Rows: methods ScaLA, rule and ScaLA, tuned at the large batch size."""
    return record(
        C18, [above("ScaLA by rule minus ScaLA tuned", difference(frame, "ScaLA, rule", "ScaLA, tuned"), -EQUAL)]
    )


STUDY = Study(
    name="lr_scaling",
    title="Tuned rates and the square-root rule",
    question="Does the square-root rule serve as well as tuning the rate at the large batch size?",
    cells=cells,
    analyse=analyse,
    source="Table 6",
    paper_found="ScaLA averages 89.7 by rule and 89.4 tuned; the baseline 88.7 and 88.5, both below its 89.4 at B=32.",
    claims=(C18,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
