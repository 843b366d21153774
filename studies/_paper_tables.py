"""The numbers of the paper's Tables 1 to 6, to stand beside ours, with its slips as printed; times are seconds.

The tables are files: studies/paper/table_1.csv and so on, with the columns of ours. In steps.csv, its step counts stand
beside those of six epochs over all rows, the last batch of each smaller.
"""

from collections.abc import Sequence
from pathlib import Path

from scala_lab.study import DataFrame, Tabulation
from scala_lab.timing.paper_times import ROWS

TASKS = ("MNLI-m", "QNLI", "QQP", "SST-2")
BERT, ROBERTA = "BERT-base", "RoBERTa-large"


def paper_table(number: int, notes: Sequence[str] = ()) -> Tabulation:
    """Return a table of the paper with the columns of ours, to stand below it."""
    return Tabulation("paper", read_table(f"table_{number}"), f"Table {number} as the paper has it.", notes)


def read_table(name: str) -> DataFrame:
    """Read a file of studies/paper; its rows are named by task, or by model, method, workers and batch size."""
    import pandas as pd

    table = pd.read_csv(Path(__file__).with_name("paper") / f"{name}.csv")
    return table.set_index([key for key in ("task", "model", "method", "workers", "batch size") if key in table])


def published(model: str) -> dict[str, float]:
    """Return the accuracies that the authors of an encoder published, by task, where Table 1 has them."""
    row = read_table("table_1").query("model == @model and workers.isna()").iloc[0]
    return row[[f"{task} accuracy" for task in TASKS]].set_axis(TASKS).dropna().to_dict()


def speedups(slow: str, fast: str) -> list[float]:
    """Return how many times faster one row of Table 1 is than another, as `ROWS` names them, per model and task."""
    _, _, *slow_seconds = ROWS[slow]
    _, _, *fast_seconds = ROWS[fast]
    return [
        many / few for pair in zip(slow_seconds, fast_seconds, strict=True) for many, few in zip(*pair, strict=True)
    ]


STEPS_NOTE = (
    "At B=1024 the paper's counts are those of 3 epochs of batches of 512, not of 6 epochs of batches of 1024: about "
    "as many steps over half as many rows. It reports 6 epochs and does not say where the counts come from. Runs here "
    "make 6 epochs, the last batch of each smaller and weighted by its size."
)
