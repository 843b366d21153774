import sys
import warnings

import numpy as np
import pytest

from scala_lab.data.tasks import METRICS, TASKS, Task, compute_metrics, find_task, predictions
from scala_lab.errors import UserError
from tests.processes import run

GLUE = {"sst2", "qnli", "mnli", "qqp", "stsb", "mrpc", "rte", "cola"}
EMBEDDED = {"mini-sst2", "mini-qnli", "mini-mnli", "mini-qqp", "mini-stsb"}


def test_glue_and_embedded_tasks_are_there():
    assert set(TASKS) == GLUE | EMBEDDED
    assert {name for name, task in TASKS.items() if task.embedded} == EMBEDDED


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("sst2", {"0": "negative", "1": "positive"}),
        ("cola", {"0": "unacceptable", "1": "acceptable"}),
        ("qqp", {"0": "not_duplicate", "1": "duplicate"}),
        ("mrpc", {"0": "not_equivalent", "1": "equivalent"}),
        ("qnli", {"entailment": "entailment", "not_entailment": "not_entailment"}),
        ("mnli", {"entailment": "entailment", "neutral": "neutral", "contradiction": "contradiction"}),
    ],
)
def test_a_spelling_in_a_file_leads_to_the_class_of_that_name(name, labels):
    task = TASKS[name]
    assert dict(zip(task.file_labels or task.labels, task.labels, strict=True)) == labels


def test_mnli_has_the_class_order_of_the_hub():
    assert TASKS["mnli"].labels == ("entailment", "neutral", "contradiction")


@pytest.mark.parametrize("task", TASKS.values(), ids=str)
def test_every_metric_can_be_computed(task):
    assert set(task.metrics) <= set(METRICS)
    assert task.outputs == (1 if task.regression else len(task.labels))


def test_headline_metrics():
    assert TASKS["cola"].metrics[0] == "matthews"
    assert TASKS["stsb"].metrics == ("pearson", "spearman")
    assert TASKS["qqp"].metrics == TASKS["mrpc"].metrics == ("accuracy", "f1")


def test_unknown_task_names_the_nearest():
    with pytest.raises(UserError, match="'sst2'"):
        find_task("sst-2")


def test_a_file_called_like_an_embedded_task_is_not_one():
    assert not Task("mini-reviews.csv", ("text",), "label", ("a", "b")).embedded


def test_importing_the_task_modules_imports_nothing_heavy():
    code = "; ".join(f"import scala_lab.data.{name}" for name in ("tasks", "tables", "glue", "sources", "tokens"))
    heavy = "{'torch', 'transformers', 'datasets', 'pandas', 'sklearn', 'scipy', 'pyarrow'}"
    check = f"import sys; {code}; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    run([sys.executable, "-c", check])


def logits_of(classes, count=2):
    return np.eye(count, dtype=np.float32)[classes]


def test_counts_of_a_small_table():
    labels = np.array([1, 1, 1, 0, 0, 0, 0, 0])
    predicted = logits_of([1, 1, 0, 1, 0, 0, 0, 0])
    # 2 true positives, 1 false positive, 1 false negative, 4 true negatives
    assert compute_metrics(TASKS["qqp"], predicted, labels) == pytest.approx({"accuracy": 6 / 8, "f1": 2 / 3})
    matthews = (2 * 4 - 1 * 1) / np.sqrt(3 * 3 * 5 * 5)
    assert compute_metrics(TASKS["cola"], predicted, labels) == pytest.approx({"matthews": matthews, "accuracy": 0.75})


def test_three_classes():
    metrics = compute_metrics(TASKS["mnli"], logits_of([0, 1, 2, 2], 3), np.array([0, 1, 2, 0]))
    assert metrics == {"accuracy": 0.75}


@pytest.mark.parametrize("shape", [(4, 1), (4,)])
def test_correlations_by_hand(shape):
    labels = np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    scores = np.array([1.0, 3.0, 2.0, 10.0], dtype=np.float32).reshape(shape)
    # deviations (-1.5 -.5 .5 1.5) and (-3 -1 -2 6): 13 / sqrt(5 * 50); ranks differ by a swap: 1 - 6 * 2 / 60
    expected = {"pearson": 13 / np.sqrt(250), "spearman": 0.8}
    assert compute_metrics(TASKS["stsb"], scores, labels) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["stsb", "cola", "qqp"])
def test_a_constant_prediction_scores_zero_without_a_warning(name):
    task = TASKS[name]
    labels = np.array([0, 1, 1, 0]) if task.labels else np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)
    logits = np.tile(np.arange(task.outputs, 0, -1, dtype=np.float32), (4, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics = compute_metrics(task, logits, labels)
    expected = {"stsb": {"pearson": 0, "spearman": 0}, "cola": {"matthews": 0, "accuracy": 0.5}}
    assert metrics == expected.get(name, {"accuracy": 0.5, "f1": 0})


@pytest.mark.parametrize("name", ["stsb", "cola", "qqp", "mnli"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_finite_have_no_score(name, bad):
    task = TASKS[name]
    logits = np.zeros((3, task.outputs), dtype=np.float32)
    logits[1, 0] = bad
    metrics = compute_metrics(task, logits, np.zeros(3, dtype=np.int64))
    assert list(metrics) == list(task.metrics)
    assert all(np.isnan(value) for value in metrics.values())


def test_one_row_has_no_correlation():
    assert compute_metrics(TASKS["stsb"], np.ones((1, 1)), np.ones(1)) == {"pearson": 0, "spearman": 0}


def test_predictions_are_classes_or_scores():
    assert predictions(TASKS["mnli"], np.array([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])).tolist() == [1, 0]
    assert predictions(TASKS["stsb"], np.array([[2.5], [-1.0]], dtype=np.float32)).tolist() == [2.5, -1.0]
