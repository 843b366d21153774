from __future__ import annotations

import pytest

from studies.convergence import c19, c20
from tests.studies.theory_cases import inner, outer


@pytest.mark.parametrize(
    ("part", "change"), [(0, {"power": -0.3}), (1, {"added": 2.0}), (2, {"power": -0.5, "kappa_power": 1.5})]
)
def test_each_dependence_alone_can_contradict_the_theorem(part, change):
    verdicts = [found.verdict for found in c19(outer(**change)).parts]
    assert verdicts[part] == "contradicted"
    assert all(verdict == "reproduced" for place, verdict in enumerate(verdicts) if place != part)


def test_one_slow_step_among_many_contradicts_the_lemma_but_not_outside_its_assumption():
    frame = inner()
    slow = frame.copy()
    slow.loc[slow[slow["ratio"] == 4.0].index[0], "worst_factor"] = 10.0
    assert c20(slow).verdict == "reproduced"
    slow.loc[slow[slow["ratio"] == 1.9].index[0], "worst_factor"] = 0.95
    assert c20(slow).verdict == "contradicted"
