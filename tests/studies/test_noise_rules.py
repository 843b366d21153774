from __future__ import annotations

import pytest
from pandas import DataFrame

from scala_lab.study.variants import arm_cells
from studies.dropout_confound import FACTORS, _divergence_drawing, c21
from studies.perturbation_steps import c8
from tests.studies.noise_cases import ascents, causes
from tests.studies.synthetic import tuned
from tests.studies.test_accuracy_studies import SMALL


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


def test_every_kind_of_noise_is_trained_with_one_draw_and_with_two():
    profile = tuned(SMALL)
    rows = {}
    for noise, arms in FACTORS.items():
        for draws, variant in zip((1, 2), arms, strict=True):
            spec = arm_cells(profile, variant, 512, ("mini-sst2",))[0].specs[0]
            recipe = spec.resolved().recipe
            kind = "none" if recipe.method == "lamb" else recipe.noise
            rows[noise, draws] = (kind, recipe.target if kind == "pga" else None, recipe.masks, recipe.delay)
    delay = rows["none", 2][3]
    assert delay == tuned(SMALL).tuned_delay("mini-sst2").value
    assert rows.pop(("none", 1))[0] == "none"
    for (noise, draws), (kind, target, masks, starts) in rows.items():
        assert kind == {"none": "none", "Gaussian": "gaussian"}.get(noise, "pga")
        assert target == (noise[-3:-1] if kind == "pga" else None)
        assert (masks, starts) == ({1: "shared", 2: "independent"}[draws], delay)


def test_divergence_is_drawn_over_the_steps_with_noise():
    runs = DataFrame(
        {
            "method": ["LAMB", "a", "a", "b"],
            "divergences": [[], [[3, 1.0], [4, 2.0]], [[3, 3.0], [4, 4.0]], [[4, 1e-6]]],
        }
    )
    (drawing,) = _divergence_drawing(runs)
    lines = {line.get_label(): line.get_xydata().tolist() for line in drawing.figure.axes[0].lines}
    assert lines == {"a": [[3, 2.0], [4, 3.0]], "b": [[4, 1e-6]]}
    assert drawing.figure.axes[0].get_yscale() == "log"
    assert _divergence_drawing(runs.iloc[:1]) == []
