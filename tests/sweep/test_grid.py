"""Grids: which runs they are, how their values are read, and what may be added to the grid of a folder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from scala_lab.cli import main
from scala_lab.config import RunSpec, flat_settings, setting_types
from scala_lab.errors import UserError
from scala_lab.methods.recipes import RECIPES
from scala_lab.sweep.grid import Grid, SweepFolder, read_axis, setting_text

FIXED = RunSpec.of(device="cpu", epochs=6)


def words(axes, fixed=FIXED, **more) -> list[str]:
    return [point.words for point in Grid.of(fixed, axes, **more).points]


def test_points_are_all_combinations_in_the_order_of_the_axes():
    assert words({"batch_size": [32, 256], "lr": [1e-3, 0.01]}) == [
        *("batch_size=32 lr=0.001", "batch_size=32 lr=0.01"),
        *("batch_size=256 lr=0.001", "batch_size=256 lr=0.01"),
    ]


def test_an_option_is_left_out_for_methods_without_it_and_their_points_stand_once():
    axes = {"delay": [3, 4], "method": ["lamb", "scala", "freelb"], "adv_lr": [0.1, 0.2], "lr": [0.01]}
    assert words(axes) == [
        "method=lamb lr=0.01",
        *("delay=3 method=scala lr=0.01", "method=freelb adv_lr=0.1 lr=0.01", "method=freelb adv_lr=0.2 lr=0.01"),
        "delay=4 method=scala lr=0.01",
    ]
    assert Grid.of(FIXED, axes).left_out() == {"delay": ["lamb", "freelb"], "adv_lr": ["lamb", "scala"]}


def test_a_fixed_option_is_left_out_too_where_a_method_of_the_grid_has_it():
    fixed = FIXED.override(method="scala", delay=2.0)
    lamb, scala = Grid.of(fixed, {"method": ["lamb", "scala"]}).points
    assert (lamb.specs[0].recipe.delay, scala.specs[0].recipe.delay) == (None, 2.0)
    with pytest.raises(UserError, match=r"no method of this grid \(lamb, plain\) has the option 'delay'; methods that"):
        words({"method": ["lamb", "plain"]}, fixed)


def test_a_value_that_is_the_default_is_the_run_of_the_default():
    assert words({"method": ["scala"], "delay": [None, 5.0, 4.0]}) == [
        "method=scala delay=none",
        "method=scala delay=4",
    ]


def test_seeds_are_a_number_a_list_or_an_axis():
    axes = {"method": ["lamb"]}
    for given, seeds in (({}, [0]), ({"seeds": 3}, [0, 1, 2]), ({"seeds": [7, 5]}, [7, 5])):
        (point,) = Grid.of(FIXED, axes, **given).points
        assert [spec.seed for spec in point.specs] == seeds
    (point,) = Grid.of(FIXED, {**axes, "seed": [4, 9]}).points
    assert [spec.seed for spec in point.specs] == [4, 9]
    (point,) = Grid.of(FIXED.override(seed=6), axes).points
    assert [spec.seed for spec in point.specs] == [6]


def test_runs_have_one_thread_whatever_the_machine_unless_told_otherwise(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert Grid.of(FIXED, {"lr": [0.1]}).points[0].specs[0].machine.threads == 1
    assert Grid.of(FIXED.override(threads=3), {"lr": [0.1]}).points[0].specs[0].machine.threads == 3


def test_what_makes_no_sense_names_the_combination():
    with pytest.raises(
        UserError, match=r"^method=scala delay=9: method 'scala' starts its noise after --delay 9 epochs"
    ):
        words({"method": ["lamb", "scala"], "delay": [3, 9]})
    with pytest.raises(UserError, match=r"^batch_size=0: --batch-size must be at least 1, not 0$"):
        words({"batch_size": [8, 0]})


def test_files_of_one_name_are_refused_as_their_runs_would_be_the_same():
    with pytest.raises(UserError, match=r"task a/rows.csv and b/rows.csv would be the same run: rename one of them"):
        words({"task": ["a/rows.csv", "b/rows.csv"]})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("batch-size=32,256", [32, 256]),
        ("lambda=0.5,1", [0.5, 1.0]),
        ("delay=inf,none", [math.inf, None]),
        ("noise=none,pga", ["none", "pga"]),
        ("lr_scaling=none,sqrt", ["none", "sqrt"]),
        ("sam_adaptive=true,none", [True, None]),
        ("adapt_all=false, true", [False, True]),
        ("text_columns=a,a b", [("a",), ("a", "b")]),
        ("eval_file=x.csv", [Path("x.csv")]),
        ("label_column=none,stars", [None, "stars"]),
    ],
)
def test_values_are_read_by_the_type_of_their_setting(text, value):
    name, values = read_axis(text)
    assert values == value
    assert list(map(type, values)) == list(map(type, value))
    assert Grid.of(FIXED, {name: values}).axes == {name: tuple(value)}


@pytest.mark.parametrize(
    ("name", "text"),
    [("batch_size", "many"), ("batch_size", "1.5"), ("lr", "fast"), ("optimizer", "lamp"), ("device", "gpu")],
)
def test_a_mistake_in_a_value_gets_the_sentence_of_train(name, text, capsys):
    assert main(["train", f"--{name.replace('_', '-')}", text]) == 2
    sentence = capsys.readouterr().err.removeprefix("scala-lab: error: train: ").strip()
    with pytest.raises(UserError) as caught:
        read_axis(f"{name}={text}")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", setting_types())
def test_a_value_that_is_written_is_read_again(name):
    for value in {flat_settings(RunSpec.of(method=method).resolved())[name] for method in RECIPES}:
        if value != () and (name, value) != ("noise", None):  # whose `none` is a value of its own
            assert read_axis(f"{name}={setting_text(value)}") == (name, [value])


def folder(*grids, fixed=FIXED) -> SweepFolder:
    sweep = SweepFolder(Path("sweep1"))
    for axes, seeds in grids:
        sweep = sweep.add(Grid.of(fixed, axes, seeds))
    return sweep


def runs(sweep) -> list[tuple[str, int]]:
    return [(point.words, spec.seed) for point in sweep.points for spec in point.specs]


def test_further_grids_add_points_and_seeds():
    sweep = folder(({"lr": [0.1, 0.2]}, 1), ({"lr": [0.2, 0.3]}, 2))
    assert runs(sweep) == [("lr=0.1", 0), ("lr=0.2", 0), ("lr=0.2", 1), ("lr=0.3", 0), ("lr=0.3", 1)]
    assert len({cell.key for cell in sweep.cells()}) == len(sweep.cells()) == 5
    again = sweep.add(Grid.of(FIXED, {"lr": [0.2, 0.3]}, 2))
    assert again.grids == sweep.grids


def test_a_setting_that_was_fixed_becomes_an_axis_by_naming_it():
    sweep = folder(({"lr": [0.1, 0.2]}, 1)).add(Grid.of(FIXED, {"lr": [0.1], "batch_size": [64]}, 1))
    assert sweep.axes == ["lr", "batch_size"]
    assert len(sweep.cells()) == 3
    with pytest.raises(UserError) as caught:
        sweep.add(Grid.of(FIXED.override(epochs=7), {"lr": [0.1]}, 1))
    assert str(caught.value) == (
        "sweep1 holds a sweep with other fixed settings (epochs 6 -> 7): choose another --out, "
        "or make it an axis (--grid epochs=7)"
    )
    assert folder(({"lr": [0.1]}, 1)).add(Grid.of(FIXED, {"lr": [0.1], "epochs": [7]}, 1)).axes == ["epochs"]


def test_a_folder_says_again_what_was_declared(tmp_path):
    fixed = FIXED.override(method="scala", max_weight_norm=math.inf, text_columns=("a", "b"), lr=None)
    axes = {"delay": [None, 3.0, math.inf], "lambda": [0.0], "noise": ["none", None], "eval_file": ["x.csv"]}
    sweep = SweepFolder(tmp_path).add(Grid.of(fixed, axes, [3, 1]))
    sweep.write()
    json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    read = SweepFolder.read(tmp_path)
    assert read == sweep
    assert [cell.key for cell in read.cells()] == [cell.key for cell in sweep.cells()]


@pytest.mark.parametrize("damage", ["", "{}", '{"grids": [{}], "view": {}, "command": ""}', "[]"])
def test_a_damaged_declaration_is_named(tmp_path, damage):
    (tmp_path / "sweep.json").write_text(damage)
    with pytest.raises(UserError, match=r"sweep.json is damaged or was written by another version"):
        SweepFolder.open(tmp_path)
