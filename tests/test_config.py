"""RunSpec: what identifies a run, and how flags, files and keywords say the same."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import is_dataclass
from pathlib import Path

import pytest

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from tests.processes import run

MACHINE = {"threads": 1, "device": "cpu"}


def spec(**values):
    return RunSpec.of(**{**MACHINE, **values})


def test_names_are_unique_over_all_parts_because_they_are_flags():
    parts = vars(RunSpec())
    names = [name for part in parts for name in (vars(parts[part]) if is_dataclass(parts[part]) else [part])]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"task": "sst2", "data_dir": Path("a/glue")}, {"task": "sst2", "data_dir": Path("/b/glue")}),
        ({"model": "./minilm"}, {"model": "/somewhere/else/minilm"}),
        ({"task": "a/rows.csv"}, {"task": "/b/rows.csv"}),
        ({"task": "rows.csv", "eval_file": Path("a/e.csv")}, {"task": "rows.csv", "eval_file": Path("b/e.csv")}),
    ],
)
def test_run_id_ignores_where_things_lie(one, other):
    assert spec(**one).run_id == spec(**other).run_id


@pytest.mark.parametrize(
    "change",
    [
        {"workers": 2},
        {"micro_batch": 32},
        {"threads": 2},
        {"seed": 1},
        {"data_seed": 1},
        {"task": "mini-qnli"},
        {"model": "other"},
        {"method": "lamb"},
        {"rho": 2e-4},
        {"lr": 0.1},
        {"epochs": 7},
        {"batch_size": 512},
        {"precision": "bf16"},
        {"max_length": 64},
    ],
)
def test_run_id_changes_with_whatever_changes_the_result(change):
    assert spec(**change).run_id != spec().run_id


def test_run_id_is_stable_over_processes():
    code = f"from scala_lab.config import RunSpec; print(RunSpec.of(**{MACHINE!r}).run_id)"
    assert run([sys.executable, "-c", code]).strip() == spec().run_id


def test_giving_a_default_is_giving_nothing():
    assert spec(method="scala", rho=1e-4, delay=5.0, masks="independent").run_id == spec(method="scala").run_id
    assert spec(method="lamb", optimizer="lamb", eps=1e-6).run_id == spec(method="lamb").run_id


def test_recipes_fill_in_their_options():
    literal, effective = (spec(method=name).resolved() for name in ("scala", "scala-effective"))
    assert (literal.recipe.ascent, literal.recipe.rho, literal.recipe.omega) == ("literal", 1e-4, 1e-5)
    assert (literal.recipe.masks, literal.recipe.delay, literal.recipe.lambda_) == ("independent", 5.0, 1.0)
    assert (effective.recipe.ascent, effective.recipe.masks, effective.recipe.delay) == ("normalized", "shared", 3.0)
    assert spec(method="two-draws").resolved().recipe.noise == "none"
    freelb = spec(method="freelb", task="qqp").resolved().recipe
    assert (freelb.adv_passes, freelb.adv_lr, freelb.adv_init, freelb.adv_max_norm) == (3, 0.2, 0.32, 0.7)


@pytest.mark.parametrize("method", RECIPES)
def test_every_recipe_resolves_and_comes_back_from_its_record(method):
    resolved = spec(method=method, max_weight_norm=math.inf).resolved()
    assert resolved.optim.optimizer == RECIPES[method].optimizer
    assert resolved.resolved() == resolved
    again = RunSpec.from_dict(json.loads(json.dumps(resolved.to_dict())))
    assert again == resolved
    assert again.run_id == resolved.run_id


def test_optimizer_decides_its_defaults():
    adamw, lamb, ngd = (spec(method="plain", optimizer=name).resolved().optim for name in ("adamw", "lamb", "ngd"))
    assert (adamw.eps, adamw.clip_norm, adamw.groups) == (1e-8, 1.0, "tensor")
    assert (lamb.eps, lamb.clip_norm, lamb.groups) == (1e-6, 0.0, "layer")
    assert ngd.groups == "layer"


def test_flat_and_sectioned_toml_say_the_same(tmp_path):
    flat, sectioned = tmp_path / "flat.toml", tmp_path / "sectioned.toml"
    flat.write_text('method = "scala"\nlambda = 0.5\nbatch_size = 64\nlr = 1\nseed = 3\ntext_columns = ["a", "b"]\n')
    sectioned.write_text(
        'seed = 3\n[recipe]\nmethod = "scala"\nlambda = 0.5\n[batches]\nbatch_size = 64\n[optim]\nlr = 1.0\n'
        '[data]\ntext_columns = ["a", "b"]\n'
    )
    expected = RunSpec.of(method="scala", lambda_=0.5, batch_size=64, lr=1.0, seed=3, text_columns=("a", "b"))
    assert RunSpec.from_toml(flat) == RunSpec.from_toml(sectioned) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bach_size = 3", "unknown key 'bach_size': did you mean 'batch_size'?"),
        ("[batches]\nbach_size = 3", r"unknown key 'bach_size' in \[batches\]: did you mean 'batch_size'?"),
        ("[optim]\nbatch_size = 3", r"unknown key 'batch_size' in \[optim\]"),
        ("epochs = 2.5", "epochs must be a whole number, not 2.5"),
        ("seed = true", "seed must be a whole number, not True"),
        ('lr = "fast"', "lr must be a number, not 'fast'"),
        ('ascent = "normalised"', "ascent is 'normalised': did you mean 'normalized'?"),
        ("epochs = ", "cannot be read as TOML"),
    ],
)
def test_mistake_in_a_toml_file_is_named_with_its_file(tmp_path, text, message):
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message.replace("?", r"\?")) as error:
        RunSpec.from_toml(file)
    assert str(file) in str(error.value)


def test_absent_toml_file_is_named(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        RunSpec.from_toml(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method": "scla"}, "unknown method 'scla': did you mean 'scala'?"),
        ({"method": "lamb", "rho": 1e-3}, "method 'lamb' has no option 'rho'"),
        ({"batch_size": 0}, "--batch-size must be at least 1, not 0"),
        ({"batch_size": 2, "workers": 4}, "--batch-size 2 is smaller than --workers 4"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"lr": 0.0}, "--lr must be a positive number"),
        ({"lr": math.nan}, "--lr must be a positive number"),
        ({"omega": math.nan}, "--omega must be at least 0"),
        ({"weight_decay": -0.1}, "--weight-decay must be at least 0"),
        ({"dropout": 1.0}, "--dropout must be below 1"),
        ({"lr_scaling": "sqrt"}, "--lr-scaling sqrt needs --lr"),
        ({"min_weight_norm": 20.0}, "--min-weight-norm must not be above --max-weight-norm"),
    ],
)
def test_values_that_cannot_work_are_refused(values, message):
    with pytest.raises(UserError) as error:
        spec(**values).resolved()
    assert message in str(error.value)
