from __future__ import annotations

import time

import pytest
import torch

from scala_lab.timing.undisturbed import LOST, TRIES, clocked, undisturbed
from scala_lab.training.distributed import World

ALONE = World(0, 1, torch.device("cpu"))


def test_time_asleep_is_lost_and_time_computing_is_not():
    seconds, idle = clocked(lambda: time.sleep(0.05), ALONE)
    assert seconds >= 0.05
    assert idle == pytest.approx(seconds, rel=0.2)

    def compute():
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass

    seconds, idle = clocked(compute, ALONE)
    assert seconds - idle >= 0.05 - 1e-3  # two clocks


def test_what_was_disturbed_is_done_again_until_it_was_not():
    attempts = iter([("first", 0.5), ("second", LOST / 2), ("third", 0.0)])
    assert undisturbed(lambda: next(attempts), ALONE) == "second"
    assert next(attempts)[0] == "third"


def test_of_attempts_that_were_all_disturbed_the_least_counts():
    lost = [0.5, 0.2, 0.4, 0.3]
    attempts = iter(enumerate(lost))
    assert len(lost) == TRIES
    assert undisturbed(lambda: next(attempts), ALONE) == 1
