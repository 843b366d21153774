from __future__ import annotations

import pytest

from studies.method_scalability import c14
from studies.scalability import c1, c2
from studies.time_breakdown import c7
from tests.studies.scaling_cases import large, methods, phases, small


def test_too_few_workers_show_numbers_but_no_verdict():
    found = c2(large(workers=(1, 2, 4)))
    assert found.verdict == "inconclusive"
    assert found.parts[0].estimate.value == pytest.approx(1.8, rel=0.05)


def test_small_batch_that_would_stop_without_communication_too_contradicts():
    verdicts = [part.verdict for part in c1(small(without_until=4)).parts]
    assert verdicts == ["reproduced", "reproduced", "contradicted"]


def test_a_delay_that_saves_most_on_many_workers_contradicts():
    assert c14(methods(saved=1.1, saved_at_most=1.8)).parts[-1].verdict == "contradicted"


@pytest.mark.parametrize(
    ("part", "change"), [(0, {"inner": 3.0}), (1, {"backward": 3.0}), (2, {"optimizer": 2.0}), (3, {"backward": 0.4})]
)
def test_each_part_of_the_cost_alone_can_contradict(part, change):
    assert c7(phases(**change)).parts[part].verdict == "contradicted"
