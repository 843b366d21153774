"""The choice of each method's best rate."""

from __future__ import annotations

import math

import pandas as pd

from scala_lab.study.tables import best_runs


def runs(**columns):
    return pd.DataFrame(columns)


def test_best_runs_are_at_the_rate_with_the_best_mean_and_say_when_it_ends_the_grid():
    frame = runs(
        method=["x"] * 6 + ["y"] * 6,
        rate=[0.1, 0.1, 0.2, 0.2, 0.3, 0.3] * 2,
        seed=[0, 1] * 6,
        score=[1, 1, 5, 2, 9, math.nan, 1, 1, 2, 2, 3, 3],
    )
    best = best_runs(frame, ["method"])
    assert best[best["method"] == "x"]["rate"].unique().tolist() == [0.2], "a rate with a diverged seed is no best rate"
    assert best[best["method"] == "x"]["score"].tolist() == [5, 2]
    assert best.groupby("method")["edge"].first().to_dict() == {"x": False, "y": True}
    assert set(best["grid_points"]) == {3}


def test_best_runs_leave_out_a_method_that_never_finished_and_know_no_edge_of_one_rate():
    frame = runs(method=["x", "y"], rate=[0.1, 0.1], seed=[0, 0], score=[math.nan, 1.0])
    best = best_runs(frame, ["method"])
    assert best["method"].tolist() == ["y"]
    assert not best["edge"].any()
    assert best_runs(frame[frame["method"] == "x"], ["method"]).empty
