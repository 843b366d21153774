"""Figures of landscapes: one scale for all models, nothing drawn where nothing is known, axes with units."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from scala_lab.errors import UserError
from scala_lab.report.figures.landscape import side_by_side, slice_1d_plot

X = "distance along eigenvector 1 (units of weight)"
Y = "distance along eigenvector 2 (units of weight)"


def bowl(height: float, depth: float = 1.0, points: int = 9) -> pd.DataFrame:
    """depth at the middle, depth + 2 * height in the corners."""
    side = np.linspace(-1, 1, points)
    x, y = (part.flatten() for part in np.meshgrid(side, side))
    loss = depth + height * (x**2 + y**2)
    return pd.DataFrame({"x": x, "y": y, "loss": loss, "accuracy": 1 - (x**2 + y**2) / 4})


def line(height: float, depth: float = 1.0) -> pd.DataFrame:
    position = np.linspace(-1, 1, 9)
    return pd.DataFrame({"position": position, "loss": depth + height * position**2, "accuracy": 1 - position**2 / 2})


def panels(figure):
    """The axes of the models, without the colour bar's."""
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def colour_bar(figure):
    (found,) = (axes for axes in figure.axes if axes.get_label() == "<colorbar>")
    return found


def test_contours_of_several_models_have_one_scale_of_colour_and_one_of_place():
    figure = side_by_side({"flat": bowl(0.1), "sharp": bowl(2.0), "middle": bowl(0.5)}, "title", X, Y)
    drawn = panels(figure)
    assert [axes.get_title() for axes in drawn] == ["flat", "sharp", "middle"]
    filled = [axes.collections[0] for axes in drawn]
    assert {(part.norm.vmin, part.norm.vmax) for part in filled} == {(1.0, 5.0)}
    assert len({tuple(part.levels) for part in filled}) == 1
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in drawn}) == 1
    assert colour_bar(figure).get_ylabel() == "mean loss (nats)"
    assert colour_bar(figure).get_ylim() == (1.0, 5.0)
    assert figure.get_supxlabel() == X
    assert figure.get_supylabel().replace("\n", " ") == Y


def test_surfaces_of_several_models_have_one_scale_of_height_and_colour():
    figure = side_by_side({"flat": bowl(0.1), "sharp": bowl(2.0)}, "title", X, Y, kind="surface")
    drawn = panels(figure)
    assert {axes.get_zlim() for axes in drawn} == {(1.0, 5.0)}
    colours = [axes.collections[0].get_facecolor() for axes in drawn]
    # the flat model stays at the dark end of the scale that the sharp one fills
    assert colours[0].mean() < colours[1].mean()
    assert [axes.get_xlabel() for axes in drawn] == ["x", "x"]
    assert figure.get_supxlabel() == f"x: {X}\ny: {Y}"
    assert colour_bar(figure).get_ylabel() == "height and colour: mean loss (nats)"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_points_without_a_finite_value_are_left_blank_and_do_not_move_the_scale(bad):
    frame = bowl(1.0)
    frame.loc[(frame["x"] > 0.6) & (frame["y"] > 0.6), "loss"] = bad
    figure = side_by_side({"": frame}, "title", X, Y)
    filled = panels(figure)[0].collections[0]
    assert np.isfinite([filled.norm.vmin, filled.norm.vmax]).all()
    corners = [polygon for path in filled.get_paths() for polygon in path.to_polygons()]
    assert not any((polygon > 0.8).all(axis=1).any() for polygon in corners)
    faces = [
        len(panels(side_by_side({"": data}, "title", X, Y, kind="surface"))[0].collections[0].get_facecolor())
        for data in (bowl(1), frame)
    ]
    assert faces[1] < faces[0] == 64


def test_a_plane_without_any_finite_value_is_refused():
    with pytest.raises(UserError, match="no point of the plane has a finite loss"):
        side_by_side({"": bowl(1.0).assign(loss=np.nan)}, "title", X, Y)


def test_a_flat_plane_can_be_drawn():
    filled = panels(side_by_side({"": bowl(0.0)}, "title", X, Y))[0].collections[0]
    assert filled.norm.vmin < 1.0 < filled.norm.vmax


def test_a_loss_over_decades_is_on_a_log_scale_that_is_named_and_an_accuracy_never_is():
    steep = bowl(500.0, depth=0.5)
    figure = side_by_side({"": steep}, "title", X, Y)
    assert colour_bar(figure).get_ylabel() == "mean loss (nats), log scale"
    surface = side_by_side({"": steep}, "title", X, Y, kind="surface")
    ticks = {text.get_text(): place for text, place in zip(*z_ticks(surface), strict=True)}
    assert ticks["100"] == pytest.approx(2), "height is the logarithm, the tick says the value"
    accuracy = side_by_side({"": steep}, "title", X, Y, value="accuracy")
    assert colour_bar(accuracy).get_ylabel() == "accuracy (%)"
    assert colour_bar(accuracy).get_ylim() == pytest.approx((50, 100))


def z_ticks(figure):
    axes = panels(figure)[0]
    return axes.get_zticklabels(), axes.get_zticks()


def test_checkpoints_are_marked_where_they_lie():
    def marks(figure):
        return [tuple(map(float, line.get_xydata()[0])) for line in panels(figure)[0].lines]

    assert marks(side_by_side({"": bowl(1.0)}, "title", X, Y)) == [(0, 0)]
    assert marks(side_by_side({"": bowl(1.0)}, "title", X, Y, marks=(0.0, 1.0))) == [(0, 0), (1, 0)]


def test_lines_of_several_models_share_axes_with_units_and_differ_in_more_than_colour():
    frames = {f"model {number}": line(number + 1.0) for number in range(6)}
    figure = slice_1d_plot(frames, "title", X)
    loss, accuracy = figure.axes
    assert (loss.get_ylabel(), accuracy.get_ylabel(), accuracy.get_xlabel()) == ("mean loss (nats)", "accuracy (%)", X)
    curves = [curve for curve in loss.lines if curve.get_label() in frames]
    for curve, frame in zip(curves, frames.values(), strict=True):
        assert np.allclose(curve.get_ydata(), frame["loss"])
    assert len({(str(curve._dash_pattern), curve.get_marker()) for curve in curves}) == len(frames)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(frames)
    assert max(accuracy.lines[0].get_ydata()) == 100


def test_a_line_leaves_a_gap_where_the_loss_is_not_finite_and_marks_both_ends():
    frame = line(1.0)
    frame.loc[7:, "loss"] = [np.inf, np.nan]
    figure = slice_1d_plot({"m": frame}, "title", X, marks=(0.0, 1.0))
    curve = figure.axes[0].lines[0].get_ydata()
    assert np.isnan(curve[7:]).all()
    assert np.isfinite(curve[:7]).all()
    upright = [part.get_xdata()[0] for part in figure.axes[0].lines[1:]]
    assert upright == [0.0, 1.0]


def test_regression_has_one_panel_and_its_own_unit():
    figure = slice_1d_plot({"m": line(1.0).assign(accuracy=np.nan)}, "title", X, unit="squared label units")
    (axes,) = figure.axes
    assert axes.get_ylabel() == "mean loss (squared label units)"


def test_a_line_over_decades_is_on_a_log_scale():
    axes = slice_1d_plot({"m": line(500.0, depth=0.5)}, "title", X).axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel().endswith("log scale")


def test_a_slice_without_what_a_figure_needs_is_refused():
    with pytest.raises(UserError, match="at least one model"):
        slice_1d_plot({}, "title", X)
    with pytest.raises(UserError, match="the slice of m needs a column y"):
        side_by_side({"m": line(1.0).rename(columns={"position": "x"})}, "title", X, Y)
