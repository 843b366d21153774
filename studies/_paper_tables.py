"""The numbers of the paper's Tables 1 to 6, to stand beside ours, with its slips as printed; times are seconds.

The tables are files: studies/paper/table_1.csv and so on, with the columns of ours.
"""

import math
from collections.abc import Sequence
from pathlib import Path

from scala_lab.study import DataFrame, Tabulation
from scala_lab.study.tables import data_frame
from scala_lab.timing.paper_times import LARGE_STEPS, SECONDS, SMALL_STEPS

TASKS = ("MNLI-m", "QNLI", "QQP", "SST-2")
GLUE_ROWS = (392_702, 104_743, 363_846, 67_349)
"""Training rows of the four tasks."""
EPOCHS = 6
BERT, ROBERTA = "BERT-base", "RoBERTa-large"


def paper_table(number: int, notes: Sequence[str] = ()) -> Tabulation:
    """Return a table of the paper with the columns of ours, to stand below it."""
    return Tabulation("paper", printed(number), f"Table {number} as the paper has it.", notes)


def printed(number: int) -> DataFrame:
    """Read a table of the paper; its rows are named by model, method, workers and batch size, as far as they differ."""
    import pandas as pd

    table = pd.read_csv(Path(__file__).with_name("paper") / f"table_{number}.csv")
    return table.set_index([name for name in ("model", "method", "workers", "batch size") if name in table])


def published(model: str) -> dict[str, float]:
    """Return the accuracies that the authors of an encoder published, by task, where Table 1 has them."""
    row = printed(1).query("model == @model and workers.isna()").iloc[0]
    return row[[f"{task} accuracy" for task in TASKS]].set_axis(TASKS).dropna().to_dict()


def speedups(slow: str, fast: str) -> list[float]:
    """Return how many times faster one row of Table 1 is than another, as `SECONDS` names them, per model and task."""
    pairs = [pair for times in SECONDS.values() for pair in zip(times[slow], times[fast], strict=True)]
    return [slow_time / fast_time for slow_time, fast_time in pairs]


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
        for task, count, small, large in zip(TASKS, GLUE_ROWS, SMALL_STEPS, LARGE_STEPS, strict=True)
    ]
    return data_frame(rows).set_index("task")


STEPS_NOTE = (
    "At B=1024 the paper's counts are those of 3 epochs of batches of 512, not of 6 epochs of batches of 1024: about "
    "as many steps over half as many rows. It reports 6 epochs and does not say where the counts come from. Runs here "
    "make 6 epochs, the last batch of each smaller and weighted by its size."
)
