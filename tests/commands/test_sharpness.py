"""`scala-lab sharpness`: what the operator finds, from the command line, with evidence, or one sentence."""

from __future__ import annotations

import csv
import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scala_lab.cli import main
from scala_lab.curvature import HessianOperator, top_eigenpairs
from scala_lab.curvature.checkpoint import disjoint_sets, short_names, sorted_batches
from scala_lab.data.tokens import Padding
from tests.command_line import data_flags, flags, own_rows, refuse, strict_json, train_flags
from tests.processes import ROOT, run
from tests.tiny import save_tiny_model, write_rows

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a run `run` on `rows.csv`, a model `other`, and a regression model `scores` with its rows."""
    folder = tmp_path_factory.mktemp("sharpness")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        save_tiny_model(Path("model"), hidden=4, positions=24)
        save_tiny_model(Path("other"), "distilbert", hidden=4, positions=24)
        save_tiny_model(Path("scores"), "roberta", labels=1, hidden=4, positions=24)
        write_rows(Path("rows.csv"), 48)
        write_rows(Path("scores.csv"), 48, kind="scores")
        assert main(train_flags(Path("./model"), Path("rows.csv"), out="run", lr=0.05, epochs=1)) == 0
    return folder


@pytest.fixture
def here(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place)
    return tmp_path


def sharpness(*checkpoints: str, **settings: object) -> list[str]:
    return ["sharpness", *checkpoints, *flags(**{"samples": 12, "threads": 1} | settings)]


def findings(file: Path) -> list[dict]:
    return strict_json(file.read_text())


def operator(folder: str, samples: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> HessianOperator:
    """The operator on the rows that the command draws, put together by hand."""
    from scala_lab.config import DataSpec
    from scala_lab.models.loading import load_classifier
    from scala_lab.training.preparation import prepare_data

    data = DataSpec(task="rows.csv", text_columns=("text",), label_column="label", eval_file=Path("rows.csv"))
    prepared = prepare_data(data, folder)
    (rows,) = disjoint_sets(prepared.train, samples, 1, seed)
    model = load_classifier(folder, prepared.task, new_head=False).to(dtype)
    return HessianOperator(model, sorted_batches(prepared.train, rows, 5, Padding(prepared.tokenizer.pad_token_id)))


def test_run_folder_needs_no_task_and_gives_what_the_operator_gives(here, capfd):
    arguments = sharpness("run", top_k=3, precision="float64", tol=1e-6, json=here / "s.json")
    assert main(arguments) == 0
    (result,) = findings(here / "s.json")
    expected = top_eigenpairs(operator("run", 12, dtype=torch.float64), 3, 1e-6)
    assert result["eigenvalues"] == pytest.approx(expected.eigenvalues, rel=1e-8)
    assert result["checkpoint"] == "run"
    assert (result["task"], result["rows"], result["samples"]) == ("rows.csv", "train", 12)
    assert result["converged"] is True
    assert max(result["residuals"]) <= 1e-6
    assert result["hvps"] >= 3
    assert result["seconds"] > 0
    assert result["deviation"] is None
    out, err = capfd.readouterr()
    assert all(f"{value:.5g}" in out for value in result["eigenvalues"])
    assert err == "", "a progress bar belongs on a terminal"


def test_rows_run_at_once_and_kept_graphs_change_nothing(here):
    for number, more in enumerate(({"micro_batch": 12}, {"micro_batch": 5, "memory": 0}, {"micro_batch": 1})):
        assert main(sharpness("run", precision="float64", tol=1e-8, json=here / f"{number}.json", **more)) == 0
    values = [findings(here / f"{number}.json")[0]["eigenvalues"][0] for number in range(3)]
    assert values == pytest.approx([values[0]] * 3, rel=1e-6)


def test_checkpoint_of_a_run_and_a_copy_elsewhere_are_the_run(here):
    shutil.copytree("run/checkpoint", here / "copy")
    copy = str(here / "copy")
    assert main(sharpness("run", "run/checkpoint", copy, json=here / "s.json")) == 0
    first, second, third = findings(here / "s.json")
    assert first["eigenvalues"] == second["eigenvalues"] == third["eigenvalues"]
    refuse_words = [copy, *flags(samples=12, threads=1)]
    assert main(["sharpness", *refuse_words]) == 2, "nothing says which rows"
    assert main(["sharpness", copy, *data_flags(Path("rows.csv")), "--samples", "12"]) == 0


def test_deviation_is_over_disjoint_sets_of_rows(here):
    assert main(sharpness("run", repeats=4, top_k=2, json=here / "s.json", out=here / "s")) == 0
    (result,) = findings(here / "s.json")
    values = np.array([entry["eigenvalues"] for entry in result["sets"]])
    assert values.shape == (4, 2)
    assert result["eigenvalues"] == pytest.approx(values.mean(0))
    assert result["deviation"] == pytest.approx(values.std(0, ddof=1))
    assert result["hvps"] == sum(entry["hvps"] for entry in result["sets"])
    # the four sets of 12 are all 48 rows: the mean of their losses is the loss over everything
    assert main(sharpness("run", samples=48, json=here / "all.json")) == 0
    assert result["loss"] == pytest.approx(findings(here / "all.json")[0]["loss"], rel=1e-5)
    with (here / "s" / "sharpness.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["set"], row["rank"]) for row in rows] == [(str(a), str(b)) for a in range(1, 5) for b in (1, 2)]
    assert [float(row["eigenvalue"]) for row in rows] == pytest.approx(values.flatten().tolist())


def test_everything_from_one_operator(here, capfd):
    more = {"smallest": True, "trace": True, "layers": True, "density": True, "tol": 1e-6, "precision": "float64"}
    assert main(sharpness("run", "other", **more, **own_rows(), json=here / "s.json", out=here / "s")) == 0
    result, other = findings(here / "s.json")
    matrix = dense(operator("run", 12, dtype=torch.float64))
    values = torch.linalg.eigvalsh(matrix)
    assert result["eigenvalues"][0] == pytest.approx(float(values[-1]), rel=1e-6)
    assert result["smallest"]["eigenvalue"] == pytest.approx(float(values[0]), rel=1e-6)
    assert abs(result["trace"]["value"] - float(matrix.trace())) < 3.5 * result["trace"]["error"]
    alphas = {name: layer["eigenvalue"] for name, layer in result["layers"].items()}
    assert list(alphas) == ["embeddings", "bert.encoder.layer.0", "bert.encoder.layer.1", "head"]
    assert result["kappa_alpha"] == pytest.approx(max(alphas.values()) / min(alphas.values()))
    assert max(alphas.values()) <= result["eigenvalues"][0] * (1 + 1e-6), "a block is no sharper than the whole"
    assert "distilbert.transformer.layer.1" in other["layers"]
    names = {file.name for file in (here / "s").iterdir()}
    figures = {f"{stem}.{end}" for stem in ("sharpness", "layers", "density-1", "density-2") for end in ("png", "svg")}
    assert names == figures | {"sharpness.csv", "layers.csv"}
    assert "bert.encoder.layer.1" in capfd.readouterr().out


def dense(op: HessianOperator) -> torch.Tensor:
    return torch.stack([op.multiply(row) for row in torch.eye(op.space.touched_size, dtype=op.dtype)])


def test_power_iteration_and_pyhessian_find_the_same_top(here):
    for solver, tol in (("lanczos", 1e-6), ("power", 1e-2), ("pyhessian", 1e-2)):
        more = {"tol": tol, "max_products": 2000, "precision": "float64", "json": here / f"{solver}.json"}
        main(sharpness("run", solver=solver, **more))
    lanczos, power, other = (findings(here / f"{name}.json")[0] for name in ("lanczos", "power", "pyhessian"))
    assert lanczos["converged"]
    assert power["converged"]
    # an eigenvalue lies within the residual of any unit vector; PyHessian's numbers are those of the vector before
    assert power["eigenvalues"] == pytest.approx(lanczos["eigenvalues"], rel=1e-3)
    assert other["eigenvalues"] == pytest.approx(lanczos["eigenvalues"], rel=1.1 * other["residuals"][0])
    assert lanczos["hvps"] <= power["hvps"]
    assert "PyHessian" in other["note"]


@pytest.mark.parametrize("solver", ["lanczos", "power", "pyhessian"])
@pytest.mark.parametrize("most", [2, 5])
def test_not_converged_shows_in_a_residual_in_the_table_and_in_the_exit_code(here, capfd, solver, most):
    more = {"top_k": 2, "max_products": most, "tol": 1e-5, "repeats": 2, "json": here / "s.json", "out": here / "s"}
    assert main(sharpness("run", solver=solver, **more)) == 1
    (result,) = findings(here / "s.json")
    assert not result["converged"]
    assert max(result["residuals"]) > 1e-5
    assert len(result["eigenvalues"]) == 2
    for entry in result["sets"]:
        assert entry["converged"] == (max(entry["residuals"]) <= 1e-5)
        assert entry["hvps"] <= most
    assert " NO " in capfd.readouterr().out
    assert "not converged" in (here / "s" / "sharpness.svg").read_text()


def test_regression_is_in_squared_units_of_the_label(here):
    rows = data_flags(Path("scores.csv"), regression=True)
    assert main(["sharpness", "scores", *rows, *flags(samples=12, json=here / "s.json", out=here / "s")]) == 0
    assert findings(here / "s.json")[0]["loss_unit"] == "squared label units"
    assert "squared label units per squared unit of weight" in (here / "s" / "sharpness.svg").read_text()


WRONG = [
    ([], {}, ["at least one checkpoint"]),
    (["none"], {}, ["checkpoint none is missing"]),
    (["rows.csv"], {}, ["rows.csv is a file"]),
    (["empty"], {}, ["empty holds no model", "config.json"]),
    (["run", "run"], {}, ["checkpoint run is given twice"]),
    (["run", "empty/../run"], {}, ["given twice"]),
    (["other"], {}, ["--task is needed", "other"]),
    (["scores"], own_rows(), ["scores has a regression head", "needs 2 classes"]),
    (["run"], {"samples": 0}, ["--samples must be at least 1, not 0"]),
    (["run"], {"samples": 49}, ["49 rows", "there are 48"]),
    (["run"], {"samples": 20, "repeats": 3}, ["3 disjoint sets of 20 rows", "there are 48"]),
    (["run"], {"samples": 13, "rows": "eval", "eval_samples": 12}, ["13 rows", "there are 12"]),
    (["run"], {"repeats": 0}, ["--repeats must be at least 1"]),
    (["run"], {"top_k": 0}, ["--top-k must be at least 1"]),
    (["run"], {"top_k": 301}, ["--top-k 301", "--max-products"]),
    (["run"], {"top_k": 100_000, "max_products": 100_000}, ["--top-k 100000", "parameters"]),
    (["run"], {"tol": 0}, ["--tol must be positive, not 0"]),
    (["run"], {"tol": "nan"}, ["--tol must be positive, not nan"]),
    (["run"], {"memory": "nan"}, ["--memory must be at least 0"]),
    (["run"], {"memory": "inf"}, ["--memory must be a finite number"]),
    (["run"], {"seed": -1}, ["--seed must be at least 0"]),
    (["run"], {"seed": 2**63}, ["--seed must be below 2^63"]),
    (["run"], {"threads": -1}, ["--threads must be at least 0"]),
    (["run"], {"micro_batch": 0}, ["--micro-batch must be at least 1"]),
    (["run"], {"device": "cuda"}, ["no CUDA device"]),
    (["run"], {"device": "cuda", "workers": 2}, ["no CUDA device"]),
    (["run"], {"workers": 0}, ["--workers must be at least 1"]),
    (["run"], {"workers": 2, "solver": "pyhessian"}, ["pyhessian runs in one process"]),
    (["run"], {"density": True}, ["--density needs --out"]),
    (["run"], {"solver": "qr"}, ["--solver must be one of"]),
    (["run"], {"json": "rows.csv"}, ["rows.csv exists already"]),
    (["run"], {"json": "none/s.json"}, ["none is no folder"]),
    (["run"], {"out": "model"}, ["model exists already and is not empty"]),
    (["run"], {"out": "rows.csv/s"}, ["rows.csv is a file"]),
]


@pytest.mark.parametrize(("checkpoints", "changes", "words"), WRONG, ids=lambda value: str(value)[:50])
def test_what_cannot_be_is_refused_in_one_sentence(here, capfd, checkpoints, changes, words):
    Path("empty").mkdir(exist_ok=True)
    refuse(capfd, sharpness(*checkpoints, **changes), *words)


LAYER = "bert.encoder.layer.1.output.dense.weight"


def test_weights_that_are_not_finite_are_named(here, capfd, monkeypatch):
    from safetensors.torch import load_file, save_file

    folder = shutil.copytree("run/checkpoint", here / "nan")
    weights = load_file(folder / "model.safetensors")
    weights[LAYER][3, 2] = math.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refuse(capfd, sharpness(str(folder), **own_rows()), "not finite", LAYER)


def test_pickle_is_read_only_if_it_holds_plain_weights(here, capfd):
    from safetensors.torch import load_file

    folder = shutil.copytree("run/checkpoint", here / "pickle")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    assert main(sharpness(str(folder), "run", **own_rows(), json=here / "s.json")) == 0
    plain, run = findings(here / "s.json")
    assert plain["eigenvalues"] == run["eigenvalues"]
    torch.save({**weights, "more": Path("anything")}, folder / "pytorch_model.bin")
    refuse(capfd, sharpness(str(folder), **own_rows()), "pytorch_model.bin", "could run code")


def test_figures_call_checkpoints_by_what_tells_them_apart():
    assert short_names([Path("runs/a"), Path("runs/b")]) == {"runs/a": "a", "runs/b": "b"}
    assert short_names([Path("runs/a/checkpoint"), Path("runs/b/checkpoint")]) == {
        "runs/a/checkpoint": "a/checkpoint",
        "runs/b/checkpoint": "b/checkpoint",
    }
    assert short_names([Path("deep/model")]) == {"deep/model": "model"}
    assert short_names([Path("runs/a"), Path("runs")]) == {"runs/a": "runs/a", "runs": "runs"}


def test_equal_questions_have_equal_answers_to_the_byte(here):
    for name in ("one", "two"):
        assert main(sharpness("run", layers=True, out=here / name)) == 0
    for file in sorted((here / "one").iterdir()):
        assert file.read_bytes() == (here / "two" / file.name).read_bytes(), file.name


def test_json_is_what_scripts_expect(here):
    assert main(sharpness("run", json=here / "s.json")) == 0
    (result,) = json.loads((here / "s.json").read_text())
    assert {"checkpoint", "eigenvalues", "residuals", "hvps", "converged", "seconds", "samples"} <= set(result)
    assert not {"trace", "layers"} & set(result)


def test_two_workers_agree_with_one_by_our_launcher_and_by_torchrun(here, place, capfd):
    more = {"top_k": 3, "samples": 13, "micro_batch": 3, "smallest": True, "precision": "float64", "tol": 1e-6}
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    for name, workers in (("alone", None), ("ours", 2), ("torchrun", None)):
        arguments = sharpness("run", **more, workers=workers, json=here / f"{name}.json", out=here / name)
        if name == "torchrun":
            command = [sys.executable, "-m", *torchrun, "scala_lab", *arguments]
            said = run(command, cwd=place, env={"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"})
        else:
            assert main(arguments) == 0
            said = capfd.readouterr().out
        assert said.count("eigenvalues") == 1, "one worker speaks"
    alone, ours, launched = (findings(here / f"{name}.json")[0] for name in ("alone", "ours", "torchrun"))
    for result in (ours, launched):
        assert result["eigenvalues"] == pytest.approx(alone["eigenvalues"], rel=1e-5)
        assert result["smallest"]["eigenvalue"] == pytest.approx(alone["smallest"]["eigenvalue"], rel=1e-5)
        assert result["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    names = [sorted(file.name for file in (here / name).iterdir()) for name in ("alone", "ours", "torchrun")]
    assert names[0] == names[1] == names[2]


def test_a_fault_that_both_workers_find_is_said_once(here, capfd):
    refuse(capfd, sharpness("run", samples=49, workers=2), "49 rows", "there are 48")
