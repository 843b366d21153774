import sys

import pytest

from scala_lab.data.tasks import METRICS, TASKS, Task, find_task
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
    assert {spelling: task.labels[index] for spelling, index in task.label_index.items()} == labels


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
