"""`scala-lab landscape`: the loss where the checkpoints are, around them and between them, or one sentence."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scala_lab.cli import main
from scala_lab.curvature.landscape import barrier
from tests.command_line import flags, own_rows, refuse, strict_json, train_flags
from tests.tiny import save_tiny_model, write_rows


def landscape(*checkpoints: str, **settings: object) -> list[str]:
    small = {"samples": 48, "threads": 1, "line_points": 5, "plane_points": 3, "out": "landscape"}
    return ["landscape", *checkpoints, *flags(**small | settings)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with runs `one` and `two` from one model on `rows.csv`, and models of other kinds."""
    folder = tmp_path_factory.mktemp("landscape")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_tiny_model(Path("model"), hidden=4, positions=24)
        save_tiny_model(Path("other"), "distilbert", hidden=4, positions=24)
        save_tiny_model(Path("wide"), hidden=6, positions=24)
        save_tiny_model(Path("scores"), "roberta", labels=1, hidden=4, positions=24)
        write_rows(Path("rows.csv"), 48)
        write_rows(Path("scores.csv"), 48, kind="scores")
        for name, method in (("one", "plain"), ("two", "lamb")):
            settings = {"method": method, "out": name, "lr": 0.02, "epochs": 2}
            assert main(train_flags(Path("./model"), Path("rows.csv"), **settings)) == 0
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    return tmp_path


def read(folder: Path) -> tuple[list[dict], pd.DataFrame, pd.DataFrame]:
    records = strict_json((folder / "landscape.json").read_text())
    return records, pd.read_csv(folder / "line.csv"), pd.read_csv(folder / "plane.csv")


def evaluated(checkpoint: str, folder: Path) -> float:
    """Accuracy on the same 48 rows, by another command."""
    file = folder / f"{checkpoint}.json"
    if not file.exists():
        assert main(["evaluate", checkpoint, "--json", str(file), "--threads", "1"]) == 0
    return json.loads(file.read_text())[0]["metrics"]["dev"]["accuracy"]


def test_second_differences_along_eigenvectors_are_the_eigenvalues(here, capfd):
    near = {"span": (-2e-3, 2e-3), "precision": "float64", "tol": 1e-6}
    assert main(landscape("one", "two", **near, out=here / "l")) == 0
    records, lines, planes = read(here / "l")
    assert [record["checkpoint"] for record in records] == ["one", "two"]
    for record in records:
        assert record["converged"]
        assert max(record["residuals"]) <= 1e-6
        assert record["accuracy"] == evaluated(record["checkpoint"], here)
        for number, value in enumerate(record["eigenvalues"], start=1):
            mine = lines[(lines["checkpoint"] == record["checkpoint"]) & (lines["direction"] == number)]
            assert mine["position"].tolist() == pytest.approx([-2e-3, -1e-3, 0, 1e-3, 2e-3])
            second = mine["loss"].to_numpy() @ np.array([-1, 16, -30, 16, -1]) / (12 * 1e-3**2)
            assert second == pytest.approx(value, rel=1e-3)
            assert mine["loss"].iloc[2] == pytest.approx(record["loss"], rel=1e-12)
        plane = planes[planes["checkpoint"] == record["checkpoint"]]
        assert len(plane) == 9
        assert plane[(plane["x"] == 0) & (plane["y"] == 0)]["loss"].item() == pytest.approx(record["loss"], rel=1e-12)
    out, err = capfd.readouterr()
    assert all(f"{value:.5g}" in out for record in records for value in record["eigenvalues"])
    assert str(here / "l") in err
    assert sorted(file.name for file in (here / "l").iterdir()) == sorted(
        ["landscape.json", "line.csv", "plane.csv"]
        + [
            f"{stem}.{end}"
            for stem in (
                "line-1",
                "line-2",
                *(f"{kind}-{value}" for kind in ("contour", "surface") for value in ("loss", "accuracy")),
            )
            for end in ("png", "svg")
        ]
    )


def test_line_between_two_checkpoints_ends_at_them(here, capfd):
    assert main(landscape("one", "two", directions="between", line_points=9, out=here / "l")) == 0
    (record,), line, plane = read(here / "l")
    assert (record["checkpoint"], record["other"]) == ("one", "two")
    assert line["position"].tolist() == pytest.approx(np.linspace(-0.5, 1.5, 9).tolist())
    line = line.set_index(line["position"].round(6))
    for position, name, prefix in ((0.0, "one", ""), (1.0, "two", "other_")):
        assert line.loc[position, "accuracy"] == record[f"{prefix}accuracy"] == evaluated(name, here)
        assert line.loc[position, "loss"] == pytest.approx(record[f"{prefix}loss"], rel=1e-5)
    assert record["loss"] != pytest.approx(record["other_loss"], rel=1e-3)
    assert record["distance"] == pytest.approx(distance("one", "two"), rel=1e-5)
    assert record["barrier"] >= 0
    assert sorted(set(plane["x"])) == pytest.approx([-0.5, 0.5, 1.5])
    assert sorted(set(plane["y"])) == pytest.approx([-1, 0, 1])
    assert "barrier" in capfd.readouterr().out


def distance(left: str, right: str) -> float:
    from safetensors.torch import load_file

    one, two = (load_file(Path(name, "checkpoint/model.safetensors")) for name in (left, right))
    return math.sqrt(sum(float((one[name] - two[name]).double().square().sum()) for name in one))


def test_between_several_goes_from_the_first_to_each(here):
    arguments = {"directions": "between", "plane_points": 0, "out": here / "l", **own_rows()}
    assert main(landscape("one", "two", "model", **arguments)) == 0
    lines = pd.read_csv(here / "l" / "line.csv")
    assert list(dict.fromkeys(lines["other"])) == ["two", "model"]
    assert set(lines["checkpoint"]) == {"one"}
    assert not (here / "l" / "plane.csv").exists()
    assert not (here / "l" / "contour-loss.png").exists()


def test_random_directions_are_the_seed_s_and_reach_one_weight_norm(here):
    for name, seed, plane in (("zero", 0, 2), ("again", 0, 2), ("one", 1, 0)):
        more = {"directions": "random", "seed": seed, "plane_points": plane, "out": here / name, **own_rows()}
        assert main(landscape("one", "other", **more)) == 0
    zero, again, one = (pd.read_csv(here / name / "line.csv") for name in ("zero", "again", "one"))
    assert zero.equals(again)
    moved = zero["position"] != 0
    assert not np.isclose(zero[moved]["loss"], one[moved]["loss"]).any()
    # with all 48 rows the seed chooses nothing but the directions
    assert np.allclose(zero[~moved]["loss"], one[~moved]["loss"], rtol=1e-5)
    svg = (here / "zero" / "line-1.svg").read_text()
    assert "in weight norms" in svg
    for kind in ("line-1", "contour-loss", "surface-loss"):
        for end in ("png", "svg"):
            file = f"{kind}.{end}"
            assert (here / "zero" / file).read_bytes() == (here / "again" / file).read_bytes(), file


def test_regression_has_no_accuracy(here):
    arguments = {"out": here / "l", **own_rows("scores.csv", regression=True)}
    assert main(landscape("scores", **arguments)) == 0
    (record,), line, _ = read(here / "l")
    assert record["accuracy"] is None
    assert line["accuracy"].isna().all()
    assert {file.stem for file in (here / "l").glob("*.png")} == {"line-1", "line-2", "contour-loss", "surface-loss"}
    assert "mean loss (squared label units)" in (here / "l" / "line-1.svg").read_text()


def test_eigenvectors_that_have_not_converged_are_said_to(here, capfd):
    assert main(landscape("one", max_products=2, plane_points=0, out=here / "l")) == 1
    (record,) = strict_json((here / "l" / "landscape.json").read_text())
    assert not record["converged"]
    assert max(record["residuals"]) > 1e-3
    assert " NO " in capfd.readouterr().out


def test_barrier_is_the_rise_above_the_straight_line():
    line = pd.DataFrame({"position": [-0.5, 0.0, 0.5, 1.0, 1.5], "loss": [9.0, 1.0, 2.5, 2.0, 9.0]})
    assert barrier(line, 1.0, 2.0) == pytest.approx(1.0)
    assert barrier(line.assign(loss=[9.0, 1.0, 1.2, 2.0, 9.0]), 1.0, 2.0) == 0
    assert math.isinf(barrier(line.assign(loss=[9.0, 1.0, math.inf, 2.0, 9.0]), 1.0, 2.0))
    assert math.isnan(barrier(line.assign(loss=[9.0, 1.0, math.nan, 2.0, 9.0]), 1.0, 2.0))


WRONG = [
    ([], {}, ["at least one checkpoint"]),
    (["none"], {}, ["checkpoint none is missing"]),
    (["empty"], {}, ["empty holds no model", "config.json"]),
    (["one", "one"], {}, ["checkpoint one is given twice"]),
    (["other"], {}, ["--task is needed", "other"]),
    (["scores"], own_rows(), ["scores has a regression head", "needs 2 classes"]),
    (["one"], {"out": None}, ["--out is needed"]),
    (["one"], {"out": "model"}, ["model exists already and is not empty"]),
    (["one"], {"out": "rows.csv"}, ["rows.csv is a file"]),
    (["one"], {"samples": 0}, ["--samples must be at least 1, not 0"]),
    (["one"], {"samples": 49}, ["49 rows", "there are 48"]),
    (["one"], {"directions": "between"}, ["--directions between needs at least two checkpoints"]),
    (["one"], {"directions": "sideways"}, ["--directions must be one of between, eigenvectors, random"]),
    (["one", "other"], {"directions": "between"}, ["one architecture", "only one of them has"]),
    (["one", "wide"], {"directions": "between"}, ["one architecture", "has shapes"]),
    (["one"], {"line_points": 1}, ["--line-points must be at least 2, or 0 for none, not 1"]),
    (["one"], {"plane_points": -3}, ["--plane-points must be at least 2, or 0 for none, not -3"]),
    (["one"], {"line_points": 0, "plane_points": 0}, ["nothing to look at"]),
    (["one"], {"span": (1, -1)}, ["--span must go from a lower to a higher number, not from 1 to -1"]),
    (["one"], {"span": ("nan", 1)}, ["--span must go from a lower to a higher number"]),
    (["one"], {"span": (0, "inf")}, ["--span must go from a lower to a higher number"]),
    (["one"], {"max_products": 1}, ["--max-products must be at least 2"]),
    (["one"], {"tol": 0}, ["--tol must be positive"]),
    (["one"], {"device": "cuda"}, ["no CUDA device"]),
]


@pytest.mark.parametrize(("checkpoints", "changes", "words"), WRONG, ids=lambda value: str(value)[:50])
def test_what_cannot_be_is_refused_in_one_sentence(here, capfd, checkpoints, changes, words):
    Path("empty").mkdir(exist_ok=True)
    refuse(capfd, landscape(*checkpoints, **changes), *words)


def test_a_fault_in_the_second_checkpoint_leaves_nothing(here, capfd):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree("two/checkpoint", here / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"][1, 2] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for directions in ("random", "between"):
        refuse(capfd, landscape("one", str(folder), directions=directions), "not finite", "classifier.weight")
