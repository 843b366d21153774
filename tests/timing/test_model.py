from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from scala_lab.batches import BatchPlan
from scala_lab.timing.model import (
    FREE,
    Compute,
    Link,
    Load,
    StepModel,
    Workload,
    best_workers,
    epoch_seconds,
    even_load,
    fit_compute,
    fit_link,
    planned_load,
)

PLAIN = Compute(per_step=2e-3, per_micro_batch=1e-3, per_row=1e-4, per_token=2e-5, per_square=1e-7)
NOISE = Compute(4e-3, 3e-3, 2e-4, 6e-5, 2e-7)
MODEL = StepModel(
    PLAIN,
    NOISE,
    update={"adamw": 1e-3, "lamb": 2e-3},
    gradient_bytes=4e6,
    within=Link(1e-5, 1e9),
    across=Link(1e-4, 1e8),
    per_host=4,
    crowding=1.1,
    update_crowding=1.3,
)
WORK = Workload(rows=100_000, length=20.0, micro_batch=64, optimizer="adamw")
LINK = Link(latency=1e-4, bandwidth=1e8)
NUMBERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def test_fit_finds_the_constants_that_made_the_times():
    shapes = ((2, 12, 2), (8, 12, 8), (64, 12, 64), (64, 12, 16), (16, 40, 16), (48, 40, 48), (1, 90, 1))
    loads = [even_load(rows, 1, most, length) for rows, length, most in shapes]
    found = fit_compute(loads, [PLAIN.seconds(load) for load in loads])
    for name in ("per_step", "per_micro_batch", "per_row", "per_token", "per_square"):
        assert getattr(found, name) == pytest.approx(getattr(PLAIN, name))


def test_a_plan_s_load_is_that_of_its_padded_micro_batches():
    plan = BatchPlan(np.array([9, 7, 7, 5, 3, 2]), batch_size=6, micro_batch=2, workers=2, part_cost=100)
    # (9 7), (7 5) and (3 2) are dealt whole, and the last two are more than the first
    assert planned_load(plan, 0) == Load(2, 4, 7 + 7 + 3 + 3, 49 + 49 + 9 + 9)


def test_groups_of_sam_are_cut_and_dealt_one_by_one():
    lengths = np.array([9, 7, 7, 5, 3, 2])
    plan = BatchPlan(lengths, batch_size=6, micro_batch=6, workers=2, part_cost=100)
    groups = plan.groups(0, 2)  # of two rows in the order of the shuffle: a micro-batch each, two on one worker
    padded = [2 * int(lengths[group].max()) for group in groups]
    load = planned_load(plan, 0, 2)
    assert (load.micro_batches, load.rows) == (2, 4)
    assert load.tokens == sum(padded) - max(padded)
    # one group of all rows is dealt as any other step's
    assert planned_load(plan, 0, 6) == planned_load(plan, 0)
    assert planned_load(replace(plan, workers=1), 0, 2) == Load(3, 6, sum(padded), sum(size**2 / 2 for size in padded))


def test_a_step_is_the_sum_of_its_parts():
    load = Load(2, 100, 3000, 90_000)
    own = PLAIN.seconds(load)
    assert MODEL.step_seconds(load, 1, "adamw") == pytest.approx(own + 1e-3)
    exchange = MODEL.exchange(8)
    assert MODEL.step_seconds(load, 8, "lamb") == pytest.approx(1.1 * own + 1.3 * 2e-3 + exchange)
    assert MODEL.without_communication(load, 8, "lamb") == pytest.approx(1.1 * own + 1.3 * 2e-3)
    # a delay of five sixths: one step in six has noise
    mixed = MODEL.step_seconds(load, 1, "adamw", noise=1 / 6)
    assert mixed == pytest.approx(5 / 6 * own + NOISE.seconds(load) / 6 + 1e-3)


def test_without_cost_of_communication_or_of_steps_scaling_is_perfect():
    free = replace(MODEL, plain=Compute(0, 0, 1e-4, 2e-5), update={"adamw": 0.0}, crowding=1.0, update_crowding=1.0)
    free = replace(free, within=FREE, across=FREE)
    alone = epoch_seconds(free, WORK, 1024, 1)
    for workers in NUMBERS:
        assert epoch_seconds(free, WORK, 1024, workers) == pytest.approx(alone / workers)


def test_with_ever_larger_batches_what_is_exchanged_is_nothing_beside_the_samples():
    even = replace(MODEL, crowding=1.0, update_crowding=1.0)
    gains = [epoch_seconds(even, WORK, size, 1) / epoch_seconds(even, WORK, size, 32) for size in (32, 1024, 1 << 24)]
    assert gains == sorted(gains)
    assert gains[0] < 2
    assert gains[-1] == pytest.approx(32, rel=0.01)


def test_best_number_of_workers_grows_with_the_batch():
    few, many = (best_workers(MODEL, WORK, size, NUMBERS) for size in (32, 1024))
    assert few < many
    assert math.isnan(epoch_seconds(MODEL, WORK, 32, 64))


def test_an_exchange_sends_what_a_ring_does():
    # two members of a ring: two rounds, each half of the message
    assert LINK.all_reduce(1e6, 2) == pytest.approx(2e-4 + 1e6 / 1e8)
    assert LINK.all_reduce(1e6, 4) == pytest.approx(6e-4 + 1.5e6 / 1e8)
    assert LINK.all_reduce(1e6, 1) == 0


def test_limits():
    assert FREE.all_reduce(1e9, 1024) == 0
    assert Link(1e-4, math.inf).all_reduce(1e9, 1024) == pytest.approx(2 * 1023 * 1e-4)
    # without latency, the number of members hardly matters: at most twice the message
    assert Link(0.0, 1e8).all_reduce(1e8, 10**6) == pytest.approx(2.0, rel=1e-5)


def test_hosts_exchange_only_what_each_has_summed_up():
    model = replace(MODEL, gradient_bytes=1e8, within=Link(0.0, 1e9), across=Link(0.0, 1e8), per_host=16)
    assert model.exchange(16) == pytest.approx(0.1 * 30 / 16)
    assert model.exchange(32) == pytest.approx(0.1 * 30 / 16 + 1.0)
    assert model.exchange(1) == 0


@pytest.mark.parametrize("members", [2, 5])
def test_fit_finds_the_link_that_made_the_times(members):
    sizes = [1e3, 1e5, 1e6, 1e7]
    found = fit_link(sizes, [LINK.all_reduce(size, members) for size in sizes], members)
    assert found.latency == pytest.approx(LINK.latency)
    assert found.bandwidth == pytest.approx(LINK.bandwidth)
