"""What stands beside a verdict: what it is worth, each part's numbers, gates, arms and trials; and the forest plot."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from scala_lab.report.build import part_cells, write_report
from scala_lab.report.chapter import arms_table, read_chapter, tuning_table
from scala_lab.report.figures.forest import difference_figure, forest_figure
from scala_lab.report.figures.style import figure_files
from scala_lab.report.figures.timing import worker_lines
from scala_lab.report.tables import NOTHING
from scala_lab.study.statistics import mean_interval
from scala_lab.study.verdicts import effect
from tests.report.own_studies import TWO_TASKS, forgotten_imports, records_of, write_five, write_study


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """A report with a claim of each verdict: its folder, chapters and records."""
    folder = tmp_path_factory.mktemp("five")
    with forgotten_imports():
        references = (write_five(folder), write_study(folder, "first"))
        records = records_of(*references, manifest=TWO_TASKS)
        chapters = write_report(folder / "out", replace(TWO_TASKS, studies=references), records)
    assert not any(chapter.failure for chapter in chapters)
    return folder / "out", chapters, records


@pytest.fixture(scope="module")
def claims(five):
    return {one.claim.id: one for chapter in five[1] for one in chapter.claims}


WORTH = (
    "embedded profile, embedded (0.7M parameters), 4,096 training rows, 48 steps at B=32, 48 steps at B=128, 3 seeds; "
    "demonstration: a 0.2M-parameter encoder on generated text"
)
TALLY = "2 supported, 1 no effect of the claimed size, 1 reversed, 1 undecided, 2 not testable here"


def test_what_verdicts_are_worth_stands_beside_every_tally(five):
    page = " ".join(re.sub(r"<[^>]+>", "", (five[0] / "index.html").read_text()).split())
    assert f"What these verdicts are worth: {WORTH}." in page
    assert f"{TALLY}. What they are worth: {WORTH}." in (five[0] / "claims.md").read_text()


def test_evidence_on_a_part(claims):
    effect_part, no_worse_part, factor = claims["C1"].parts
    assert part_cells(claims["C1"], effect_part) == {
        **{"part": "ScaLA - LAMB", "verdict": "✓ supported", "measured": "+0.767 points"},
        **{"interval": "+0.339 to +1.19 (96%)", "paper": "+0.8 points (inside)"},
        **{"smallest effect or range": "+0.4 points", "n": "3 seeds", "rows": NOTHING, "paired SD": "0.15"},
        **{"detectable": "0.558 points", "n to decide": NOTHING},
    }
    assert part_cells(claims["C1"], no_worse_part)["smallest effect or range"] == "at least -0.4 points"
    assert part_cells(claims["C1"], factor)["paired SD"].endswith("(log)")
    open_part = part_cells(claims["C4"], claims["C4"].parts[0])
    assert (open_part["verdict"], open_part["n to decide"]) == ("~ undecided", "51 seeds")
    assert part_cells(claims["C4"], claims["C4"].parts[1])["part"] == "slope per doubling (context)"


@pytest.mark.parametrize("file", ["claims.md", "index.html"])
def test_gates_sensitivity_and_reason_are_given(five, file):
    text = (five[0] / file).read_text().replace("&#39;", "'")
    assert "Failed: fitted (LAMB ends at 0.93 of chance's loss). It would take training until the loss" in text
    assert "✗ fitted: LAMB ends at 0.93 of chance's loss; it would take training until the loss is at most 0.5" in text
    assert "✓ fitted: training loss at most 0.21 of chance's" in text
    same = "Sensitivity (each seed or task left out, margins halved and doubled): 5 of 7 verdicts are the same"
    assert f"{same}; margins times 0.5 undecided; margins times 2 undecided." in text


def test_arms_have_their_losses_and_the_place_of_their_rate(five):
    table = pd.read_csv(five[0] / "tables" / "arms.csv")
    assert len(table) == len(table.drop_duplicates(["task", "batch size", "method"])) == 10
    lamb = table[(table["task"] == "mini-mnli") & (table["method"] == "LAMB")].iloc[0]
    runs = [
        run
        for run in five[2].runs.values()
        if run["spec"]["data"]["task"] == "mini-mnli" and run["spec"]["recipe"]["method"] == "lamb"
    ]
    seeds = [run for run in runs if run["spec"]["seed"] != 100]  # without the trials
    assert (lamb["seeds"], lamb["steps"], lamb["in grid"], lamb["not finished"]) == (3, 48, "inside", 0)
    assert lamb["rate"] == seeds[0]["learning_rate"]
    assert lamb["training loss / chance"] == pytest.approx(0.3)
    for column, split in (("held-out score", "heldout"), ("dev score", "dev")):
        assert lamb[column] == pytest.approx(np.mean([100 * run["metrics"][split]["accuracy"] for run in seeds]))
    assert set(table[table["batch size"] == 512]["in grid"]) == {NOTHING}  # not tuned


def test_an_arm_of_which_a_run_diverged_or_never_started_says_so(tmp_path):
    with forgotten_imports():
        reference = write_five(tmp_path)
        records = records_of(reference, manifest=TWO_TASKS)
        chapter = read_chapter(reference, TWO_TASKS.load_profile(), records)
        first, second = (
            chapter.frame.query("method == 'LAMB' and task == 'mini-sst2' and seed == @seed")["id"].item()
            for seed in (0, 1)
        )
        records.runs[first].update(status="diverged", metrics={}, losses={"train": math.nan})
        kept = {name: records.runs[second][name] for name in ("id", "name", "spec", "learning_rate", "steps")}
        records.runs[second] = {**kept, "metrics": {}, "status": "failed"}
        frame = arms_table([read_chapter(reference, TWO_TASKS.load_profile(), records)], records).frame
    row = frame.query("method == 'LAMB' and task == 'mini-sst2'").iloc[0]
    assert (row["seeds"], row["not finished"]) == (1, 2)
    assert row["training loss / chance"] == pytest.approx(0.3)


def test_trials_show_the_score_of_each_value_and_the_best_is_chosen(five):
    table = tuning_table(five[1]).frame
    assert set(table["setting"]) == {"lr", "omega rho"}
    assert len(table) == 8  # two tasks: AdamW at two sizes, LAMB, and a radius
    for row in table.to_dict("records"):
        scores = dict(map(float, trial.split(": ")) for trial in row["scores by value"].split("; "))
        assert len(scores) == row["trials"] >= 3
        assert max(scores, key=scores.get) == float(row["chosen"])
        assert row["in grid"] == "inside"
    assert table["trials"].sum() <= sum(run["spec"]["seed"] == 100 for run in five[2].runs.values())


def texts(figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_forest_has_every_part_on_the_axis_of_its_unit(claims):
    figure = forest_figure(list(claims.values()))
    assert [axes.get_xlabel() for axes in figure.axes] == ["points", "factor, log scale", "plain number"]
    assert [axes.get_xscale() for axes in figure.axes] == ["linear", "log", "linear"]
    parts = [part for one in claims.values() for part in one.parts]
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(parts)
    assert labels[0] == "ScaLA - LAMB  C1"
    drawn = {tuple(np.ravel(line.get_data())) for axes in figure.axes for line in axes.get_lines()}
    for row, part in enumerate(parts):
        assert (part.estimate.value, row) in drawn
        assert part.paper is None or (part.paper, row) in drawn
        if part.smallest is not None:
            assert (part.smallest, part.smallest, row - 0.38, row + 0.38) in drawn
    assert (0, 0, 0, 1) in drawn  # the line of zero
    assert (1, 1, 0, 1) in drawn  # and of a factor of one


def test_forest_greys_what_is_not_testable_and_names_the_gate(claims):
    figure = forest_figure([claims["C1"], claims["C5"]])
    assert texts(figure)[-2:] == ["· fitted", "· fitted"]
    colours = [label.get_color() for label in figure.axes[0].get_yticklabels()]
    assert colours == ["black"] * 3 + ["#7a7a7a"] * 2


def test_one_wild_interval_does_not_hide_the_others(claims):
    axes = forest_figure(list(claims.values())).axes[0]
    low, high = axes.get_xlim()
    assert -8 < low < -0.5  # the interval from -42 to 43 ends in arrows
    assert 0.8 < high < 8


def test_forest_of_estimates_without_interval_or_value(claims):
    parts = [effect(f"n = {len(values)}", mean_interval(values, "points"), 0.8) for values in ([], [0.5])]
    record = type(claims["C1"])(claims["C1"].claim, tuple(parts))
    assert texts(forest_figure([record])) == ["· not measured", "~ +0.5"]
    assert figure_files(forest_figure([record]))


def test_differences_show_seeds_mean_interval_and_the_paper(claims):
    parts = claims["C1"].parts
    figure = difference_figure(parts, title="t")
    assert [axes.get_xlabel() for axes in figure.axes] == ["points", "factor, log scale"]
    for part, axes in ((parts[0], figure.axes[0]), (parts[2], figure.axes[1])):
        drawn = [list(line.get_xdata()) for line in axes.get_lines()]
        for marks in (part.estimate.numbers, part.interval, [part.estimate.value], [part.paper], [part.smallest] * 2):
            assert list(marks) in drawn


def test_differences_that_were_not_measured_are_empty_rows():
    parts = [effect("x", mean_interval([], "points"), 0.8), effect("y", mean_interval([1.0, 2.0], "points"), 0.8)]
    axes = difference_figure(parts, title="t").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["x", "y"]
    assert [1.5] in [list(line.get_xdata()) for line in axes.get_lines()]
    assert figure_files(difference_figure(parts[:1], title="t"))


def test_seeds_of_factors_are_factors():
    estimate = mean_interval([2.0, 8.0], "x")
    assert estimate.numbers == pytest.approx((2.0, 8.0))
    assert estimate.value == pytest.approx(4.0)


def test_a_demonstration_says_so_on_the_face_of_every_figure(five):
    for file in (five[0] / "figures").glob("*.svg"):
        assert "demonstration: a 0.2M-parameter encoder" in file.read_text(), file.name
    figure = forest_figure(five[1][0].claims)
    assert b"demonstration" not in figure_files(figure)[".svg"]


def test_text_on_the_face_touches_nothing_else(five):
    """A legend outside of the axes must not move onto it when the image is cut to its content."""
    from matplotlib.image import imread

    lines = pd.DataFrame({"label": ["a", "b"], "workers": [1, 1], "value": [1.0, 2.0]})
    plain, marked = (
        imread(io.BytesIO(figure_files(worker_lines(lines, "t"), face)[".png"])) for face in ("", "demonstration")
    )
    assert len(plain) < len(marked) < len(plain) + 40
    rows = slice(20, len(plain) - 25)  # away from the border, which is cut at whole pixels
    assert np.abs(plain[rows, :600] - marked[rows, :600]).max() < 0.02


def test_measured_times_are_points_and_projected_ones_go_on_dashed():
    frame = pd.DataFrame(
        {
            **{"label": "a", "workers": [1, 2, 4, 8], "value": [8.0, 5.0, 3.0, 2.0]},
            **{"low": [7.5, 4.0, 2.0, 1.0], "high": [9.0, 6.0, 5.0, 4.0]},
            **{"measured": [True, True, False, False], "paper": [math.nan, math.nan, math.nan, 2.5]},
        }
    )
    figure = worker_lines(frame, "t")
    lines = {(line.get_linestyle(), tuple(line.get_ydata())): line for line in figure.axes[0].get_lines()}
    assert lines["-", (8.0, 5.0)].get_marker() == "o"
    assert lines["--", (5.0, 3.0, 2.0)].get_marker() == ""
    assert any(marks[-1:] == (2.5,) and line.get_marker() == "D" for (_, marks), line in lines.items())
    band = next(one for one in figure.axes[0].collections if "Poly" in type(one).__name__)
    assert band.get_paths()[0].get_extents().bounds == pytest.approx((2, 1, 6, 5))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["a", "perfect scaling", "measured", "projected", "the paper"]
