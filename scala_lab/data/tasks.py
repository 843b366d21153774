"""What there is to learn: the GLUE tasks and the embedded ones, with columns, labels, sizes and metrics.

What there is to learn: the GLUE tasks and the embedded ones, with columns, labels and metrics.

The metrics GLUE reports, from logits, as fractions or correlations.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from scala_lab.errors import UserError, nearest


@dataclass(frozen=True)
class Task:
    """A text classification or regression task.

    Attributes:
        name: What `--task` calls it.
        text_columns: One column, or two for sentence pairs.
        label_column: Column of the label.
        labels: Class names in the order of their indices, as the model's `id2label` says them; empty for regression.
        metrics: Names of metrics; the first is the headline.
        folder: Folder name in the classic GLUE layout, or '' where there is none.
        file_labels: How files spell the classes, in the same order, where that is not by name ("0" and "1").
        header: Column names of files that come without a header line.
        hub_columns: The text columns on the hub, where they are named differently there.
    """

    name: str
    text_columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    folder: str = ""
    file_labels: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    hub_columns: tuple[str, ...] = ()

    @property
    def regression(self) -> bool:
        """Whether the label is a number rather than a class."""
        return not self.labels

    @property
    def outputs(self) -> int:
        """Number of outputs of the model's head."""
        return max(1, len(self.labels))

    @property
    def embedded(self) -> bool:
        """Whether the task's rows are generated rather than read (a file of the user's may be called mini-x.csv)."""
        return self.name.startswith("mini-") and self.name in TASKS

    @property
    def label_index(self) -> dict[str, int]:
        """Class index by the spelling that files use."""
        return {spelling: index for index, spelling in enumerate(self.file_labels or self.labels)}


_PAIR = ("sentence1", "sentence2")
_BINARY = ("0", "1")
_CORRELATIONS = ("pearson", "spearman")
_ACCURACY_F1 = ("accuracy", "f1")

_SENTIMENT = ("negative", "positive")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("entailment", "neutral", "contradiction")
_DUPLICATE = ("not_duplicate", "duplicate")
_EQUIVALENT = ("not_equivalent", "equivalent")
_ACCEPTABLE = ("unacceptable", "acceptable")

_ALL = (
    Task("sst2", ("sentence",), "label", _SENTIMENT, folder="SST-2", file_labels=_BINARY),
    Task("qnli", ("question", "sentence"), "label", _ENTAILMENT, folder="QNLI"),
    Task("mnli", _PAIR, "gold_label", _INFERENCE, folder="MNLI", hub_columns=("premise", "hypothesis")),
    Task("qqp", ("question1", "question2"), "is_duplicate", _DUPLICATE, _ACCURACY_F1, "QQP", file_labels=_BINARY),
    Task("stsb", _PAIR, "score", (), _CORRELATIONS, "STS-B"),
    Task(
        "mrpc",
        ("#1 String", "#2 String"),
        "Quality",
        _EQUIVALENT,
        _ACCURACY_F1,
        "MRPC",
        file_labels=_BINARY,
        hub_columns=_PAIR,
    ),
    Task("rte", _PAIR, "label", _ENTAILMENT, folder="RTE"),
    Task(
        "cola",
        ("sentence",),
        "label",
        _ACCEPTABLE,
        ("matthews", "accuracy"),
        "CoLA",
        file_labels=_BINARY,
        header=("source", "label", "star", "sentence"),
    ),
    Task("mini-sst2", ("sentence",), "label", _SENTIMENT),
    Task("mini-qnli", ("question", "sentence"), "label", _ENTAILMENT),
    Task("mini-mnli", _PAIR, "label", _INFERENCE),
    Task("mini-qqp", ("question1", "question2"), "label", _DUPLICATE, _ACCURACY_F1),
    Task("mini-stsb", _PAIR, "score", (), _CORRELATIONS),
)

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})


def find_task(name: str) -> Task:
    """The task of that name, or an error that names the closest one."""
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}: {nearest(name, TASKS)} (a file of your own needs its ending)")
    return TASKS[name]


Metric = Callable[[np.ndarray, np.ndarray], float]
"""From labels and predictions to a number."""


def predictions(task: Task, logits: np.ndarray) -> np.ndarray:
    """Class indices (int64), or for regression the scores, of logits of shape (rows, outputs)."""
    logits = np.asarray(logits)
    if task.regression:
        return logits.reshape(len(logits)).astype(np.float64)
    return logits.argmax(axis=-1).astype(np.int64)


def compute_metrics(task: Task, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The task's metrics by name, headline first.

    All are nan if there are no rows or a logit is not finite: a diverged model has no accuracy. A correlation with
    a constant, which is undefined, counts as 0: such a model has learned nothing about the order of the rows.
    """
    if len(labels) == 0 or not np.isfinite(logits).all():
        return dict.fromkeys(task.metrics, float("nan"))
    predicted = predictions(task, logits)
    return {name: float(METRICS[name](np.asarray(labels), predicted)) for name in task.metrics}


def _accuracy(labels: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import accuracy_score

    return accuracy_score(labels, predicted)


def _f1(labels: np.ndarray, predicted: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return f1_score(labels, predicted, pos_label=1, average="binary", zero_division=0.0)


def _matthews(labels: np.ndarray, predicted: np.ndarray) -> float:
    """With a constant on either side scikit-learn gives 0, and warns if both sides hold a single class."""
    from sklearn.metrics import matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return matthews_corrcoef(labels, predicted)


def _pearson(labels: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predicted)


def _spearman(labels: np.ndarray, predicted: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predicted)


def _correlation(function: Callable, labels: np.ndarray, predicted: np.ndarray) -> float:
    if len(labels) < 2:
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        value = function(labels.astype(np.float64), predicted).statistic
    return float(value) if np.isfinite(value) else 0.0


METRICS: Mapping[str, Metric] = MappingProxyType(
    {"accuracy": _accuracy, "f1": _f1, "matthews": _matthews, "pearson": _pearson, "spearman": _spearman}
)
