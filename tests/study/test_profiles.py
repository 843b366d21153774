"""Profiles: the paper's grids as printed, rules on rates, and what a profile's runs amount to."""

from __future__ import annotations

import math

import pytest

from scala_lab.data.tasks import TASKS
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from scala_lab.study.profiles import EMBEDDED, PAPER, PROFILES, find_profile
from studies._paper_tables import EPOCHS, GLUE_ROWS, STEPS_1K, STEPS_32

ALL = pytest.mark.parametrize("profile", PROFILES.values(), ids=list(PROFILES))


def test_the_paper_profile_has_the_printed_settings():
    assert PAPER.models == ("bert-base-uncased", "roberta-large")
    assert PAPER.tasks == ("mnli", "qnli", "qqp", "sst2")
    assert (PAPER.small_batch, PAPER.large_batch) == (32, 1024)
    assert PAPER.batch_sizes == (1024, 2048, 4096, 8192)
    assert PAPER.heat_rates == (1e-4, 3e-4, 5e-4, 7e-4, 9e-4, 1e-3, 3e-3)
    assert PAPER.workers == (1, 2, 4, 8, 16, 32)
    assert PAPER.longer == 2
    small = (1e-5, 3e-5, 5e-5, 7e-5, 9e-5, 1e-4, 3e-4)
    large = (5.6e-5, 8e-5, 1e-4, 1.7e-4, 2.4e-4, 2.8e-4, 4e-4, 5.6e-4, 1e-3)
    for method in ("plain", "lamb", "scala"):
        assert PAPER.rates(method, 32) == PAPER.side_rates(method, 32) == small
        assert PAPER.rates(method, 1024) == PAPER.rates(method, 8192) == PAPER.side_rates(method, 1024) == large


def test_a_run_of_the_paper_profile_has_the_printed_hyperparameters():
    spec = PAPER.spec("mnli", "scala", 1024, 1e-3).resolved()
    assert (spec.optim.epochs, spec.optim.warmup, spec.optim.lr) == (6, 0.1, 1e-3)
    assert (spec.recipe.rho, spec.recipe.omega, spec.recipe.lambda_) == (1e-4, 1e-5, 1.0)
    assert (spec.recipe.delay, spec.recipe.pga_steps, spec.recipe.target) == (5.0, 1, "LP")
    assert (spec.optim.optimizer, spec.optim.max_weight_norm, spec.optim.min_weight_norm) == ("lamb", 10.0, 0.0)
    assert (spec.data.train_samples, spec.data.eval_samples) == (None, None)
    assert spec.machine.workers == 32


@pytest.mark.parametrize(("rows", "small", "large"), list(zip(GLUE_ROWS, STEPS_32, STEPS_1K, strict=True)))
def test_six_epochs_are_the_papers_steps_at_b_32_and_not_at_b_1024(rows, small, large):
    assert EPOCHS * math.ceil(rows / 32) == small
    assert 3 * math.ceil(rows / 512) == large
    assert EPOCHS * math.ceil(rows / 1024) - large in (0, 3)


@ALL
def test_every_profile_names_what_exists(profile):
    assert set(profile.pair) < set(profile.tasks) <= set(TASKS)
    assert profile.large_batch in profile.batch_sizes
    assert set(profile.side_seeds) <= set(profile.seeds)
    assert 1 in profile.ascent_steps
    assert max(profile.delays) < profile.settings["epochs"]
    for method in RECIPES:
        spec = profile.spec(profile.tasks[0], method, profile.large_batch, profile.rates(method, 32)[0], seed=1)
        assert spec.run_id != profile.spec(profile.tasks[0], method, profile.large_batch, 1.0, seed=1).run_id


@ALL
def test_every_method_has_equally_many_rates(profile):
    for batch_size in (profile.small_batch, profile.large_batch):
        assert len({len(profile.rates(method, batch_size)) for method in RECIPES}) == 1
    for method in RECIPES:
        grid, side = (rates(method, profile.large_batch) for rates in (profile.rates, profile.side_rates))
        assert len(side) == min(profile.side_points, len(grid))
        assert set(side) <= set(grid)
        assert grid == tuple(sorted(grid))
        if profile.side_points == 1:
            assert side == (grid[len(grid) // 2],)


def test_rates_move_by_the_square_root_where_the_profile_says_so():
    grid, moved = (EMBEDDED.rates("lamb", size) for size in (EMBEDDED.large_batch, 4 * EMBEDDED.large_batch))
    assert moved == pytest.approx([2 * rate for rate in grid], rel=1e-2)
    assert EMBEDDED.rates("scala", 512, optimizer="adamw") == EMBEDDED.rates("plain", 512)


def test_the_rule_multiplies_by_the_root_of_the_batch_ratio():
    ruled = PAPER.rule_rate(9e-5, "plain", 1024)
    assert ruled == pytest.approx(9e-5 * math.sqrt(32), rel=1e-2)
    assert PAPER.rule_rate(1e-5, "plain", 1024) == 5.6e-5, "a rate of the grid within 2% stands for it"


@pytest.mark.parametrize("method", ["plain", "lamb"])
def test_the_rule_needs_no_further_runs_on_the_embedded_profile(method):
    ruled = {EMBEDDED.rule_rate(rate, method, EMBEDDED.large_batch) for rate in EMBEDDED.rates(method, 32)}
    assert ruled <= set(EMBEDDED.rates(method, EMBEDDED.large_batch))


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
