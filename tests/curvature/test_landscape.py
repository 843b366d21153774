from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch

from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.landscape import (
    Direction,
    eigenvector_directions,
    filter_normalised,
    line_between,
    slice_1d,
    slice_2d,
)
from scala_lab.curvature.loss import without_labels
from scala_lab.errors import UserError
from tests.curvature.dense import tiny_batches, tiny_classifier


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_bits(model, before):
    return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def moved_copy(model, scale=0.3, seed=1):
    other = copy.deepcopy(model)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
    return other


@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_second_derivative_along_an_eigenvector_is_its_eigenvalue(tmp_path, which):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    result = top_eigenpairs(HessianOperator(model, batches), k=2, tol=1e-8, which=which)
    for direction, value in zip(eigenvector_directions(result), result.eigenvalues, strict=True):
        assert direction.norm == pytest.approx(1)
        step = 1e-3
        losses = slice_1d(model, batches, direction, 5, (-2 * step, 2 * step))["loss"].to_numpy()
        second = losses @ np.array([-1, 16, -30, 16, -1]) / (12 * step**2)
        assert second == pytest.approx(value, rel=1e-5)


def test_eigenvectors_are_turned_uphill_whatever_their_sign(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    op = HessianOperator(model, batches)
    result = top_eigenpairs(op, k=2)
    turned = dataclasses.replace(result, touched_eigenvectors=-result.touched_eigenvectors)
    for one, other in zip(*(eigenvector_directions(pairs, op.gradient()) for pairs in (result, turned)), strict=True):
        assert all(torch.equal(one.parts[name], other.parts[name]) for name in one.parts)
        below, above = slice_1d(model, batches, one, 2, (-1e-4, 1e-4))["loss"]
        assert above > below


def test_mixed_derivative_of_a_plane_of_eigenvectors_vanishes(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    result = top_eigenpairs(HessianOperator(model, batches), k=2, tol=1e-8)
    first, second = eigenvector_directions(result)
    step = 1e-3
    frame = slice_2d(model, batches, (first, second), 3, (-step, step))
    grid = frame.pivot(index="y", columns="x", values="loss").to_numpy()
    mixed = (grid[2, 2] - grid[0, 2] - grid[2, 0] + grid[0, 0]) / (4 * step**2)
    along_x = (grid[1, 2] - 2 * grid[1, 1] + grid[1, 0]) / step**2
    along_y = (grid[2, 1] - 2 * grid[1, 1] + grid[0, 1]) / step**2
    assert mixed == pytest.approx(0, abs=1e-3)
    assert [along_x, along_y] == pytest.approx(result.eigenvalues, rel=1e-3)


def test_axes_of_a_plane_are_the_lines(tmp_path):
    model, batches = tiny_classifier(tmp_path), tiny_batches()
    across, up = filter_normalised(model, 0), filter_normalised(model, 1)
    plane = slice_2d(model, batches, (across, up), 3, (-1, 1), y_span=(-0.5, 0.5))
    assert len(plane) == 9
    for direction, name, other, span in ((across, "x", "y", (-1, 1)), (up, "y", "x", (-0.5, 0.5))):
        line = slice_1d(model, batches, direction, 3, span)
        on_axis = plane[plane[other] == 0]
        assert np.allclose(on_axis[name], line["position"])
        assert np.allclose(on_axis["loss"], line["loss"], rtol=1e-12)
        assert np.array_equal(on_axis["accuracy"], line["accuracy"])


def test_ends_of_the_line_are_the_two_checkpoints(tmp_path):
    start, batches = tiny_classifier(tmp_path), tiny_batches()
    end = moved_copy(start)
    line = slice_1d(start, batches, line_between(start, end), 5, (-0.5, 1.5)).set_index("position")
    for model, position in ((start, 0.0), (end, 1.0)):
        op = HessianOperator(model, batches)
        assert line.loc[position, "loss"] == pytest.approx(op.loss(), rel=1e-10)
        with torch.no_grad():
            right = [model.eval()(**without_labels(batch)).logits.argmax(-1) == batch["labels"] for batch in batches]
        assert line.loc[position, "accuracy"] == float(torch.cat(right).double().mean())
    assert line.loc[0.0, "loss"] != pytest.approx(line.loc[1.0, "loss"])


def test_uneven_batches_weigh_by_samples_and_regression_has_no_accuracy(tmp_path):
    model = tiny_classifier(tmp_path, labels=1)
    direction = filter_normalised(model)
    whole, parts = (slice_1d(model, tiny_batches(sizes, 1), direction, 3) for sizes in ((8,), (5, 2, 1)))
    assert np.allclose(whole["loss"], parts["loss"], rtol=1e-12)
    assert whole["accuracy"].isna().all()


def test_weights_mode_and_gradients_are_the_same_bits_afterwards_also_when_stopped(tmp_path):
    model, batches = tiny_classifier(tmp_path).float().train(), tiny_batches()
    before, pointers = weights_of(model), [value.data_ptr() for value in model.parameters()]
    op = HessianOperator(model, batches)
    vector = torch.ones(op.space.size)
    product = op @ vector
    seen = []

    def stop_at_third():
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        slice_1d(model, batches, filter_normalised(model), 9, on_point=stop_at_third)
    broken = [*batches, {"input_ids": torch.tensor([[10**6]]), "labels": torch.tensor([0])}]
    with pytest.raises(IndexError):
        slice_2d(model, broken, (filter_normalised(model), filter_normalised(model, 1)), 3)
    assert same_bits(model, before)
    assert [value.data_ptr() for value in model.parameters()] == pointers
    assert model.training
    assert torch.equal(op @ vector, product)  # graphs retained from before still hold


def test_progress_is_told_of_every_point(tmp_path):
    model, batches, seen = tiny_classifier(tmp_path), tiny_batches((2,)), []
    slice_2d(
        model, batches, (filter_normalised(model), filter_normalised(model, 1)), 3, on_point=lambda: seen.append(1)
    )
    assert len(seen) == 9


def test_filter_normalised_rows_are_as_long_as_the_weights_rows(tmp_path):
    model = tiny_classifier(tmp_path)
    direction = filter_normalised(model, seed=3)
    named = dict(model.named_parameters())
    matrices = {name for name, value in named.items() if value.ndim > 1}
    assert set(direction.parts) == matrices  # biases and norms stay
    for name, part in direction.parts.items():
        assert torch.allclose(part.norm(dim=1), named[name].norm(dim=1), rtol=1e-12)
    squares = [float(named[name].detach().square().sum()) for name in matrices]
    assert direction.norm == pytest.approx(math.sqrt(sum(squares)))
    again, other = filter_normalised(model, seed=3), filter_normalised(model, seed=4)
    assert all(torch.equal(again.parts[name], part) for name, part in direction.parts.items())
    assert any(not torch.equal(other.parts[name], part) for name, part in direction.parts.items())


def test_frozen_weights_do_not_move_at_random(tmp_path):
    model = tiny_classifier(tmp_path)
    model.bert.requires_grad_(False)
    assert set(filter_normalised(model).parts) == {"classifier.weight"}


def test_models_that_do_not_match_are_refused(tmp_path):
    two = tiny_classifier(tmp_path / "two", labels=2)
    three = tiny_classifier(tmp_path / "three", labels=3)
    other = tiny_classifier(tmp_path / "other", "distilbert", labels=3)
    with pytest.raises(UserError, match=r"classifier.weight has shapes \(2, 4\) and \(3, 4\)"):
        line_between(two, three)
    with pytest.raises(UserError, match="only one of them has"):
        line_between(three, other)
    with pytest.raises(UserError, match="not one of this model"):
        slice_1d(two, tiny_batches(labels=2), filter_normalised(three))
    with pytest.raises(UserError, match="not one of this model"):
        slice_1d(two, tiny_batches(labels=2), Direction("made up", {"nothing": torch.zeros(1)}))


def test_bad_slices_are_refused(tmp_path):
    model = tiny_classifier(tmp_path)
    direction = filter_normalised(model)
    with pytest.raises(UserError, match="at least 2 steps"):
        slice_1d(model, tiny_batches(), direction, steps=1)
    with pytest.raises(UserError, match="lower to a higher"):
        slice_1d(model, tiny_batches(), direction, span=(1.0, -1.0))
    with pytest.raises(UserError, match="at least one sample"):
        slice_1d(model, [], direction)
