from __future__ import annotations

import pytest

from studies.convergence import c19, c20, c22, c27
from tests.studies.theory_cases import inner, outer


@pytest.mark.parametrize(
    ("part", "change"), [(0, {"power": -0.3}), (1, {"added": 2.0}), (2, {"power": -0.5, "kappa_power": 1.5})]
)
def test_each_dependence_alone_can_contradict_the_rate(part, change):
    verdicts = [found.verdict for found in c27(outer(**change)).parts]
    assert verdicts[part] == "reversed"
    assert all(verdict == "supported" for place, verdict in enumerate(verdicts) if place != part)


def test_one_slow_step_among_many_contradicts_the_lemma_but_not_outside_its_assumption():
    frame = inner()
    slow = frame.copy()
    slow.loc[slow[slow["ratio"] == 4.0].index[0], "worst_factor"] = 10.0
    assert c20(slow).verdict == "supported"
    slow.loc[slow[slow["ratio"] == 1.9].index[0], "worst_factor"] = 0.95
    assert c20(slow).verdict == "reversed"


def test_the_bound_that_fails_at_a_wide_clip_is_not_called_true():
    found = c19(outer(wide=3.0))
    assert found.verdict == "reversed"
    assert [part.verdict for part in found.parts] == ["supported"] * 4 + ["reversed"]
    assert c22(outer(wide=3.0)).verdict == "supported"
    # a value above the bound times U/L has another cause
    assert c22(outer(wide=40.0)).verdict == "reversed"


def test_replicas_are_the_units_whatever_the_number_of_settings():
    assert {part.estimate.n for part in c27(outer(replicas=5)).parts} == {5}
    assert {part.estimate.n for part in c19(outer(replicas=5)).parts} == {5}
