from pathlib import Path

import numpy as np
import pytest

from scala_lab.config import DataSpec
from scala_lab.data.sources import load_task, select_rows
from scala_lab.data.tasks import TASKS, Rows, TaskData
from scala_lab.errors import UserError


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


def rows(count):
    return Rows([f"row {index}" for index in range(count)], None, np.zeros(count, np.int64))


DATA = TaskData(TASKS["sst2"], rows(100), {"dev": rows(40), "other": rows(30)})


def select(**options):
    return select_rows(DATA, DataSpec(**options))


def test_all_rows_by_default():
    selection = select()
    assert sorted(selection.train) == list(range(100))
    assert not selection.kept_apart
    assert {name: list(index) for name, index in selection.evals.items()} == {
        "dev": list(range(40)),
        "other": list(range(30)),
    }


def test_a_smaller_train_set_begins_a_larger_one():
    small, large = select(train_samples=10), select(train_samples=60)
    assert len(set(large.train)) == 60
    assert large.train[:10].tolist() == small.train.tolist()


def test_rows_kept_apart_are_disjoint_and_do_not_depend_on_the_train_size():
    chosen = [select(train_samples=count, heldout_samples=20, tuning_samples=10) for count in (5, 70, None)]
    assert len(chosen[2].train) == 70
    for selection in chosen:
        heldout, tuning = selection.kept_apart["heldout"], selection.kept_apart["tuning"]
        assert heldout.tolist() == chosen[0].kept_apart["heldout"].tolist()
        assert tuning.tolist() == chosen[0].kept_apart["tuning"].tolist()
        assert len({*selection.train, *heldout, *tuning}) == len(selection.train) + 30


def test_phrases_of_training_rows_are_not_kept_apart():
    """Rows of SST-2 are phrases of sentences: one that stands in a training row is not new to the model."""
    texts = [f"{index} a very good film" for index in range(40)] + ["very good", "good film"] * 5
    texts += [f"{part} film {index}" for part in ("goo", "good") for index in range(10)]
    data = TaskData(TASKS["sst2"], Rows(texts, None, np.zeros(len(texts), np.int64)), {})
    selection = select_rows(data, DataSpec(train_samples=30, heldout_samples=15, tuning_samples=5))
    trained = [f" {texts[row]} " for row in selection.train]
    for rows_apart in selection.kept_apart.values():
        assert not [row for row in rows_apart if any(f" {texts[row]} " in longer for longer in trained)]
    kept = [texts[row] for rows_apart in selection.kept_apart.values() for row in rows_apart]
    assert any(text.startswith("goo") for text in kept), "other phrases stay"
    with pytest.raises(UserError, match="train rows beside the training rows that do not stand in one of them"):
        select_rows(data, DataSpec(train_samples=30, heldout_samples=40))


def test_the_data_seed_decides():
    assert select(train_samples=50).train.tolist() == select(train_samples=50).train.tolist()
    assert select(train_samples=50).train.tolist() != select(train_samples=50, data_seed=1).train.tolist()
    assert select(eval_samples=9).evals["dev"].tolist() != select(eval_samples=9, data_seed=1).evals["dev"].tolist()


def test_fewer_eval_rows_are_a_subset_in_the_order_of_the_data():
    small, large = (select(eval_samples=count).evals["dev"] for count in (5, 25))
    assert set(small) < set(large)
    assert (np.diff(large) > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_samples": 101}, "--train-samples 101: sst2 has 100 train rows"),
        ({"train_samples": 90, "heldout_samples": 11}, "--heldout-samples 11 and --train-samples 90: sst2 has 100"),
        ({"heldout_samples": 100}, "--heldout-samples 100 and at least one row to train on: sst2 has 100"),
        ({"eval_samples": 35}, "--eval-samples 35: sst2 has 30 rows in other"),
    ],
)
def test_more_rows_than_there_are(options, message):
    with pytest.raises(UserError, match=message):
        select(**options)
