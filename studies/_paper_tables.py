"""The numbers of the paper's Tables 1 to 6, to stand beside ours, with its slips as printed; times are seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from scala_lab.study import DataFrame, Tabulation
from scala_lab.study.tables import data_frame

TASKS = ("MNLI-m", "QNLI", "QQP", "SST-2")
GLUE_ROWS = (392_702, 104_743, 363_846, 67_349)
"""Training rows of the four tasks."""
EPOCHS = 6
STEPS_32, STEPS_1K = (73_632, 19_644, 68_226, 12_630), (2_301, 615, 2_133, 396)
BERT, ROBERTA = "BERT-base", "RoBERTa-large"


class Line(NamedTuple):
    """A row as printed: the values of its index, accuracies by task, F1 of QQP, average, times, steps."""

    names: tuple[Any, ...]
    accuracies: tuple[float, ...]
    f1: float | None = None
    average: float | None = None
    times: tuple[int, ...] | None = None
    steps: tuple[int, ...] | None = None


_BERT_32 = ((84.8, 90.6, 91.0, 93.1), 88.0, 89.4)
_BERT_SCALA = ((85.1, 90.0, 90.9, 93.5), 87.7, 89.4)
_BERT_SCALA_TIMES = (1323, 432, 4229, 151)
_ROBERTA_32 = ((90.5, 94.7, 92.0, 96.4), 89.4, 92.5)
_ROBERTA_SCALA = ((90.9, 95.1, 92.3, 96.7), 89.8, 92.9)
_ROBERTA_SCALA_TIMES = (3363, 1168, 2404, 401)
_BASELINE_1K = ((84.3, 89.3, 89.6, 93.0), 86.1)
_LAMB_1K = ((84.1, 89.6, 90.5, 92.4), 87.0, 88.6)
_LAMB_TIMES = (1180, 359, 2978, 139)

SMALL_BATCH = "small-batch baseline"

TABLE_1 = (
    Line((BERT, "Devlin et al., 2019", None, None), (84.4, 88.4, math.nan, 92.7)),
    Line((BERT, SMALL_BATCH, 1, 32), *_BERT_32, (19635, 5535, 16494, 2736), STEPS_32),
    Line((BERT, SMALL_BATCH, 32, 32), *_BERT_32, (8848, 2408, 11311, 1494), STEPS_32),
    Line((BERT, "ScaLA", 32, 1024), *_BERT_SCALA, _BERT_SCALA_TIMES, STEPS_1K),
    Line((ROBERTA, "Liu et al., 2020", None, None), (90.2, 94.7, 92.2, 96.4)),
    Line((ROBERTA, SMALL_BATCH, 1, 32), *_ROBERTA_32, (43090, 14188, 40945, 4940), STEPS_32),
    Line((ROBERTA, SMALL_BATCH, 32, 32), *_ROBERTA_32, (18114, 4842, 16614, 3072), STEPS_32),
    Line((ROBERTA, "ScaLA", 32, 1024), *_ROBERTA_SCALA, _ROBERTA_SCALA_TIMES, STEPS_1K),
)
TABLE_2 = (
    Line((BERT, "baseline", 1024), *_BASELINE_1K, 88.4, (1148, 349, 2892, 134), STEPS_1K),
    Line((BERT, "LAMB", 1024), *_LAMB_1K, _LAMB_TIMES, STEPS_1K),
    Line((BERT, "ScaLA", 1024), *_BERT_SCALA, _BERT_SCALA_TIMES, STEPS_1K),
    Line((ROBERTA, "baseline", 1024), (90.1, 94.3, 91.7, 95.9), 89.1, 92.1, (2514, 936, 1874, 317), STEPS_1K),
    Line((ROBERTA, "LAMB", 1024), (90.5, 94.5, 91.3, 96.2), 88.5, 92.1, (2646, 973, 1998, 324), STEPS_1K),
    Line((ROBERTA, "ScaLA", 1024), *_ROBERTA_SCALA, _ROBERTA_SCALA_TIMES, STEPS_1K),
)
TABLE_3 = (
    Line((SMALL_BATCH, 32), *_BERT_32, (19635, 5535, 16494, 2736)),
    Line(("ScaLA", 1024), *_BERT_SCALA, _BERT_SCALA_TIMES),
    Line(("without delay", 1024), (85.2, 90.2, 91.3, 93.1), 88.3, 89.5, (2503, 726, 6407, 272)),
    Line(("without group-wise rates", 1024), (85.0, 89.9, 90.7, 93.0), 87.6, 89.2, (1290, 422, 4212, 146)),
    Line(("without PGA-1", 1024), *_LAMB_1K, _LAMB_TIMES),
)
TABLE_4 = (
    Line((SMALL_BATCH, 32), (84.8, 93.1), times=(8848, 2736)),
    Line(("FreeLB", 1024), (85.1, 93.3), times=(3773, 389)),
    Line(("ScaLA", 1024), (85.1, 93.5), times=(1323, 151)),
)
TABLE_5 = (
    Line(("baseline",), *_BASELINE_1K, 88.4),
    Line(("Gaussian noise",), (84.5, 89.4, 90.3, 92.6), 87.0, 88.7),
    Line(("ScaLA (GT)",), (84.1, 89.6, 90.7, 93.2), 87.6, 89.0),
    Line(("ScaLA (LP)",), *_BERT_SCALA),
)
TABLE_6 = (
    Line((SMALL_BATCH, 32), *_BERT_32),
    Line(("baseline, tuned rate", 1024), *_BASELINE_1K, 88.5),
    Line(("baseline, rule's rate", 1024), (83.9, 89.2, 90.6, 92.5), 87.4, 88.7),
    Line(("ScaLA, tuned rate", 1024), *_BERT_SCALA),
    Line(("ScaLA, rule's rate", 1024), (84.9, 90.8, 91.4, 92.9), 88.4, 89.7),
)


def published(model: str) -> dict[str, float]:
    """Return the accuracies that the authors of an encoder published, by task, where Table 1 has them."""
    line = next(line for line in TABLE_1 if line.names[0] == model and line.times is None)
    return {task: value for task, value in zip(TASKS, line.accuracies, strict=True) if value == value}


def speedups(slow: tuple[str, int], fast: tuple[str, int]) -> list[float]:
    """Return how many times faster one row of Table 1 is than another, each by method and GPUs, per model and task."""
    times = {line.names[:3]: line.times or () for line in TABLE_1}
    pairs = [zip(times[(model, *slow)], times[(model, *fast)], strict=True) for model in (BERT, ROBERTA)]
    return [slow_time / fast_time for pair in pairs for slow_time, fast_time in pair]


def paper_table(
    number: int,
    lines: Sequence[Line],
    index: Sequence[str] = ("method", "batch_size"),
    tasks: Sequence[str] = TASKS,
    notes: Sequence[str] = (),
) -> Tabulation:
    """Return a table of the paper with the columns of ours, to stand below it."""
    names = [name.replace("_", " ") for name in index]
    rows = []
    for line in lines:
        row: dict[str, Any] = dict(zip(names, line.names, strict=True))
        shown = {"steps": line.steps, "time (s)": line.times, "accuracy": line.accuracies}
        for i, task in enumerate(tasks):
            row |= {f"{task} {heading}": values[i] for heading, values in shown.items() if values}
            if task == "QQP":
                row[f"{task} F1"] = line.f1
        if line.average is not None:
            row["Avg."] = line.average
        rows.append(row)
    return Tabulation("paper", data_frame(rows).set_index(names), f"Table {number} as the paper has it.", notes)


def step_counts() -> DataFrame:
    """Return the paper's step counts beside those of six epochs over all rows, the last batch of each smaller."""
    rows = [
        {
            "task": task,
            "rows": count,
            "B=32, paper": small,
            "B=32, 6 epochs": EPOCHS * math.ceil(count / 32),
            "B=1024, paper": large,
            "B=1024, 6 epochs": EPOCHS * math.ceil(count / 1024),
            "B=512, 3 epochs": 3 * math.ceil(count / 512),
        }
        for task, count, small, large in zip(TASKS, GLUE_ROWS, STEPS_32, STEPS_1K, strict=True)
    ]
    return data_frame(rows).set_index("task")


STEPS_NOTE = (
    "At B=1024 the paper's counts are those of 3 epochs of batches of 512, not of 6 epochs of batches of 1024: about "
    "as many steps over half as many rows. It reports 6 epochs and does not say where the counts come from. Runs here "
    "make 6 epochs, the last batch of each smaller and weighted by its size."
)
