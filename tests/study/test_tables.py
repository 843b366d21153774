"""Tables of means over seeds with paired differences."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from scala_lab.study.tables import table_by_task


def runs(scores, task="a", status="finished", split="heldout"):
    """Rows of two methods with a score per seed; dev scores are one point lower, and there is no F1."""
    rows = [
        {"method": method, "task": task, "seed": seed, "score": score, "dev": score - 1, "f1": math.nan}
        for method, values in scores.items()
        for seed, score in enumerate(values)
    ]
    return pd.DataFrame(rows).assign(status=status, score_split=split)


def test_a_row_has_its_means_and_its_paired_difference():
    """Seeds differ by ten points, the methods by 1 and 2 points: pairing by seed leaves a deviation of 0.71."""
    table = table_by_task(runs({"x": [80.0, 90.0], "y": [81.0, 92.0]}), ["method"], ["a"], against="x")
    assert table.loc["y", ["a accuracy", "a dev accuracy", "Avg.", "minus x"]].tolist() == [86.5, 85.5, 86.5, 1.5]
    half = 12.706 * math.sqrt(0.5) / math.sqrt(2)
    assert table.loc["y", ["from", "to"]].tolist() == pytest.approx([1.5 - half, 1.5 + half], rel=1e-3)
    assert table.loc["x", ["minus x", "from", "to"]].isna().all()


def test_dev_stands_beside_the_score_only_where_the_score_is_of_other_rows():
    assert "a dev accuracy" not in table_by_task(runs({"x": [80.0, 90.0]}, split="dev"), ["method"], ["a"])


def test_a_diverged_seed_leaves_no_mean_of_the_others():
    frame = runs({"x": [80.0, 90.0], "y": [81.0, math.nan]})
    frame["status"] = ["finished"] * 3 + ["diverged"]
    table = table_by_task(frame, ["method"], ["a"])
    assert table["a accuracy"].tolist() == [85.0, "diverged"]


def test_averages_are_of_seeds_that_have_all_tasks():
    frame = pd.concat([runs({"x": [80.0, 90.0]}), runs({"x": [70.0]}, task="b")])
    assert table_by_task(frame, ["method"], ["a", "b"])["Avg."].tolist() == [75.0]
