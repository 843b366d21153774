from __future__ import annotations

import threading

import pytest
import torch

from scala_lab.curvature import HessianOperator
from scala_lab.curvature.shards import Lanes, lane_count
from tests.curvature.dense import tiny_batches, tiny_classifier
from tests.processes import PATIENCE


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_lanes_run_at_once_with_their_own_compute_threads(two_threads):
    meeting = threading.Barrier(2, timeout=PATIENCE)

    def meet(_):
        meeting.wait()  # breaks unless the other lane is here at the same time
        return torch.get_num_threads()

    assert Lanes(lane_count(5, torch.device("cpu"))).map(meet, ["a", "b"]) == [1, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_products_and_gradients_are_those_of_one_lane(tmp_path, two_threads, budget):
    model, batches = tiny_classifier(tmp_path), tiny_batches((3, 5, 2, 6))
    several = HessianOperator(model, batches, budget=budget)
    torch.set_num_threads(1)
    alone = HessianOperator(model, batches, budget=budget)
    assert (several._lanes.count, alone._lanes.count) == (2, 1)
    vector = torch.randn(alone.space.touched_size, generator=torch.Generator().manual_seed(0), dtype=alone.dtype)
    for found, expected in (
        (several.multiply(vector), alone.multiply(vector)),
        (several.gradient(), alone.gradient()),
    ):
        assert float((found - expected).norm() / expected.norm()) < 1e-10
    assert torch.equal(several.multiply(vector), several.multiply(vector))
