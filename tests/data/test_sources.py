from pathlib import Path

import datasets
import numpy as np
import pytest

from scala_lab.config import DataSpec
from scala_lab.data import glue as glue_hub
from scala_lab.data.sources import load_task
from scala_lab.data.tasks import TASKS
from scala_lab.errors import UserError

SPLITS = {"mnli": ("train", "validation_matched", "validation_mismatched")}


@pytest.fixture(autouse=True)
def _own_hub_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()


def hub_folder(folder, name, columns, feature, labels, splits=("train", "validation")):
    """A folder as the hub lays GLUE out: a sub-folder of parquet files per task, and a card that lists them."""
    features = datasets.Features({**dict.fromkeys(columns, datasets.Value("string")), "label": feature})
    (folder / name).mkdir(parents=True)
    card = ["---", "configs:", f"- config_name: {name}", "  data_files:"]
    for split in splits:
        texts = {column: [f"{split} {column} {row}" for row in range(len(labels))] for column in columns}
        rows = datasets.Dataset.from_dict({**texts, "label": labels}, features=features)
        rows.to_parquet(str(folder / name / f"{split}-00000-of-00001.parquet"))
        card += [f"  - split: {split}", f"    path: {name}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*card, "---", ""]))
    return str(folder)


@pytest.mark.parametrize("name", ["sst2", "qnli", "mnli", "qqp", "mrpc", "rte", "cola"])
def test_classes_from_the_hub(tmp_path, monkeypatch, name):
    task = TASKS[name]
    columns = {"mnli": ("premise", "hypothesis"), "mrpc": ("sentence1", "sentence2")}.get(name, task.text_columns)
    feature = datasets.ClassLabel(names=list(task.labels))
    labels = [len(task.labels) - 1, 0, 1]
    splits = SPLITS.get(name, ("train", "validation"))
    monkeypatch.setattr(glue_hub, "HUB_DATASET", hub_folder(tmp_path / "glue", name, columns, feature, labels, splits))
    data = load_task(DataSpec(task=name))
    assert data.train.labels.tolist() == labels
    assert data.train.labels.dtype == np.int64
    assert data.train.first == [f"train {columns[0]} {row}" for row in range(3)]
    if len(columns) == 2:
        assert data.train.second == [f"train {columns[1]} {row}" for row in range(3)]
    assert list(data.evals) == (["dev_matched", "dev_mismatched"] if name == "mnli" else ["dev"])
    assert data.evals[list(data.evals)[-1]].first[0] == f"{splits[-1]} {columns[0]} 0"


def test_scores_from_the_hub(tmp_path, monkeypatch):
    folder = hub_folder(tmp_path / "glue", "stsb", ("sentence1", "sentence2"), datasets.Value("float32"), [0.5, 5.0])
    monkeypatch.setattr(glue_hub, "HUB_DATASET", folder)
    data = load_task(DataSpec(task="stsb"))
    assert data.train.labels.tolist() == [0.5, 5.0]
    assert data.train.labels.dtype == np.float32


def test_class_names_decide_not_their_order_on_the_hub(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["positive", "negative"])
    folder = hub_folder(tmp_path / "glue", "sst2", ("sentence",), feature, [0, 1])
    monkeypatch.setattr(glue_hub, "HUB_DATASET", folder)
    data = load_task(DataSpec(task="sst2"))
    assert [data.task.labels[label] for label in data.train.labels] == ["positive", "negative"]


def test_an_unlabelled_row_on_the_hub_is_an_error(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["negative", "positive"])
    folder = hub_folder(tmp_path / "glue", "sst2", ("sentence",), feature, [0, -1])
    monkeypatch.setattr(glue_hub, "HUB_DATASET", folder)
    with pytest.raises(UserError, match="row 1: -1 is not a label"):
        load_task(DataSpec(task="sst2"))


def test_without_the_hub_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(glue_hub, "hub_reachable", lambda: False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=r"--data-dir.*HF_HOME.*mini-sst2"):
        load_task(DataSpec(task="rte"))
    assert not datasets.config.HF_HUB_OFFLINE


def test_without_the_hub_an_earlier_download_is_used(tmp_path, monkeypatch):
    feature = datasets.ClassLabel(names=["entailment", "not_entailment"])
    folder = hub_folder(tmp_path / "glue", "rte", ("sentence1", "sentence2"), feature, [1, 0])
    datasets.load_dataset(folder, "rte")
    (built,) = (tmp_path / "cache").rglob("dataset_info.json")
    download = tmp_path / "cache" / "nyu-mll___glue" / "rte" / "0.0.0" / "0123456789abcdef"
    download.parent.mkdir(parents=True)
    built.parent.rename(download)
    monkeypatch.setattr(glue_hub, "hub_reachable", lambda: False)
    data = load_task(DataSpec(task="rte"))
    assert data.train.labels.tolist() == [1, 0]
    assert data.evals["dev"].second == ["validation sentence2 0", "validation sentence2 1"]


def test_a_generated_task_comes_from_the_generator():
    data = load_task(DataSpec(task="mini-mnli"))
    assert set(data.train.labels.tolist()) == {0, 1, 2}
    assert next(iter(data.evals)) == "dev"
    assert data.train.second is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "sst3"}, "unknown task 'sst3': did you mean 'sst2'"),
        ({"task": "mini-qqp", "data_dir": Path("glue")}, "generated and reads no --data-dir; .* give --task qqp"),
        ({"task": "own.csv", "data_dir": Path("glue")}, "--data-dir is for the GLUE tasks"),
        ({"task": "sst2", "label_column": "label"}, "--label-column is for a file of your own"),
        ({"task": "mini-sst2", "text_columns": ("text",)}, "--text-columns is for a file of your own"),
        ({"task": "sst2", "regression": True}, "--regression is for a file of your own"),
        ({"task": "sst2", "eval_file": Path("dev.csv")}, "--eval-file is for a file of your own"),
        ({"task": "folder/sst2"}, "must end in one of"),
    ],
)
def test_options_that_do_not_fit_the_task(options, message):
    with pytest.raises(UserError, match=message):
        load_task(DataSpec(**options))
