"""Ngd moves by exactly lr * nu(||x||) against the gradient."""

from __future__ import annotations

import pytest
import torch

from scala_lab.optim import Ngd


def parameters(values, gradients):
    params = [torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in values]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = torch.tensor(gradient, dtype=torch.float64)
    return params


def test_joint_group_moves_along_its_whole_gradient():
    # ||x|| = ||(3, 0, 4)|| = 5, ||g|| = ||(2, 0, -1.5)|| = 2.5: the step is 0.1 * 5 / 2.5 * g = 0.2 * g
    params = parameters([[3.0, 0.0], [4.0]], [[2.0, 0.0], [-1.5]])
    Ngd(params, lr=0.1).step()
    assert params[0].tolist() == pytest.approx([2.6, 0.0], rel=1e-12)
    assert params[1].tolist() == pytest.approx([4.3], rel=1e-12)


def test_apart_each_tensor_has_its_own_norms():
    # 3 moves by 0.1 * 3, 4 by 0.1 * 4, whatever the size of the gradient
    params = parameters([[3.0], [4.0]], [[2.0], [-1e-5]])
    Ngd([{"params": params, "joint": False}], lr=0.1).step()
    assert [param.item() for param in params] == pytest.approx([2.7, 4.4], rel=1e-12)


def test_weight_norm_is_clipped_on_both_sides():
    large, small = parameters([[30.0], [0.1]], [[1.0], [1.0]])
    Ngd([{"params": [large]}, {"params": [small]}], lr=0.1, max_weight_norm=10.0, min_weight_norm=2.0).step()
    assert [large.item(), small.item()] == pytest.approx([29.0, -0.1], rel=1e-12)


def test_zero_gradient_and_zero_weights_stay():
    still, zero = parameters([[3.0], [0.0]], [[0.0], [5.0]])
    Ngd([{"params": [still]}, {"params": [zero]}], lr=0.1).step()
    assert [still.item(), zero.item()] == [3.0, 0.0]


def test_decay_is_decoupled_and_skips_unmarked_tensors():
    # 3 shrinks to 3 * (1 - 0.1 * 0.5) beside its step, 4 only steps; x and g norms are taken before: 5 and 5
    params = parameters([[3.0], [4.0]], [[3.0], [4.0]])
    Ngd([{"params": params, "decayed": [True, False]}], lr=0.1, weight_decay=0.5).step()
    assert [param.item() for param in params] == pytest.approx([3 * 0.95 - 0.3, 4 - 0.4], rel=1e-12)
