"""The learning rate's path."""

from __future__ import annotations

import pytest

from scala_lab.optim.build import rate_factor, scaled_rate


@pytest.mark.parametrize("total", [1, 2, 3, 10, 48, 1000])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
def test_rate_rises_to_one_once_and_is_never_zero(total, warmup):
    factors = [rate_factor(step, total, warmup) for step in range(total)]
    peak = factors.index(1.0)
    assert peak == min(round(warmup * total), total - 1)
    assert min(factors) > 0
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors.count(1.0) == 1


def test_ten_steps_by_hand():
    # W = 2: rises by thirds to step 2, then falls by eighths
    expected = [1 / 3, 2 / 3, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]
    assert [rate_factor(step, 10, 0.2) for step in range(10)] == pytest.approx(expected)


def test_sum_is_that_of_two_triangles():
    # 1/(W+1) + ... + W/(W+1) = W/2, and 1/n + ... + n/n = (n+1)/2 for the n = total - W steps from the peak on
    total, rising = 200, 20
    assert sum(rate_factor(step, total, 0.1) for step in range(total)) == pytest.approx(
        rising / 2 + (total - rising + 1) / 2
    )


def test_scaling_rules_at_thirty_two_times_the_reference_batch():
    assert scaled_rate(1e-4, 1024, "none") == 1e-4
    assert scaled_rate(1e-4, 512, "sqrt") == pytest.approx(4e-4)
    assert scaled_rate(1e-4, 1024, "linear") == pytest.approx(3.2e-3)
    assert {scaled_rate(1e-4, 32, rule) for rule in ("none", "sqrt", "linear")} == {1e-4}
