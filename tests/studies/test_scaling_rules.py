from __future__ import annotations

import pytest

from studies.method_scalability import c14
from studies.scalability import c1, c2
from studies.time_breakdown import c7
from tests.studies.scaling_cases import large, methods, phases, small


def test_too_few_workers_show_numbers_but_no_verdict():
    found = c2(large().query("workers <= 4"))
    assert found.verdict == "not testable here"
    assert "32 workers" in found.why
    assert found.parts[0].estimate.value == pytest.approx(1.8, rel=0.05)


def test_small_batch_that_would_stop_without_communication_too_contradicts():
    found = c1(small(silent=1.0))
    assert [part.verdict for part in found.parts] == ["supported", "supported", "reversed"]
    assert found.verdict == "reversed"


def test_a_delay_that_saves_most_on_many_workers_contradicts():
    found = c14(methods(saved=0.6))
    assert found.parts[-1].verdict == "reversed"
    assert found.verdict == "reversed"


def test_the_earlier_delay_stands_beside_the_claim():
    contextual = [part.statement for part in c14(methods()).parts if part.contextual]
    assert contextual == ["ScaLA, early t_s: gain per doubling of workers"]


@pytest.mark.parametrize(
    ("part", "change"),
    [(0, {"inner": 3.0}), (1, {"backward": 3.0}), (2, {"optimizer": 2.0}), (3, {"inner": 0.1, "backward": 0.1})],
)
def test_each_part_of_the_cost_alone_can_contradict(part, change):
    assert c7(phases(**change)).parts[part].verdict == "reversed"


def test_three_forward_passes_presuppose_a_backward_of_two():
    small_encoder = c7(phases(plain_backward=1.0))
    assert "a plain backward takes 1.0" in small_encoder.why
    verdicts = [small_encoder.verdict_of(part) for part in small_encoder.parts]
    assert verdicts == ["not testable here", *["supported"] * 4]
    busy = c7(phases(plain_backward=1.0).assign(cpu_share=0.4))
    assert {busy.verdict_of(part) for part in busy.parts} == {"not testable here"}


def test_a_step_counts_a_full_inner_backward_as_the_paper_does():
    # 1 + 1 + 1 + 4 + 0.5 and an inner backward of 2, that of a plain step, in place of the 1 for the noise alone
    whole, as_taken = c7(phases(spread=1e-6)).parts[3:]
    assert whole.estimate.value == pytest.approx(9.5 / 3.5, rel=1e-3)
    assert as_taken.estimate.value == pytest.approx(8.5 / 3.5, rel=1e-3)
    assert as_taken.contextual
