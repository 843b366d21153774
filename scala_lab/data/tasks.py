"""The registry of tasks, GLUE and embedded, with their columns, labels and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from types import MappingProxyType

import numpy as np

from scala_lab.errors import UserError, nearest

SPLIT_STREAM, TRAIN_STREAM, EVAL_STREAM = 1, 2, 3  # second entry of the seed, so that draws are independent


@dataclass(frozen=True)
class Task:
    """A text classification or regression task."""

    name: str
    text_columns: tuple[str, ...]  # one column, or two for sentence pairs
    label_column: str
    labels: tuple[str, ...]  # class names in the order of their indices; empty for regression
    metrics: tuple[str, ...] = ("accuracy",)  # headline first
    folder: str = ""  # in the classic GLUE layout
    file_labels: tuple[str, ...] = ()  # how files spell the classes ("0" and "1"), where that is not by name
    header: tuple[str, ...] = ()  # column names of files without a header line
    hub_columns: tuple[str, ...] = ()  # the text columns on the hub, where they are named differently there

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
        """Whether the task's rows are generated rather than read (a user's file may be called mini-x.csv)."""
        return self.name.startswith("mini-") and self.name in TASKS


@dataclass(frozen=True)
class Rows:
    """The texts and labels of one split."""

    first: list[str]
    second: list[str] | None  # None for single-sentence tasks
    labels: np.ndarray  # int64 class indices in the order of `Task.labels`, or float32 scores

    def __len__(self) -> int:
        return len(self.first)

    def take(self, indices: np.ndarray) -> Rows:
        """Return the rows at these indices, in this order."""
        second = None if self.second is None else [self.second[index] for index in indices]
        return Rows([self.first[index] for index in indices], second, self.labels[indices])


@dataclass(frozen=True)
class TaskData:
    """All rows of a task."""

    task: Task
    train: Rows
    evals: Mapping[str, Rows]  # the first is the headline split (`dev`, or mnli's `dev_matched`)
    skipped: Mapping[str, int] = field(default_factory=dict)  # malformed rows left out, by file name


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
_COLA_HEADER = ("source", "label", "star", "sentence")

_TASKS = (
    Task("sst2", ("sentence",), "label", _SENTIMENT, folder="SST-2", file_labels=_BINARY),
    Task("qnli", ("question", "sentence"), "label", _ENTAILMENT, folder="QNLI"),
    Task("mnli", _PAIR, "gold_label", _INFERENCE, folder="MNLI", hub_columns=("premise", "hypothesis")),
    Task("qqp", ("question1", "question2"), "is_duplicate", _DUPLICATE, _ACCURACY_F1, "QQP", _BINARY),
    Task("stsb", _PAIR, "score", (), _CORRELATIONS, "STS-B"),
    Task("mrpc", ("#1 String", "#2 String"), "Quality", _EQUIVALENT, _ACCURACY_F1, "MRPC", _BINARY, hub_columns=_PAIR),
    Task("rte", _PAIR, "label", _ENTAILMENT, folder="RTE"),
    Task("cola", ("sentence",), "label", _ACCEPTABLE, ("matthews", "accuracy"), "CoLA", _BINARY, _COLA_HEADER),
    Task("mini-sst2", ("sentence",), "label", _SENTIMENT),
    Task("mini-qnli", ("question", "sentence"), "label", _ENTAILMENT),
    Task("mini-mnli", _PAIR, "label", _INFERENCE),
    Task("mini-qqp", ("question1", "question2"), "label", _DUPLICATE, _ACCURACY_F1),
    Task("mini-stsb", _PAIR, "score", (), _CORRELATIONS),
)

TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _TASKS})


def find_task(name: str) -> Task:
    """Return the task of this name."""
    if name not in TASKS:
        raise UserError(f"unknown task {name!r}: {nearest(name, TASKS)} (a file of your own needs its ending)")
    return TASKS[name]


def metrics_of(name: str, regression: bool) -> tuple[str, ...]:
    """Return the metrics of the task of this name, headline first, or of a user's own file."""
    if name in TASKS:
        return TASKS[name].metrics
    return _CORRELATIONS if regression else ("accuracy",)


def predictions(task: Task, logits: np.ndarray) -> np.ndarray:
    """Convert logits of shape (rows, outputs) to class indices (int64), or for regression to scores."""
    logits = np.asarray(logits)
    if task.regression:
        return logits.reshape(len(logits)).astype(np.float64)
    return logits.argmax(axis=-1).astype(np.int64)


def compute_metrics(task: Task, logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Compute the task's metrics by name, as fractions or correlations, headline first.

    All are nan if there are no rows or a logit is not finite: a diverged model has no accuracy. A correlation with a
    constant, which is undefined, counts as 0.
    """
    if len(labels) == 0 or not np.isfinite(logits).all():
        return dict.fromkeys(task.metrics, float("nan"))
    labels, predicted = np.asarray(labels, np.float64 if task.regression else None), predictions(task, logits)
    return {name: METRICS[name](labels, predicted) for name in task.metrics}


def mean_loss(task: Task, logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean cross-entropy in nats, or the mean squared error for regression."""
    from scipy.special import log_softmax

    if task.regression:
        return float(np.mean((predictions(task, logits) - labels) ** 2))
    log_p = log_softmax(logits.astype(np.float64), axis=-1)
    return float(-np.mean(log_p[np.arange(len(labels)), labels]))


def chance(task: Task, labels: np.ndarray) -> dict[str, float]:
    """Return loss and headline score of the best constant prediction: class frequencies, or the mean of the scores."""
    if task.regression:
        return {"loss": float(np.var(labels)), "score": 0.0}
    shares = np.bincount(labels) / len(labels)
    entropy = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    return {"loss": float(entropy), "score": float(shares.max()) if task.metrics[0] == "accuracy" else 0.0}


def row_predictions(task: Task, logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Return what is kept of every row's prediction: the class and whether it is right, or the score for regression."""
    predicted = predictions(task, logits)
    if task.regression:
        return {"score": predicted.astype(np.float32)}
    return {"class": predicted.astype(np.uint8), "correct": np.packbits(predicted == labels)}


def _metric(module: str, function: str, labels: np.ndarray, predicted: np.ndarray, **options: float) -> float:
    """Call a function of scikit-learn or SciPy; what is undefined, as a correlation with a constant, counts as 0."""
    if len(labels) < 2 and module == "scipy.stats":
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result = getattr(import_module(module), function)(labels, predicted, **options)
    value = float(getattr(result, "statistic", result))
    return value if np.isfinite(value) else 0.0


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": partial(_metric, "sklearn.metrics", "accuracy_score"),
    "f1": partial(_metric, "sklearn.metrics", "f1_score", zero_division=0.0),
    "matthews": partial(_metric, "sklearn.metrics", "matthews_corrcoef"),
    "pearson": partial(_metric, "scipy.stats", "pearsonr"),
    "spearman": partial(_metric, "scipy.stats", "spearmanr"),
}
