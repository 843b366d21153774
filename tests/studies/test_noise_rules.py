from __future__ import annotations

import pytest

from studies.dropout_confound import c21
from studies.perturbation_steps import c8
from tests.studies.noise_cases import ascents, causes


@pytest.mark.parametrize(
    ("part", "change"),
    [(0, {"draws": -1.0}), (1, {"scala": 1.5}), (2, {"noise": 1.5}), (3, {"by_draws": 0.3}), (4, {"by_noise": 0.5})],
)
def test_each_part_alone_can_contradict_that_dropout_regularises(part, change):
    verdicts = [found.verdict for found in c21(causes(**change)).parts[:5]]
    assert verdicts[part] == "reversed"
    assert all(verdict == "supported" for place, verdict in enumerate(verdicts) if place != part)


def test_where_nothing_regularises_dropout_does_not_either():
    found = c21(causes(draws=0.0))
    assert found.verdict == "no effect of the claimed size"
    assert "two draws without noise minus LAMB" in found.why


def test_a_cost_that_grows_faster_than_linearly_contradicts():
    assert c8(ascents(passes=lambda steps: 10.0 + steps**3)).verdict == "reversed"


def test_two_values_of_t_say_nothing_of_linear_growth():
    found = c8(ascents(counts=(1, 2)))
    assert found.verdict == "supported"
    assert not any("further step" in part.statement for part in found.parts)


def test_cost_stands_where_models_did_not_train():
    found = c8(ascents().assign(train_loss=0.65))
    assert found.verdict == "not testable here"
    assert [found.verdict_of(part) for part in found.parts] == ["supported", "supported", "not testable here"]
