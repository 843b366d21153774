"""What the studies of accuracy make of runs that were never trained: whole, with gaps, with divergence, by hand."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from functools import cache
from typing import get_args

import pandas as pd
import pytest

from scala_lab.config import RunSpec
from scala_lab.report.tables import csv_text, latex_text, markdown_text
from scala_lab.study.api import NUMBERS, find_study, frame_of
from scala_lab.study.profiles import EMBEDDED, LAPTOP, PAPER
from scala_lab.study.verdicts import Verdict
from scala_lab.sweep.cells import Measurement
from scala_lab.timing import paper_times
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import Compute, Link
from studies import _paper_tables, generalizability, main_results
from studies._timings import RATES
from tests.studies.synthetic import ROWS, records_of, tuned

CLAIMS = {
    "generalizability": ("C3", "C4"),
    "perturbation_steps": ("C8",),
    "main_results": ("C9", "C23", "C24", "C26"),
    "large_batch_methods": ("C10",),
    "ablation": ("C11",),
    "freelb": ("C12",),
    "perturbation_kinds": ("C13",),
    "train_longer": ("C15",),
    "batch_sizes": ("C16",),
    "switch_point": ("C17",),
    "lr_scaling": ("C18", "C25"),
    "dropout_confound": ("C21",),
    "noise_strength": (),
    "adaptive_delay": (),
}
SMALL = replace(
    EMBEDDED,
    tasks=("mini-mnli", "mini-qnli", "mini-qqp", "mini-sst2"),
    pair=("mini-mnli", "mini-sst2"),
    small_batch=32,
    large_batch=512,
    batch_sizes=(32, 512, 1024, 2048),
    start_rates={"adamw": 2e-3, "lamb": 1e-2, "ngd": 1e-2},
    grid_points=3,
    seeds=(0, 1),
    delays=(0.0, 2.0, 3.0, 5.0),
    early_delay=3.0,
    late_delay=5.0,
    ascent_steps=(1, 2, 4),
    strengths=(1e-5, 1e-3, 1e-2),
    workers=(1, 2),
    settings={"epochs": 6, "threads": 1, "device": "cpu", "tuning_samples": 2000, "heldout_samples": 4000},
)
"""A profile of known numbers, however the embedded one is tuned."""


def findings(study, profile=SMALL, **made):
    """The findings of a study under the small profile; keywords go to `records_of`."""
    profile = tuned(profile, **{name: made[name] for name in ("score", "status") if name in made})
    cells = study.cells(profile)
    return study.analyse(profile, frame_of(cells, records_of(cells, **made)))


@cache
def whole(name):
    """The runs and measurements of a study's cells, and their rows when all runs finished."""
    cells = find_study(name).cells(tuned(SMALL))
    return [cell.item for cell in cells], frame_of(cells, records_of(cells))


def frame_with(name, status):
    """The rows of a study with some runs that did not finish, and nothing measured beside them."""
    items, frame = whole(name)
    statuses = ["missing" if isinstance(item, Measurement) else status(item) for item in items]
    splits = ("dev_", "tuning_", "heldout_")
    numbers = [column for column in frame.columns if column in NUMBERS or column.startswith(splits)]
    changed = frame.assign(status=statuses)
    changed.loc[changed["status"] != "finished", numbers] = math.nan
    return changed


def some_missing(spec):
    return "missing" if (spec.seed + len(spec.data.task) + spec.batches.batch_size // 32) % 3 == 0 else "finished"


def high_rates_diverge(spec):
    return "diverged" if (spec.optim.lr or 0) >= 4e-3 and spec.recipe.method == "plain" else "finished"


def one_method_diverges(spec):
    return "diverged" if spec.recipe.method == "scala" else "finished"


def all_fail_but_one(spec):
    return "finished" if spec.recipe.method == "lamb" and spec.seed == 0 else "failed"


@pytest.mark.parametrize(
    "status",
    [lambda spec: "finished", some_missing, high_rates_diverge, one_method_diverges, all_fail_but_one],
    ids=["whole", "missing", "rates diverged", "method diverged", "failed"],
)
@pytest.mark.parametrize("name", CLAIMS)
def test_every_table_and_figure_can_be_written(name, status):
    study = find_study(name)
    result = study.analyse(tuned(SMALL), frame_with(name, status))
    assert result.tables
    assert {table.name for table in result.tables} >= {""}
    for table in result.tables:
        markdown, latex = markdown_text(table), latex_text(table, name)
        assert table.caption in markdown
        assert r"\toprule" in latex
        rows = list(csv.reader(io.StringIO(csv_text(table))))
        assert len({len(row) for row in rows}) == 1
    for drawing in result.figures:
        picture = io.BytesIO()
        drawing.figure.savefig(picture, format="png", dpi=30)
        assert len(picture.getvalue()) > 1_000
    if study.source:
        assert all(study.source in piece.caption for piece in (*result.tables, *result.figures))
    assert tuple(record.claim.id for record in result.claims) == CLAIMS[name]
    for record in result.claims:
        assert record.claim.study == name
        assert record.to_dict()["verdict"] in get_args(Verdict)


def test_every_claim_of_these_studies_is_judged():
    judged = {claim for claims in CLAIMS.values() for claim in claims}
    assert {claim.id for name in CLAIMS for claim in find_study(name).claims} == judged


@pytest.mark.parametrize(("seen", "said"), [(("mini-qqp", "mnli"), "include rows of mini-qqp: "), ((), None)])
def test_results_on_tasks_that_the_encoder_was_pretrained_on_say_so(seen, said):
    notes = findings(find_study("large_batch_methods"), replace(SMALL, seen_tasks=seen)).tables[0].notes
    assert [said in note for note in notes if "pretrained" in note] == [True] * bool(said)


def table_of(name, part="", **made):
    return next(table for table in findings(find_study(name), **made).tables if table.name == part)


def test_runs_that_diverged_are_shown_and_counted():
    """A trial above the best rate diverges: the grid is not extended there, and the choice is not changed."""
    table = table_of("generalizability", status=lambda spec: "diverged" if spec.optim.lr > 3e-3 else "finished")
    assert table.frame.loc[2048, "0.004"] == "diverged"
    assert any("diverged" in note for note in table.notes)
    methods = table_of("large_batch_methods", status=one_method_diverges)
    row = methods.frame.xs("ScaLA, tuned t_s", level="method").iloc[0]
    assert row["mini-mnli accuracy"] == "diverged"
    assert math.isnan(row["Avg."])
    (claim,) = findings(find_study("large_batch_methods"), status=one_method_diverges).claims
    assert claim.verdict == "not testable here"


def centre(spec):
    """The middle of the first grid of rates."""
    optimizer = spec.optim.optimizer or {"plain": "adamw", "freelb": "adamw", "sam": "adamw"}.get(
        spec.recipe.method, "lamb"
    )
    return SMALL.start_rates[optimizer] * math.sqrt(spec.batches.batch_size / SMALL.large_batch)


def exact_scores(spec):
    """Known numbers: the task's level, the method's gain, the best rate in the middle of each grid."""
    level = {"mini-mnli": 70.0, "mini-qnli": 80.0, "mini-qqp": 85.0, "mini-sst2": 90.0}[spec.data.task]
    gain = {"lamb": 0.5, "scala": 1.5, "scala-effective": 2.0}.get(spec.recipe.method, 0.0)
    return level + gain - abs(math.log2(spec.optim.lr / centre(spec))) + (0.1 if spec.seed else -0.1)


def test_table_2_by_hand():
    table = table_of("large_batch_methods", score=exact_scores).frame.xs("ScaLA, tuned t_s", level="method").iloc[0]
    assert table["mini-mnli accuracy"] == table["mini-mnli dev accuracy"] == pytest.approx(71.5)
    assert (table["mini-qqp accuracy"], table["mini-qqp F1"]) == pytest.approx((86.5, 83.5))
    # five figures, as the paper averages: 71.5, 81.5, 86.5, 83.5, 91.5
    assert table["Avg."] == pytest.approx(82.9)
    assert table["minus LAMB"] == pytest.approx(1.0)
    assert table["from"] <= 1.0 <= table["to"]
    assert table["mini-sst2 steps"] == 6 * math.ceil(ROWS / SMALL.large_batch)


def test_verdict_of_table_2_by_hand():
    (record,) = findings(find_study("large_batch_methods"), score=exact_scores).claims
    assert [part.estimate.value for part in record.deciding] == pytest.approx([1.0, 1.5, 0.5])
    assert {part.estimate.n for part in record.parts} == {2}, "the unit is the seed"
    assert not any(part.contextual for part in record.parts[:3])
    assert all(gate.passed or gate.name == "best setting inside" for gate in record.gates), record.failed


def test_the_better_t_s_on_tuning_rows_decides_and_the_other_stands_beside_it():
    def late_is_better(spec):
        return exact_scores(spec) + (0.3 if spec.resolved().recipe.delay == SMALL.late_delay else 0.0)

    for score, tuned_gain, other_gain, passes in ((exact_scores, 1.0, 1.0, 33), (late_is_better, 1.3, 1.0, 23)):
        result = findings(find_study("large_batch_methods"), score=score)
        values = {part.statement: part.estimate.value for part in result.claims[0].parts}
        assert values["ScaLA minus LAMB"] == pytest.approx(tuned_gain)
        assert values["ScaLA, other t_s minus LAMB"] == pytest.approx(other_gain)
        assert f"ScaLA, tuned t_s: {passes};" in " ".join(result.tables[0].notes)


def test_budgets_below_tables_are_those_of_the_runs():
    """With t_s=3 a run has three plain epochs of 3 passes and three of 8."""
    notes = " ".join(table_of("ablation", score=exact_scores).notes)
    assert "small-batch baseline: 18; ScaLA, tuned t_s: 33; ScaLA, other t_s: 23; without delay: 48" in notes
    assert "without group-wise rates: 33; without PGA-1: 18" in notes
    assert "FreeLB: 54" in " ".join(table_of("freelb").notes)


def test_a_best_rate_at_the_end_of_its_grid_forbids_a_verdict():
    """Scores that rise with the rate for ever end every grid at its largest number of trials."""
    (record,) = findings(find_study("train_longer"), score=lambda spec: 90 + math.log(spec.optim.lr)).claims
    assert record.verdict == "not testable here"
    assert "best setting inside" in [gate.name for gate in record.failed]


def timed(profile, seconds, records, cells):
    """Add made-up measurements: `seconds` of a step by kind and workers."""
    for cell in cells:
        if cell.labels.get("kind") != main_results.TIMES:
            continue
        result = {"matmul_rate": 1e9, "gradient_bytes": 1000}
        for name in cell.item.settings["names"]:
            pace = seconds(name.partition(" ")[2], cell.labels["workers"])
            result |= {f"{name}:step": [pace, pace, pace], f"{name}:steps_per_epoch": 10}
            result |= {f"{name}:tokens": [500.0], f"{name}:samples": [50.0]}
        records.measurements[cell.key] = {"status": "finished", "result": result}
    return main_results.analyse(profile, frame_of(cells, records))


def test_times_of_runs_are_those_of_their_steps_on_as_many_workers():
    profile = tuned(SMALL, exact_scores)
    cells = main_results.cells(profile)
    paces = {"small-batch baseline": 0.1, "LAMB": 1.0, "ScaLA with noise": 4.0, "ScaLA-effective with noise": 3.0}
    output = timed(profile, lambda kind, workers: paces[kind] / workers, records_of(cells), cells)
    table = output.tables[1].frame["mini-qnli time (s)"].droplevel(["model", "batch size", "times"])
    # six epochs of ten steps; noise in the last three or in the last one
    assert table["small-batch baseline", 1] == pytest.approx(60 * 0.1)
    assert table["ScaLA, tuned t_s", 1] == pytest.approx(30 * 1.0 + 30 * 4.0)
    assert table["ScaLA, other t_s", 1] == pytest.approx(50 * 1.0 + 10 * 4.0)
    assert table["ScaLA-effective", 2] == pytest.approx((30 * 1.0 + 30 * 3.0) / 2)
    faster = output.tables[1].frame["times faster than baseline"].droplevel(["model", "batch size", "times"])
    assert faster["ScaLA, tuned t_s", 2] == pytest.approx(6 / 150)
    assert faster["small-batch baseline", 2] == 1
    speed = next(part for part in output.claims[0].parts if part.statement.endswith("on 2 workers"))
    assert (speed.estimate.value, speed.contextual) == (pytest.approx(6 / 150), True), "the same times as the table's"
    assert [claim.verdict for claim in output.claims] == ["not testable here"] * 4, "32 workers were not timed"


def test_more_workers_than_were_measured_are_projected_and_marked():
    profile = tuned(SMALL, exact_scores)
    cells = main_results.cells(profile)
    records = records_of(cells)
    constants = Calibration(
        Compute(1e-3, 0.0, 0.0, 1e-4),
        Compute(3e-3, 0.0, 0.0, 3e-4),
        {"adamw": 0.0, "lamb": 0.0},
        *(1e6, 1.0, 1.0, 2, {WITHIN: Link(0.0, math.inf), RATES[0]: Link(0.0, 1e8)}),
    )
    (key,) = [cell.key for cell in cells if cell.labels.get("kind") == main_results.CONSTANTS]
    records.measurements[key] = {"status": "finished", "result": constants.to_dict()}
    output = timed(profile, lambda kind, workers: 1.0, records, cells)
    times = output.tables[1].frame["mini-mnli time (s)"].droplevel(["model", "batch size"])
    # one row of ten tokens on each of 32 workers; 16 hosts exchange 1 MB
    assert times["small-batch baseline", 32, "projected"] == pytest.approx(60 * (2e-3 + 2 * 15 / 16 * 1e-2))
    projected = times.xs("projected", level="times").index.get_level_values("method")
    assert set(projected) == {"small-batch baseline", "ScaLA, tuned t_s", "ScaLA, other t_s"}
    assert "Projected to 32 workers" in output.tables[1].notes[-1]
    assert output.claims[1].verdict == "not testable here", "a projection decides nothing"


def test_the_paper_profile_times_its_own_workers():
    assert PAPER.settings["workers"] == main_results.PAPER_WORKERS


def test_heat_map_by_hand():
    """Best rates grow with the root of B; each doubling from 512 on costs a point, and the first step two."""

    def score(spec):
        size = spec.batches.batch_size
        level = 80.0 if size == SMALL.small_batch else 78.0 - math.log2(size / 512)
        return level - abs(math.log2(spec.optim.lr / centre(spec))) + 0.1 * (spec.seed == 1)

    result = findings(find_study("generalizability"), score=score)
    best = next(table.frame for table in result.tables if table.name == "best")
    assert best["tuned rate"].to_dict() == {32: 5e-4, 512: 2e-3, 1024: 2.83e-3, 2048: 4e-3}
    assert best["inside of its grid"].all()
    assert best["gap to B=32"].drop(32).tolist() == pytest.approx([2.0, 3.0, 4.0], abs=0.01)
    exponent, gap, slope = (part.estimate for claim in result.claims for part in claim.parts)
    # half a step of the grid on either side: deviations of 1 / sqrt(12) doublings over log2 B = 5, 9, 10, 11
    assert exponent.value == pytest.approx(0.5, abs=0.01)
    assert exponent.se == pytest.approx(math.sqrt(1 / 12 / 20.75), rel=1e-3)
    assert (gap.value, gap.n) == (pytest.approx(3.0, abs=0.01), 2)
    assert (slope.value, slope.n) == (pytest.approx(-1.0, abs=0.01), 2)
    assert result.claims[0].verdict == "supported"


def test_rates_that_are_as_good_widen_the_exponents_interval():
    frame = pd.DataFrame({"batch_size": [32] * 3 + [512] * 3, "rate": [1e-4, 2e-4, 4e-4, 4e-4, 8e-4, 16e-4]})
    clear = generalizability.exponent_of(frame.assign(score=[80.0, 82.0, 80.0] * 2, rows=4000))
    tied = generalizability.exponent_of(frame.assign(score=[80.0, 82.0, 81.9] * 2, rows=4000))
    assert clear.value == tied.value == pytest.approx(0.5)
    assert tied.se == pytest.approx(2 * clear.se)


def test_the_rule_carries_the_best_small_rate_over():
    """The best rate is a quarter of the centre at the small batch, twice the centre at the large one."""

    def score(spec):
        factor = 0.25 if spec.batches.batch_size == SMALL.small_batch else 2.0
        return 80 - abs(math.log2(spec.optim.lr / centre(spec) / factor)) + 0.1 * spec.seed

    result = findings(find_study("lr_scaling"), score=score)
    rates = next(table.frame for table in result.tables if table.name == "rates")["mini-qnli"]
    for method, optimizer in (("baseline", "adamw"), ("ScaLA", "lamb")):
        start, large = SMALL.start_rates[optimizer], SMALL.large_batch
        assert rates[(f"{method}, rule's rate", large)] == pytest.approx(0.25 * start)
        assert rates[(f"{method}, tuned rate", large)] == pytest.approx(2 * start)
    scala, baseline = (claim.parts[0].estimate for claim in result.claims)
    assert (scala.value, baseline.value) == pytest.approx((-3.0, -3.0), abs=0.01)


def test_where_the_rule_finds_the_tuned_rate_both_are_one_run():
    cells = find_study("lr_scaling").cells(tuned(SMALL, exact_scores))
    runs = {}
    for cell in cells:
        runs.setdefault(cell.labels["method"], set()).add(cell.key)
    assert runs["ScaLA, tuned rate"] == runs["ScaLA, rule's rate"]


def test_adaptive_runs_are_compared_at_equal_cost():
    """Fixed delays gain a tenth of a point per forward pass; the adaptive run has half a point more than its cost."""
    from studies import adaptive_delay

    def score(spec):
        recipe = spec.resolved().recipe
        if recipe.method == "lamb":
            return 71.8
        start = 2.5 if recipe.delay_rule == "settled" else recipe.delay
        return 70 + 0.1 * (18 + 5 * (6 - start)) + 0.5 * (recipe.delay_rule == "settled") + spec.seed

    cells = adaptive_delay.cells(tuned(SMALL, score))
    gain = adaptive_delay.at_equal_cost(frame_of(cells, records_of(cells, score=score)))
    assert gain.value == pytest.approx(0.5)
    assert gain.n == 2
    table = table_of("adaptive_delay", score=score).frame
    assert table.loc["adaptive", "noise from epoch"] == 2.5
    assert table.loc["adaptive", "passes"] == pytest.approx(18 + 5 * 3.5)


def test_switch_points_end_with_no_noise():
    table = table_of("switch_point").frame
    assert table.index.tolist() == ["LAMB", *(f"t_s={delay:g}" for delay in SMALL.delays)]
    assert table["mini-mnli passes"].tolist() == [18, *(18 + 5 * (6 - delay) for delay in SMALL.delays)]


def test_longer_training_doubles_the_epochs():
    table = table_of("train_longer").frame["mini-mnli passes"].droplevel("batch size")
    assert (table["baseline, longer"], table["baseline"]) == (36, 18)
    assert {cell.labels["batch_size"] for cell in find_study("train_longer").cells(PAPER)} == {2048}


@pytest.mark.parametrize(("profile", "most"), [(EMBEDDED, 50), (LAPTOP, 31)], ids=["embedded", "laptop"])
def test_studies_share_their_runs(profile, most):
    """Profiles have a fixed number of hours: the arms that all studies ask for together must stay few."""
    cells = [cell for name in CLAIMS for cell in find_study(name).cells(profile) if isinstance(cell.item, RunSpec)]
    arms = {cell.key for cell in cells if cell.labels.get("seed") == profile.seeds[0]}
    assert len(arms) <= most


def test_scores_of_studies_are_paired_by_seed():
    for name in CLAIMS:
        frame = pd.DataFrame([cell.labels for cell in find_study(name).cells(SMALL)])
        assert {"task", "method", "rate", "seed"} <= set(frame.columns)


def test_averages_of_the_paper_are_about_the_means_of_five_figures():
    """QQP counts with accuracy and F1; printed averages are cut or rounded, and lie up to 0.12 from the means."""
    for number in (1, 2, 3, 5, 6):
        table = _paper_tables.read_table(f"table_{number}").dropna(subset="Avg.")
        figures = table[[name for name in table if name.endswith(("accuracy", "F1"))]]
        assert figures.shape[1] == 5
        assert table["Avg."].to_numpy() == pytest.approx(figures.mean(axis=1).to_numpy(), abs=0.125), number


def test_tables_of_the_paper_agree_with_its_data(shared):
    tables = shared / "paper" / "tables"
    data = pd.concat([pd.read_csv(tables / name) for name in ("tables_1_2.csv", "tables_3_to_6.csv")])
    data = data.fillna({"time_s": 0, "f1": 0})
    for number in range(1, 7):
        lines = _paper_tables.read_table(f"table_{number}").fillna(0).reset_index()
        if number == 2:  # its ScaLA rows are those of Table 1 and stand there in the data
            lines = lines[lines["method"] != "ScaLA"]
        ours = [
            (task, line[f"{task} accuracy"], line.get(f"{task} time (s)", 0), line.get(f"{task} F1", 0))
            for line in lines.to_dict("records")
            for task in (("MNLI-m", "SST-2") if number == 4 else _paper_tables.TASKS)
            if line[f"{task} accuracy"]
        ]
        theirs = data[data["table"] == number][["task", "accuracy", "time_s", "f1"]].itertuples(index=False, name=None)
        assert sorted(ours) == sorted(theirs), number


def test_times_of_the_paper_are_those_that_the_time_model_is_fitted_to():
    rows = {("small-batch baseline", 1): "baseline 1x1", ("small-batch baseline", 32): "baseline 2x16"}
    rows |= {("ScaLA", 32): "ScaLA B=1K"}
    table = _paper_tables.read_table("table_1").dropna(subset="Avg.")
    for (model, method, workers, _), line in table.iterrows():
        times = [line[f"{task} time (s)"] for task in _paper_tables.TASKS]
        assert times == list(paper_times.ROWS[rows[method, workers]][2 + list(paper_times.PARAMETERS).index(model)])
