"""Profiles: the paper's grids as printed, rules on rates, and what a profile's runs amount to."""

from __future__ import annotations

import math

import pytest

from scala_lab.data.tasks import TASKS
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from scala_lab.study.profiles import EMBEDDED, PAPER, PROFILES, find_profile
from scala_lab.study.tuning import Choices
from scala_lab.study.variants import BASELINE, SCALA_OTHER, SCALA_TUNED, arm_cells
from scala_lab.timing.paper_times import STEPS
from studies._paper_tables import read_table

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))


def test_the_paper_profile_has_the_printed_settings():
    assert PAPER.models == ("bert-base-uncased", "roberta-large")
    assert PAPER.tasks == ("mnli", "qnli", "qqp", "sst2")
    assert (PAPER.small_batch, PAPER.large_batch) == (32, 1024)
    assert PAPER.batch_sizes == (32, 1024, 2048, 4096, 8192)
    assert PAPER.workers == (1, 2, 4, 8, 16, 32)
    assert (PAPER.longer, PAPER.longer_batch) == (2, 2048)
    assert (PAPER.early_delay, PAPER.late_delay) == (3.0, 5.0)


def test_a_run_of_the_paper_profile_has_the_printed_hyperparameters():
    spec = PAPER.spec("mnli", "scala", 1024, 1e-3).resolved()
    assert (spec.optim.epochs, spec.optim.warmup, spec.optim.lr) == (6, 0.1, 1e-3)
    assert (spec.recipe.rho, spec.recipe.omega, spec.recipe.lambda_) == (1e-4, 1e-5, 1.0)
    assert (spec.recipe.delay, spec.recipe.pga_steps, spec.recipe.target) == (5.0, 1, "LP")
    assert (spec.optim.optimizer, spec.optim.max_weight_norm, spec.optim.min_weight_norm) == ("lamb", 10.0, 0.0)
    assert (spec.data.train_samples, spec.data.eval_samples) == (None, None)
    assert spec.machine.workers == 32


def test_six_epochs_are_the_papers_steps_at_b_32_and_not_at_b_1024():
    table = read_table("steps")
    assert tuple(table["B=32, paper"]) == STEPS[32]
    assert tuple(table["B=1024, paper"]) == STEPS[1024]
    for _, rows, small, of_32, large, of_1024, of_512 in table.itertuples():
        assert small == of_32 == 6 * math.ceil(rows / 32)
        assert large == of_512 == 3 * math.ceil(rows / 512)
        assert of_1024 == 6 * math.ceil(rows / 1024)
        assert of_1024 - large in (0, 3)


@ALL
def test_every_profile_names_what_exists(profile):
    assert set(profile.pair) <= set(profile.tasks) <= set(TASKS)
    assert {profile.small_batch, profile.large_batch} <= set(profile.batch_sizes)
    assert profile.tuning_seed not in profile.seeds, "trials are no results"
    assert 1 in profile.ascent_steps
    assert max(profile.delays) < profile.settings["epochs"]
    for method in RECIPES:
        spec = profile.spec(profile.tasks[0], method, profile.large_batch, 1e-3, seed=1)
        assert spec.run_id != profile.spec(profile.tasks[0], method, profile.large_batch, 1.0, seed=1).run_id


def scored(score):
    """Choices from trials whose score, in percent on the tuning rows, is a function of the spec."""
    return Choices(lambda spec: {"status": "finished", "metrics": {"tuning": {"accuracy": score(spec) / 100}}})


@ALL
def test_the_first_grid_moves_with_the_root_of_the_batch_size(profile):
    """With the best rate in its middle no grid is extended, so that every method has the same number of trials."""
    factor = math.sqrt(profile.small_batch / profile.large_batch)
    for optimizer, start in profile.start_rates.items():
        for size, centre in ((profile.large_batch, start), (profile.small_batch, factor * start)):
            choices = scored(lambda spec, centre=centre: 80 - abs(math.log(spec.optim.lr / centre)))
            tuned = profile.with_choices(choices).tuned_rate(profile.tasks[0], optimizer, size)
            assert tuned.value == pytest.approx(centre, rel=1e-2)
            assert (len(tuned.scores), tuned.interior) == (profile.grid_points, True)


def test_a_grid_grows_until_its_best_rate_is_inside():
    best = 8 * EMBEDDED.start_rates["lamb"]
    profile = EMBEDDED.with_choices(scored(lambda spec: 80 - abs(math.log(spec.optim.lr / best))))
    tuned = profile.tuned_rate("mini-mnli", "lamb", EMBEDDED.large_batch)
    assert tuned.value == pytest.approx(best)
    assert tuned.interior


@pytest.mark.parametrize(("lost", "trials"), [(0.1, 3), (3.0, 6)], ids=["no harm", "harm until it is small"])
def test_a_grid_of_radii_goes_down_until_its_noise_does_no_harm(lost, trials):
    """The less noise the better: the first grid ends at 0, where noise is none, unless its lowest radius does harm."""
    lowest = EMBEDDED.start_radii["sam_rho"] / 2

    def score(spec):
        rho = spec.recipe.sam_rho or 0.0
        return 80 - abs(math.log(spec.optim.lr / EMBEDDED.start_rates["adamw"])) - lost * (rho / lowest)

    tuned = EMBEDDED.with_choices(scored(score)).tuned_radius("sam_rho", "mini-mnli", "sam", EMBEDDED.large_batch)
    assert tuned.value == min(tuned.scores)
    assert (len(tuned.scores), tuned.interior) == (trials, True)


@pytest.mark.parametrize("better", [EMBEDDED.early_delay, EMBEDDED.late_delay])
def test_one_of_the_papers_two_t_s_is_chosen_and_none_beyond_them(better):
    profile = EMBEDDED.with_choices(scored(lambda spec: 80 + (spec.recipe.delay == better)))
    tuned = profile.tuned_delay("mini-mnli")
    assert tuned.value == better
    assert set(tuned.scores) == {EMBEDDED.early_delay, EMBEDDED.late_delay}
    for variant, delay in ((SCALA_TUNED, better), (SCALA_OTHER, sum(tuned.scores) - better)):
        assert {cell.item.recipe.delay for cell in arm_cells(profile, variant, 256, ["mini-mnli"])} == {delay}


def test_the_rule_multiplies_by_the_root_of_the_batch_ratio():
    assert PAPER.rule_rate(9e-5, 1024) == pytest.approx(9e-5 * math.sqrt(32), rel=1e-2)
    (cell, *_) = arm_cells(PAPER, BASELINE, 1024, ["mnli"], by_rule=True)
    tuned_at_small = PAPER.tuned_rate("mnli", "adamw", 32).value
    assert cell.item.optim.lr == PAPER.rule_rate(tuned_at_small, 1024)


def test_a_micro_batch_is_never_larger_than_the_batch():
    assert EMBEDDED.spec("mini-sst2", "plain", 32, 1e-3).batches.micro_batch == 32
    assert PAPER.spec("sst2", "plain", 32, 1e-5).batches.micro_batch == 8


def test_unknown_profiles_are_answered_with_the_nearest():
    with pytest.raises(UserError, match="embedded"):
        find_profile("embeded")


def test_data_and_model_from_folders(tmp_path):
    profile = EMBEDDED.with_data(tmp_path, "some/model")
    assert profile.settings["data_dir"] == tmp_path
    assert profile.models == ("some/model",)
    assert EMBEDDED.settings.get("data_dir") is None
