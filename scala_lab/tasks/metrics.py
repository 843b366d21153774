"""The metrics GLUE reports, from logits, as fractions or correlations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from scala_lab.tasks.registry import Task

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
