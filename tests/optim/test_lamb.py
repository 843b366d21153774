"""Lamb against the formula, by hand and over many steps."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from scala_lab.optim import Lamb

SHAPES = [(16, 8), (8,), (5, 3, 2), (1,)]


def weights(dtype=torch.float64, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def gradients(step: int, dtype, shapes=SHAPES):
    """Gradients that differ in size by tensor and step, the same in every dtype."""
    generator = torch.Generator().manual_seed(1 + step)
    return [
        (torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (number - 2)).to(dtype)
        for number, shape in enumerate(shapes)
    ]


def train(params, optimizer, steps):
    for step in steps:
        for param, gradient in zip(params, gradients(step, params[0].dtype), strict=True):
            param.grad = gradient
        optimizer.step()


def plain_lamb(steps, lr, beta1, beta2, eps, decay, lowest, highest):
    """The formula, tensor by tensor in float64, with nothing shared with the optimizer."""
    ws = weights()
    ms, vs = [torch.zeros_like(w) for w in ws], [torch.zeros_like(w) for w in ws]
    for t in range(1, steps + 1):
        for i, g in enumerate(gradients(t - 1, torch.float64)):
            ms[i] = beta1 * ms[i] + (1 - beta1) * g
            vs[i] = beta2 * vs[i] + (1 - beta2) * g * g
            m_hat, v_hat = ms[i] / (1 - beta1**t), vs[i] / (1 - beta2**t)
            u = m_hat / (torch.sqrt(v_hat) + eps) + decay * ws[i]
            w_norm, u_norm = ws[i].norm().item(), u.norm().item()
            ratio = max(lowest, min(w_norm, highest)) / u_norm if w_norm > 0 and u_norm > 0 else 1.0
            ws[i] = ws[i] - lr * ratio * u
    return ws


# float32 rounds at 6e-8 in each of 50 steps; float64 at 1e-16
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize(("lowest", "highest"), [(0.0, math.inf), (0.0, 2.0), (3.0, 5.0)])
def test_fifty_steps_follow_the_formula(dtype, tolerance, lowest, highest):
    params = [w.requires_grad_() for w in weights(dtype)]
    optimizer = Lamb(
        params, lr=0.02, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1, max_weight_norm=highest, min_weight_norm=lowest
    )
    train(params, optimizer, range(50))
    expected = plain_lamb(50, 0.02, 0.8, 0.99, 1e-6, 0.1, lowest, highest)
    for param, reference in zip(params, expected, strict=True):
        assert (param.detach().double() - reference).norm() <= tolerance * reference.norm()


def one_step(values, gradient, **settings):
    param = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    param.grad = torch.tensor(gradient, dtype=torch.float64)
    optimizer = Lamb([param], lr=0.1, eps=0.0, **settings)
    optimizer.step()
    return param.tolist(), optimizer.clip_counts()


def test_weight_norm_above_the_limit_counts_as_the_limit():
    # first step, eps 0: m_hat / sqrt(v_hat) = sign(g) = (1, -1); decay 0.01 adds (0.3, 0.4): u = (1.3, -0.6),
    # ||u|| = sqrt(1.69 + 0.36) = sqrt(2.05); ||w|| = 50 becomes U = 10: w - 0.1 * 10 / sqrt(2.05) * u
    moved, counts = one_step([30.0, 40.0], [7.0, -0.5])
    assert moved == pytest.approx([30 - 1.3 / math.sqrt(2.05), 40 + 0.6 / math.sqrt(2.05)], rel=1e-12)
    assert counts == {"clipped": 1, "adapted": 1}


def test_weight_norm_within_the_limits_is_taken_as_it_is():
    # ||w|| = 5, u = (1, 1), ||u|| = sqrt(2): the step is 0.1 * 5 / sqrt(2) on both
    moved, counts = one_step([3.0, 4.0], [2.0, 2.0], weight_decay=0.0)
    assert moved == pytest.approx([3 - 0.5 / math.sqrt(2), 4 - 0.5 / math.sqrt(2)], rel=1e-12)
    assert counts == {"clipped": 0, "adapted": 1}


def test_weight_norm_below_the_limit_counts_as_the_limit():
    # ||w|| = 0.5 becomes L = 2
    moved, counts = one_step([0.3, 0.4], [2.0, 2.0], weight_decay=0.0, min_weight_norm=2.0)
    assert moved == pytest.approx([0.3 - 0.2 / math.sqrt(2), 0.4 - 0.2 / math.sqrt(2)], rel=1e-12)
    assert counts == {"clipped": 1, "adapted": 1}


def test_ratio_is_one_where_a_norm_is_zero():
    # weights 0: w = -lr * sign(g); gradient 0 without decay: u = 0, nothing moves and nothing is nan
    moved, counts = one_step([0.0, 0.0], [3.0, -4.0], min_weight_norm=2.0)
    assert moved == pytest.approx([-0.1, 0.1], rel=1e-12)
    assert counts == {"clipped": 0, "adapted": 0}
    param = torch.tensor([1.0, 2.0], requires_grad=True)
    param.grad = torch.zeros(2)
    Lamb([param], weight_decay=0.0).step()
    assert param.tolist() == [1.0, 2.0]


def test_joint_group_has_one_ratio_over_the_concatenation():
    # w = (3) and (4): joint norm 5; u = (1) and (-1): joint norm sqrt(2)
    params = [torch.tensor([value], dtype=torch.float64, requires_grad=True) for value in (3.0, 4.0)]
    for param, gradient in zip(params, (2.0, -9.0), strict=True):
        param.grad = torch.tensor([gradient], dtype=torch.float64)
    optimizer = Lamb([{"params": params, "joint": True}], lr=0.1, eps=0.0, weight_decay=0.0)
    optimizer.step()
    step = 0.1 * 5 / math.sqrt(2)
    assert [param.item() for param in params] == pytest.approx([3 - step, 4 + step], rel=1e-12)
    assert optimizer.clip_counts() == {"clipped": 0, "adapted": 1}


def test_group_without_adaptation_is_adam():
    params, references = ([w.requires_grad_() for w in weights()] for _ in range(2))
    lamb = Lamb([{"params": params, "adapt": False}], lr=0.01, eps=1e-6, weight_decay=0.0)
    train(params, lamb, range(20))
    train(references, torch.optim.Adam(references, lr=0.01, eps=1e-6), range(20))
    for param, reference in zip(params, references, strict=True):
        torch.testing.assert_close(param, reference, rtol=1e-12, atol=1e-14)
    assert lamb.clip_counts() == {"clipped": 0, "adapted": 0}


def test_tensors_marked_undecayed_take_no_decay():
    marked, split = ([w.requires_grad_() for w in weights()] for _ in range(2))
    together = Lamb([{"params": marked, "decayed": [True, False, True, False]}], weight_decay=0.3)
    apart = Lamb(
        [{"params": split[0::2]}, {"params": split[1::2], "weight_decay": 0.0}],
        weight_decay=0.3,
    )
    train(marked, together, range(5))
    train(split, apart, range(5))
    assert all(torch.equal(one, other) for one, other in zip(marked, split, strict=True))


def test_bias_correction_counts_the_steps_of_a_tensor_not_of_its_group():
    late, other, fresh = (torch.tensor([3.0, 4.0], requires_grad=True) for _ in range(3))
    optimizer, alone = Lamb([late, other]), Lamb([fresh])
    for step in range(6):
        other.grad = torch.ones(2)
        if step >= 3:
            late.grad, fresh.grad = torch.ones(2) * step, torch.ones(2) * step
            alone.step()
        optimizer.step()
    assert torch.equal(late, fresh)


def test_memory_layout_does_not_change_the_result():
    start, gradient = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = start.clone().requires_grad_()
    transposed = start.t().contiguous().t().requires_grad_()
    mixed = start.clone().requires_grad_()
    plain.grad, transposed.grad, mixed.grad = gradient, gradient.t().contiguous().t(), gradient.t().contiguous().t()
    for param in (plain, transposed, mixed):
        Lamb([param]).step()
    torch.testing.assert_close(transposed, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mixed, plain, rtol=1e-12, atol=1e-12)
    assert torch.equal(mixed.grad, gradient), "a step leaves the gradient alone"


@pytest.mark.parametrize("groups", ["tensor", "joint"])
def test_resumed_run_is_bit_equal(groups):
    def build(params):
        return Lamb([{"params": params, "joint": groups == "joint"}], lr=0.02, max_weight_norm=3.0)

    whole = [w.requires_grad_() for w in weights(torch.float32)]
    whole_optimizer = build(whole)
    train(whole, whole_optimizer, range(20))

    first = [w.requires_grad_() for w in weights(torch.float32)]
    first_optimizer = build(first)
    train(first, first_optimizer, range(9))
    file = io.BytesIO()
    torch.save(first_optimizer.state_dict(), file)
    file.seek(0)
    second = [param.detach().clone().requires_grad_() for param in first]
    second_optimizer = build(second)
    second_optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(second, second_optimizer, range(9, 20))

    assert all(torch.equal(one, other) for one, other in zip(whole, second, strict=True))
    assert second_optimizer.clip_counts() == whole_optimizer.clip_counts()
    assert whole_optimizer.clip_counts()["clipped"] > 0


def test_copied_optimizer_keeps_its_counts():
    params = [w.requires_grad_() for w in weights(torch.float32)]
    optimizer = Lamb(params, max_weight_norm=3.0)
    train(params, optimizer, range(3))
    assert copy.deepcopy(optimizer).clip_counts() == optimizer.clip_counts()
    assert optimizer.clip_counts()["adapted"] == 3 * len(params)


def test_step_never_asks_the_device_for_a_number():
    class Seen(TorchDispatchMode):
        names: set[str]

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.names.add(function.name())
            return function(*args, **(kwargs or {}))

    params = [w.requires_grad_() for w in weights(torch.float32)]
    optimizer = Lamb([{"params": params[:2]}, {"params": params[2:], "joint": True}])
    train(params, optimizer, range(1))
    seen = Seen()
    seen.names = set()
    with seen:
        optimizer.step()
        assert "aten::_local_scalar_dense" not in seen.names
        optimizer.clip_counts()
    assert "aten::_fused_adamw_" in seen.names


@pytest.mark.parametrize(
    "settings",
    [{"lr": -1.0}, {"betas": (0.9, 1.0)}, {"eps": -1e-8}, {"min_weight_norm": 11.0}, {"lr": math.nan}],
)
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ValueError):
        Lamb([torch.ones(2, requires_grad=True)], **settings)


def test_group_of_two_dtypes_is_refused():
    with pytest.raises(ValueError, match="share a device and a dtype"):
        Lamb([torch.ones(2, requires_grad=True), torch.ones(2, dtype=torch.float64, requires_grad=True)])
