from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from scala_lab.batches import BatchPlan, cheapest_cuts, cut, deal

LENGTHS = np.random.default_rng(0).integers(4, 60, size=1000)


def plan(**changes):
    return BatchPlan(**{"lengths": LENGTHS, "batch_size": 128, "micro_batch": 16, "workers": 3, "seed": 5, **changes})


def test_every_epoch_runs_every_row_once():
    batches = plan()
    assert batches.steps_per_epoch == 8
    for epoch in range(2):
        rows = []
        for step in range(epoch * 8, epoch * 8 + 8):
            for rank in range(3):
                rows += [row for part in batches.deal(batches.global_batch(step), rank) for row in part]
        assert sorted(rows) == list(range(1000))
    assert len(batches.global_batch(7)) == 1000 - 7 * 128


def test_order_is_a_function_of_seed_and_epoch():
    fresh, used = plan(), plan()
    for step in range(20):
        used.global_batch(step)
    assert np.array_equal(fresh.global_batch(13), used.global_batch(13))
    assert not np.array_equal(np.sort(fresh.global_batch(0)), np.sort(fresh.global_batch(8)))
    assert not np.array_equal(fresh.global_batch(0), plan(seed=6).global_batch(0))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_rows_of_a_step_do_not_depend_on_how_they_are_dealt(workers):
    other = plan(workers=workers, micro_batch=3)
    assert np.array_equal(plan().global_batch(3), other.global_batch(3))


def test_workers_carry_equal_work():
    """Padded tokens per worker differ by less than the longest row."""
    batches = plan(workers=2, batch_size=256, micro_batch=16)
    for step in range(3):
        batch = batches.global_batch(step)
        work = [sum(len(part) * LENGTHS[part].max() for part in batches.deal(batch, rank)) for rank in range(2)]
        assert abs(work[0] - work[1]) <= LENGTHS.max()


@pytest.mark.parametrize(("workers", "ratio"), [(2, 1.01), (4, 1.05)])
def test_several_workers_end_nearly_as_early_as_an_even_split_would_let_them(workers, ratio):
    """Padding and calls included: what one worker would spend, over the workers."""
    alone, together = (plan(workers=number, batch_size=1000, micro_batch=64, part_cost=80) for number in (1, workers))
    batch = alone.global_batch(0)

    def work(parts):
        return padded(parts) + 80 * len(parts)

    works = [work(together.deal(batch, rank)) for rank in range(workers)]
    assert works[0] == max(works)
    assert works[0] <= ratio * work(alone.deal(batch)) / workers


def test_few_rows_are_dealt_one_by_one():
    """A micro-batch of all rows would leave three of four workers idle."""
    batches = plan(workers=4, batch_size=8, micro_batch=64, part_cost=10_000)
    assert [len(row) for rank in range(4) for row in batches.deal(batches.global_batch(0), rank)] == [2] * 4


def test_sorting_leaves_little_padding():
    batches = plan(workers=1, batch_size=512, micro_batch=16)
    batch = batches.global_batch(0)
    padded = sum(len(part) * LENGTHS[part].max() for part in batches.deal(batch))
    assert padded < 1.05 * LENGTHS[batch].sum()
    unsorted = sum(len(part) * LENGTHS[part].max() for part in cut(np.sort(batch), 16))
    assert unsorted > 1.4 * LENGTHS[batch].sum()


def test_a_batch_smaller_than_the_workers_leaves_some_without_rows():
    batches = BatchPlan(np.array([4, 5, 6]), batch_size=2, micro_batch=1, workers=2)
    assert [len(batches.deal(batches.global_batch(1), rank)) for rank in range(2)] == [1, 0]


def test_shares_are_even_and_complete():
    costs = [9.0, 1.0, 7.0, 3.0, 2.0, 8.0]
    dealt = deal(range(6), costs, 3)
    assert sorted(item for share in dealt for item in share) == list(range(6))
    assert sorted(sum(costs[item] for item in share) for share in dealt) == [10.0, 10.0, 10.0]


@pytest.mark.parametrize(("rows", "max_rows", "sizes"), [(10, 4, [4, 3, 3]), (8, 4, [4, 4]), (3, 4, [3]), (0, 4, [])])
def test_cut(rows, max_rows, sizes):
    parts = cut(np.arange(rows), max_rows)
    assert [len(part) for part in parts] == sizes
    assert [row for part in parts for row in part] == list(range(rows))


def padded(parts):
    return sum(len(part) * LENGTHS[part].max() for part in parts)


def test_a_small_batch_is_cut_where_padding_costs_more_than_one_more_micro_batch():
    batches = plan(workers=1, batch_size=32, micro_batch=64, part_cost=50)
    for step in range(5):
        batch = batches.global_batch(step)
        parts = batches.deal(batch)
        assert padded(parts) + 50 * len(parts) < padded([batch]) + 50
        assert padded(parts) < 1.3 * LENGTHS[batch].sum() < padded([batch])
    whole = plan(workers=1, batch_size=32, micro_batch=64, part_cost=10_000)
    assert [len(part) for part in whole.deal(whole.global_batch(0))] == [32]


def cost(lengths, cuts, part_cost):
    return sum(len(part) * part[0] + part_cost for part in np.split(lengths, cuts))


@pytest.mark.parametrize("part_cost", [0, 7, 40, 10_000])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_cuts_are_cheaper(part_cost, seed):
    lengths = -np.sort(-np.random.default_rng(seed).integers(1, 60, 9))
    candidates = [cuts for count in range(9) for cuts in combinations(range(1, 9), count)]
    best = min(cost(lengths, cuts, part_cost) for cuts in candidates)
    assert cost(lengths, cheapest_cuts(lengths, part_cost), part_cost) == best
