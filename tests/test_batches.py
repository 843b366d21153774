from __future__ import annotations

import numpy as np
import pytest

from scala_lab.batches import BatchPlan, cut

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


@pytest.mark.parametrize(("rows", "most", "sizes"), [(10, 4, [4, 3, 3]), (8, 4, [4, 4]), (3, 4, [3]), (0, 4, [])])
def test_cut(rows, most, sizes):
    parts = cut(np.arange(rows), most)
    assert [len(part) for part in parts] == sizes
    assert [row for part in parts for row in part] == list(range(rows))
