"""What the studies of accuracy make of runs that were never trained: whole, with gaps, with divergence, by hand."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from functools import cache

import pandas as pd
import pytest

from scala_lab.report.tables import csv_text, latex_text, markdown_text
from scala_lab.study.api import NUMBERS, find_study, frame_of
from scala_lab.study.profiles import EMBEDDED, PAPER
from scala_lab.sweep.cells import Measurement
from scala_lab.timing.calibration import WITHIN, Calibration
from scala_lab.timing.model import Compute, Link
from studies import _paper_tables, adaptive_delay, generalizability, lr_scaling, main_results
from studies._timings import RATES
from tests.studies.synthetic import records_of

CLAIMS = {
    "generalizability": ("C3", "C4"),
    "perturbation_steps": ("C8",),
    "main_results": ("C9",),
    "large_batch_methods": ("C10",),
    "ablation": ("C11",),
    "freelb": ("C12",),
    "perturbation_kinds": ("C13",),
    "train_longer": ("C15",),
    "batch_sizes": ("C16",),
    "switch_point": ("C17",),
    "lr_scaling": ("C18",),
    "dropout_confound": ("C21",),
    "noise_strength": (),
    "adaptive_delay": (),
}
SMALL = replace(
    EMBEDDED,
    small_batch=32,
    large_batch=512,
    batch_sizes=(256, 512, 1024, 2048),
    small_rates=(2e-4, 5e-4, 1e-3),
    large_rates={"adamw": (8e-4, 2e-3, 4e-3), "lamb": (3e-3, 1e-2, 3e-2)},
    heat_rates=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3),
    seeds=(0, 1),
    side_seeds=(0, 1),
    delays=(0.0, 2.0, 3.0, 5.0),
    ascent_steps=(1, 2, 4),
    radii=(1e-5, 1e-3, 1e-2),
    workers=(1, 2),
    settings={"epochs": 6, "threads": 1, "device": "cpu"},
)
"""A profile of known numbers, however the embedded one is tuned."""


def findings(study, **made):
    """The findings of a study under the small profile; keywords go to `records_of`."""
    cells = study.cells(SMALL)
    return study.analyse(SMALL, frame_of(cells, records_of(cells, **made)))


@cache
def whole(name):
    """The runs and measurements of a study's cells, and their rows when all runs finished."""
    cells = find_study(name).cells(SMALL)
    return [cell.item for cell in cells], frame_of(cells, records_of(cells))


def frame_with(name, status):
    """The rows of a study with some runs that did not finish, and nothing measured beside them."""
    items, frame = whole(name)
    statuses = ["missing" if isinstance(item, Measurement) else status(item) for item in items]
    numbers = [column for column in frame.columns if column in NUMBERS or column.startswith("dev_")]
    changed = frame.assign(status=statuses)
    changed.loc[changed["status"] != "finished", numbers] = math.nan
    return changed


def some_missing(spec):
    return "missing" if (spec.seed + len(spec.data.task) + spec.batches.batch_size // 32) % 3 == 0 else "finished"


def high_rates_diverge(spec):
    return "diverged" if spec.optim.lr >= 4e-3 and spec.recipe.method == "plain" else "finished"


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
    result = study.analyse(SMALL, frame_with(name, status))
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
        assert record.to_dict()["verdict"] in ("reproduced", "contradicted", "inconclusive", "not run")


def test_every_claim_of_these_studies_is_judged():
    judged = {claim for claims in CLAIMS.values() for claim in claims}
    assert {claim.id for name in CLAIMS for claim in find_study(name).claims} == judged


def table_of(name, part="", **made):
    return next(table for table in findings(find_study(name), **made).tables if table.name == part)


def test_runs_that_diverged_are_shown_and_counted():
    table = table_of("generalizability", status=high_rates_diverge)
    assert table.frame["0.004"].tolist() == ["diverged"] * len(SMALL.batch_sizes)
    assert any("diverged" in note for note in table.notes)
    methods = table_of("large_batch_methods", status=one_method_diverges)
    assert methods.frame.xs("ScaLA", level="method")["mini-mnli accuracy"].tolist() == ["diverged"]
    assert math.isnan(methods.frame.xs("ScaLA", level="method")["Avg."].iloc[0])


def exact_scores(spec):
    """Known numbers: the task's level, the method's gain, the best rate in the middle of each grid."""
    level = {"mini-mnli": 70.0, "mini-qnli": 80.0, "mini-qqp": 85.0, "mini-sst2": 90.0}[spec.data.task]
    gain = {"plain": 0.0, "lamb": 0.5, "scala": 1.5, "scala-effective": 2.0}[spec.recipe.method]
    middle = SMALL.side_rates(spec.recipe.method, spec.batches.batch_size)[0]
    return level + gain - (spec.optim.lr != middle) + (0.1 if spec.seed else -0.1)


def test_table_2_by_hand():
    table = table_of("large_batch_methods", score=exact_scores).frame.xs("ScaLA", level="method").iloc[0]
    assert table["mini-mnli accuracy"] == pytest.approx(71.5)
    assert (table["mini-qqp accuracy"], table["mini-qqp F1"]) == pytest.approx((86.5, 83.5))
    # five figures, as the paper averages: 71.5, 81.5, 86.5, 83.5, 91.5
    assert table["Avg."] == pytest.approx(82.9)
    # two seeds, 0.1 below and above: deviation 0.1414, t(0.975, 1) = 12.706
    assert table["±"] == pytest.approx(12.7062 * 0.1 * math.sqrt(2) / math.sqrt(2), rel=1e-4)
    assert table["mini-sst2 steps"] == 6 * math.ceil(1000 / SMALL.large_batch)


def test_verdict_of_table_2_by_hand():
    (record,) = findings(find_study("large_batch_methods"), score=exact_scores).claims
    assert record.verdict == "reproduced"
    assert [part.estimate.value for part in record.parts] == pytest.approx([1.0, 1.5, 0.5])
    assert {part.estimate.n for part in record.parts} == {8}


def test_budgets_below_tables_are_those_of_the_runs():
    notes = " ".join(table_of("ablation").notes)
    assert "baseline: 18; ScaLA: 23; without delay: 48; without group-wise rates: 23; without PGA-1: 18" in notes
    assert "FreeLB: 54" in " ".join(table_of("freelb").notes)


def test_an_edge_of_the_grid_is_named():
    rising = table_of("large_batch_methods", score=lambda spec: 70 + math.log(spec.optim.lr))
    (note,) = [note for note in rising.notes if "ends its grid" in note]
    assert f"LAMB mini-qnli at {SMALL.rates('lamb', SMALL.large_batch)[-1]:g}" in note
    within = table_of("large_batch_methods", score=lambda spec: 70 - abs(math.log(spec.optim.lr / middle_rate(spec))))
    assert not any("ends its grid, a better" in note for note in within.notes)


def middle_rate(spec):
    grid = SMALL.rates(spec.recipe.method, spec.batches.batch_size, spec.optim.optimizer)
    return grid[len(grid) // 2]


def test_times_of_runs_are_those_of_their_steps_on_as_many_workers():
    cells = main_results.cells(SMALL)
    records = records_of(cells)
    paces = {"baseline": 0.1, "LAMB": 1.0, "ScaLA with noise": 4.0, "ScaLA-effective with noise": 3.0}
    for cell in cells:
        if cell.labels.get("kind") != main_results.TIMES:
            continue
        result = {"matmul_rate": 1e9, "gradient_bytes": 1000}
        for name in cell.item.settings["names"]:
            pace = paces[name.partition(" ")[2]] / cell.labels["workers"]
            result |= {f"{name}:step": [pace, pace, 9.0], f"{name}:steps_per_epoch": 10}
            result |= {f"{name}:tokens": [500.0], f"{name}:samples": [50.0]}
        records.measurements[cell.key] = {"status": "finished", "result": result}
    output = main_results.analyse(SMALL, frame_of(cells, records))
    table = output.tables[0].frame["mini-qnli time (s)"].droplevel(["model", "batch size"])
    # six epochs of ten steps; ScaLA has noise in the last of six, ScaLA-effective in the last three
    assert table["baseline", 1] == pytest.approx(60 * 0.1)
    assert table["ScaLA", 1] == pytest.approx(50 * 1.0 + 10 * 4.0)
    assert table["ScaLA-effective", 2] == pytest.approx((30 * 1.0 + 30 * 3.0) / 2)
    times = output.tables[1].frame["times faster than baseline"].droplevel(["model", "batch size", "times"])
    assert times["ScaLA", 2] == pytest.approx(6 / 90)
    assert times["baseline", 2] == 1


def test_more_workers_than_were_measured_are_projected_and_marked():
    cells = main_results.cells(SMALL)
    records = records_of(cells)
    constants = Calibration(
        Compute(1e-3, 0.0, 0.0, 1e-4),
        Compute(3e-3, 0.0, 0.0, 3e-4),
        {"adamw": 0.0, "lamb": 0.0},
        *(1e6, 1.0, 1.0, 2, {WITHIN: Link(0.0, math.inf), RATES[0]: Link(0.0, 1e8)}),
    )
    for cell in cells:
        if cell.labels.get("kind") == main_results.CONSTANTS:
            records.measurements[cell.key] = {"status": "finished", "result": constants.to_dict()}
        elif cell.labels.get("kind") == main_results.TIMES:
            result = {}
            for name in cell.item.settings["names"]:
                result |= {f"{name}:step": [1.0], f"{name}:steps_per_epoch": 10}
                result |= {f"{name}:tokens": [500.0], f"{name}:samples": [50.0]}
            records.measurements[cell.key] = {"status": "finished", "result": result}
    output = main_results.analyse(SMALL, frame_of(cells, records))
    times = output.tables[1].frame["mini-mnli time (s)"].droplevel(["model", "batch size"])
    # one row of ten tokens on each of 32 workers; 16 hosts exchange 1 MB
    assert times["baseline", 32, "projected"] == pytest.approx(60 * (2e-3 + 2 * 15 / 16 * 1e-2))
    assert set(times.xs("projected", level="times").index.get_level_values("method")) == {"baseline", "ScaLA"}
    assert "Projected to 32 workers" in output.tables[1].notes[-1]


def test_the_paper_profile_times_its_own_workers():
    assert PAPER.settings["workers"] == main_results.PAPER_WORKERS


def test_heat_map_by_hand():
    study = find_study("generalizability")
    peak = {256: 1e-3, 512: 2e-3, 1024: 2e-3, 2048: 4e-3}

    def score(spec):
        size = spec.batches.batch_size
        if size == SMALL.small_batch:
            return 80.0
        return 78.0 - math.log2(size / 256) - abs(math.log2(spec.optim.lr / peak[size]))

    result = findings(study, score=score)
    best = next(table.frame for table in result.tables if table.name == "best")
    assert best["best rate"].drop(32).to_dict() == peak
    assert best["gap to B=32"].drop(32).tolist() == pytest.approx([2.0, 3.0, 4.0, 5.0])
    exponent, slope = result.claims[0].parts[0].estimate, result.claims[1].parts[1].estimate
    # log2 of the peaks 0, 1, 1, 2 over doublings 0 to 3: least squares 0.6
    assert exponent.value == pytest.approx(0.6)
    assert slope.value == pytest.approx(1.0)


def test_heat_cells_need_every_seed():
    frame = pd.DataFrame(
        {"batch_size": 256, "rate": [1e-3, 1e-3, 2e-3, 2e-3], "score": [80.0, 82.0, 90.0, math.nan]}
    ).assign(status=["finished", "finished", "finished", "diverged"])
    cells = generalizability.heat_cells(frame)
    assert cells["score"].tolist()[0] == 81.0
    assert math.isnan(cells["score"].tolist()[1])
    assert cells["diverged"].tolist() == [False, True]


def test_the_rule_carries_the_best_small_rate_over():
    """At the small batch the first rate is best, at the large one the last: rule and tuning must part."""

    def score(spec):
        sign = -1 if spec.batches.batch_size == SMALL.small_batch else 1
        return 80 + sign * math.log10(spec.optim.lr)

    study = find_study("lr_scaling")
    cells = study.cells(SMALL)
    frame = frame_of(cells, records_of(cells, score=score))
    chosen = lr_scaling.chosen_runs(SMALL, frame)
    rates = lr_scaling.rate_table(chosen)["mini-qnli"]
    large = SMALL.large_batch
    for method, recipe in (("baseline", "plain"), ("ScaLA", "scala")):
        grid = SMALL.rates(recipe, large)
        assert rates[(f"{method}, rule", large)] == grid[0]
        assert rates[(f"{method}, tuned", large)] == grid[-1]
    (record,) = findings(study, score=score).claims
    grid = SMALL.rates("scala", large)
    assert record.parts[0].estimate.value == pytest.approx(math.log10(grid[0] / grid[-1]))


def test_adaptive_runs_are_compared_at_equal_cost():
    """Fixed delays gain a tenth of a point per forward pass; the adaptive run has half a point more than its cost."""

    def score(spec):
        recipe = spec.resolved().recipe
        if recipe.method == "lamb":
            return 71.8
        start = 2.5 if recipe.delay_rule == "settled" else recipe.delay
        return 70 + 0.1 * (18 + 5 * (6 - start)) + 0.5 * (recipe.delay_rule == "settled") + spec.seed

    study = find_study("adaptive_delay")
    cells = study.cells(SMALL)
    frame = frame_of(cells, records_of(cells, score=score))
    frame = frame.assign(
        setting=[adaptive_delay.setting_name(*row) for row in zip(frame["method"], frame["delay"], strict=True)]
    )
    gain = adaptive_delay.at_equal_cost(frame)
    assert gain.value == pytest.approx(0.5)
    assert gain.n == 4
    table = table_of("adaptive_delay", score=score).frame
    assert table.loc["adaptive", "noise from epoch"] == 2.5
    assert table.loc["adaptive", "passes"] == pytest.approx(18 + 5 * 3.5)


def test_switch_points_end_with_no_noise():
    table = table_of("switch_point").frame
    assert table.index.tolist() == [*(f"{delay:g}" for delay in SMALL.delays), "never"]
    assert table["mini-mnli passes"].tolist() == [*(18 + 5 * (6 - delay) for delay in SMALL.delays), 18]


def test_longer_training_doubles_the_epochs_at_twice_the_batch():
    table = table_of("train_longer").frame
    assert table.loc["baseline, longer", ["epochs", "passes"]].tolist() == [12, 36]
    assert table.loc["baseline", ["epochs", "passes"]].tolist() == [6, 18]
    assert {cell.labels["batch_size"] for cell in find_study("train_longer").cells(PAPER)} == {2048}


def test_studies_share_their_runs():
    """The embedded profile has a quarter of an hour: what the studies ask for together must stay few."""
    cells = [cell for name in CLAIMS for cell in find_study(name).cells(EMBEDDED)]
    distinct = len({cell.key for cell in cells})
    assert distinct <= 374
    assert distinct < 0.55 * len(cells)


def test_scores_of_studies_are_paired_by_seed():
    for name in CLAIMS:
        frame = pd.DataFrame([cell.labels for cell in find_study(name).cells(SMALL)])
        assert {"task", "method", "rate", "seed"} <= set(frame.columns)


def test_averages_of_the_paper_are_about_the_means_of_five_figures():
    """QQP counts with accuracy and F1; printed averages are cut or rounded, and lie up to 0.12 from the means."""
    for number in range(1, 7):
        for line in getattr(_paper_tables, f"TABLE_{number}"):
            if line.average is not None:
                assert line.average == pytest.approx((sum(line.accuracies) + line.f1) / 5, abs=0.125), (number, line)


def test_tables_of_the_paper_agree_with_its_data(shared):
    tables = shared / "paper" / "tables"
    data = pd.concat([pd.read_csv(tables / name) for name in ("tables_1_2.csv", "tables_3_to_6.csv")])
    data = data[~data["method"].isin(["Devlin 2019", "Liu 2020"])].fillna({"time_s": 0, "f1": 0})
    for number in range(1, 7):
        printed = data[data["table"] == number]
        tasks = ("MNLI-m", "SST-2") if number == 4 else _paper_tables.TASKS
        lines = getattr(_paper_tables, f"TABLE_{number}")
        if number == 2:  # its ScaLA rows are those of Table 1 and stand there in the data
            lines = [line for line in lines if "ScaLA" not in line.names]
        ours = [
            (task, accuracy, line.times[index] if line.times else 0, line.f1 if task == "QQP" else 0)
            for line in lines
            for index, (task, accuracy) in enumerate(zip(tasks, line.accuracies, strict=True))
        ]
        theirs = printed[["task", "accuracy", "time_s", "f1"]].itertuples(index=False, name=None)
        assert sorted(ours) == sorted(theirs), number
