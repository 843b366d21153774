"""What there is to learn: the GLUE tasks and the embedded ones, with columns, labels and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
