"""Figures of curvature show the numbers they were given, with units, and what has not converged as such."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from scala_lab.curvature.spectrum import DensityResult, gaussian_mixture
from scala_lab.errors import UserError
from scala_lab.report.figures.curvature import (
    accuracy_over_sharpness,
    density_plot,
    layer_bars,
    sharpness_bars,
    sharpness_over_loss,
)
from scala_lab.report.figures.style import save_figure


def bars(axes):
    """Length of each bar, top to bottom."""
    return [patch.get_width() for patch in sorted(axes.patches, key=lambda patch: patch.get_y())]


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_bars_are_means_with_the_deviation_over_sets_as_whiskers():
    frame = pd.DataFrame({"checkpoint": ["b", "b", "b", "a"], "eigenvalue": [1.0, 2.0, 6.0, 4.0], "converged": True})
    figure = sharpness_bars(frame, unit="nats")
    (axes,) = figure.axes
    assert bars(axes) == [3.0, 4.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"], "in the order they were given"
    (whisker,) = axes.containers[1].lines[2]
    ((left, _), (right, _)) = whisker.get_segments()[0]
    deviation = np.std([1, 2, 6], ddof=1)
    assert (left, right) == pytest.approx((3 - deviation, 3 + deviation))
    assert texts(figure) == ["3.0 ± 2.6", "4"]
    assert axes.get_xlabel().startswith("top eigenvalue (nats per squared unit of weight)")
    assert "standard deviation" in axes.get_xlabel()
    assert axes.get_xlim()[0] == 0
    assert axes.get_xlim()[1] > 3 + deviation


def test_one_set_of_rows_has_no_deviation_to_speak_of():
    figure = sharpness_bars(pd.DataFrame({"checkpoint": ["a"], "eigenvalue": [4.0], "converged": True}))
    assert "deviation" not in figure.axes[0].get_xlabel()
    assert texts(figure) == ["4"]


def test_a_bar_that_has_not_converged_is_empty_dashed_and_says_so():
    frame = pd.DataFrame({"checkpoint": ["a", "b"], "eigenvalue": [4.0, 3.0], "converged": [True, False]})
    figure = sharpness_bars(frame)
    sure, unsure = sorted(figure.axes[0].patches, key=lambda patch: patch.get_y())
    assert unsure.get_facecolor() == (1, 1, 1, 1) != sure.get_facecolor()
    assert unsure.get_linestyle() == "--"
    assert texts(figure) == ["4", "3, not converged"]


def test_layers_of_models_of_several_depths_share_their_rows():
    frame = pd.DataFrame(
        {
            "checkpoint": ["small"] * 3 + ["deep"] * 4,
            "layer": ["embeddings", "d.layer.0", "head", "embeddings", "bert.encoder.layer.0", "b.e.layer.1", "head"],
            "eigenvalue": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0],
            "converged": True,
        }
    )
    figure = layer_bars(frame)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["embeddings", "layer 0", "layer 1", "head"]
    assert sorted(bars(axes)) == [1, 1, 2, 3, 4, 5, 6]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["small (κ = 3)", "deep (κ = 6)"]


def test_layers_over_decades_are_on_a_log_scale_that_the_axis_names():
    frame = pd.DataFrame(
        {"checkpoint": "a", "layer": ["embeddings", "head"], "eigenvalue": [0.01, 10.0], "converged": True}
    )
    axes = layer_bars(frame).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel().endswith("log scale")
    near = frame.assign(eigenvalue=[1.0, 10.0])
    assert layer_bars(near).axes[0].get_xscale() == "linear"


def density_of(nodes, width=0.1):
    nodes = np.array(nodes, dtype=float)
    weights = np.full(len(nodes), 1 / len(nodes))
    grid = np.linspace(nodes.min() - 1, nodes.max() + 1, 401)
    values = gaussian_mixture(grid, nodes, weights, width)
    return DensityResult(grid, values, nodes, weights, np.zeros(len(nodes), int), width, 100, 400)


def test_density_draws_the_curve_the_nodes_and_the_height_of_one_eigenvalue():
    found = density_of([0, 0, 1, 5])
    figure = density_plot(found)
    axes, rug = figure.axes
    curve, single = axes.lines
    drawn = np.array(curve.get_ydata())
    high = found.density > 0.01  # below lies the floor of the picture
    assert np.allclose(drawn[high], found.density[high])
    assert single.get_ydata()[0] == pytest.approx(1 / (100 * 0.1 * np.sqrt(2 * np.pi)))
    assert [segment[0, 0] for segment in rug.collections[0].get_segments()] == [0, 0, 1, 5]
    assert axes.get_ylabel() == "density (share per unit of eigenvalue)"
    assert rug.get_xlabel() == "eigenvalue (nats per squared unit of weight)"
    assert "100 dimensions of 400" in axes.get_title()


def test_a_table_without_what_a_figure_needs_is_refused():
    with pytest.raises(UserError, match="needs a column eigenvalue: it has checkpoint"):
        sharpness_bars(pd.DataFrame({"checkpoint": ["a"]}))
    with pytest.raises(UserError, match="no rows"):
        layer_bars(pd.DataFrame({"checkpoint": [], "layer": [], "eigenvalue": [], "converged": []}))


def test_text_in_svg_is_text_and_equal_figures_are_equal_files(tmp_path):
    frame = pd.DataFrame({"checkpoint": ["a", "b"], "eigenvalue": [4.0, 3.0], "converged": True})
    for name in ("one", "two"):
        save_figure(sharpness_bars(frame), tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert re.search(r"<text[^>]*>top eigenvalue \(nats", (tmp_path / "one.svg").read_text())


def test_sharpness_over_loss_joins_the_states_of_one_run_and_fills_the_end():
    columns = ["label", "seed", "state", "loss", "value"]
    rows = [("a", 0, "end", 0.1, 5.0), ("a", 0, "equal loss", 0.3, 9.0), ("b", 0, "end", 0.3, 7.0)]
    axes = sharpness_over_loss(pd.DataFrame(rows, columns=columns)).axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    marks = {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}
    assert set(marks) == {"a", "a, equal loss", "b"}
    assert marks["a"].get_markerfacecolor() == marks["a"].get_color()
    assert marks["a, equal loss"].get_markerfacecolor() == "white"
    assert any(list(line.get_xdata()) == [0.1, 0.3] for line in axes.lines)


def test_accuracy_over_sharpness_has_a_mark_per_run_and_a_look_per_method():
    names = [f"method {number}" for number in range(11)]
    rows = [(name, 80.0 + index, 2.0 + index, 10.0**index) for index, name in enumerate(names) for _ in range(2)]
    frame = pd.DataFrame(rows, columns=["method", "score", "near", "far"])
    panels = {"near": "near by", "far": "over decades", "score": "itself"}
    figure = accuracy_over_sharpness(frame, panels)
    first, second, third, empty = figure.axes
    assert [axes.get_title() for axes in (first, second, third)] == list(panels.values())
    assert (first.get_xscale(), second.get_xscale(), empty.axison) == ("linear", "log", False)
    assert [list(line.get_xdata()) for line in first.lines] == [[2.0 + index] * 2 for index in range(11)]
    assert [list(line.get_ydata()) for line in second.lines] == [[80.0 + index] * 2 for index in range(11)]
    looks = {(line.get_marker(), line.get_markerfacecolor() == "white") for line in first.lines}
    assert len(looks) == 11, "without colour"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == names
