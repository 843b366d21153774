from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from scala_lab.errors import UserError
from scala_lab.report.figures.convergence import rate_panels
from scala_lab.report.figures.curvature import density_lines
from scala_lab.report.figures.timing import phase_bars, worker_lines


def test_rates_have_a_panel_each_and_a_line_for_every_bound():
    frame = pd.DataFrame(
        [(panel, label, steps, 1 / steps, bound) for panel in "xy" for label, bound in (("a", 1.0), ("b", np.nan))
         for steps in (1, 2, 4)],
        columns=["panel", "label", "steps", "value", "bound"],
    )  # fmt: skip
    axes = rate_panels(frame, "t", "steps", "error").axes
    assert [panel.get_title() for panel in axes] == ["x", "y"]
    assert len(axes[0].get_lines()) == 3
    assert [text.get_text() for text in axes[0].get_legend().get_texts()] == ["a", "b", "printed bound"]
    with pytest.raises(UserError, match="value"):
        rate_panels(frame.drop(columns="value"), "t", "steps", "error")


def test_bars_stack_to_the_whole_step():
    frame = pd.DataFrame(
        [("plain", "clean forward", 1.0), ("plain", "backward", 2.0), ("noise", "clean forward", 1.0),
         ("noise", "inner forward", 1.0), ("noise", "backward", 4.0)],
        columns=["method", "phase", "value"],
    )  # fmt: skip
    axes = phase_bars(frame).axes[0]
    assert [text.get_text() for text in axes.texts] == ["3.00", "6.00"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["plain", "noise"]


def test_perfect_scaling_starts_where_each_line_does():
    frame = pd.DataFrame({"label": ["a", "a", "a"], "workers": [1, 2, 4], "value": [8.0, 5.0, 4.0]})
    measured, perfect = worker_lines(frame, "t").axes[0].get_lines()
    assert list(measured.get_ydata()) == [8, 5, 4]
    assert list(perfect.get_ydata()) == [8, 4, 2]


def test_densities_share_one_kernel_and_integrate_to_one():
    frames = {
        name: pd.DataFrame({"node": nodes, "weight": [0.5, 0.5]}) for name, nodes in (("a", [0, 1]), ("b", [0, 9]))
    }
    axes = density_lines(frames, single=1e-9).axes[0]
    for line in axes.get_lines()[:2]:
        assert np.trapezoid(np.nan_to_num(line.get_ydata()), line.get_xdata()) == pytest.approx(1, abs=1e-3)
