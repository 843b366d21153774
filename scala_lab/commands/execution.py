"""Carrying out many runs: the flags that `study`, `reproduce` and `sweep` share, and their dry run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from rich.table import Table

from scala_lab.cli import result_console
from scala_lab.errors import check_at_least
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.engine import Executor
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.slurm import SlurmCluster, SlurmOptions
from scala_lab.sweep.store import ENDED, RunStore


@dataclass(frozen=True)
class ExecutionOptions:
    """Where and how runs are trained."""

    executor: Literal["local", "slurm"] = "local"
    """local: processes on this machine; slurm: array jobs on a cluster."""
    processes: int | None = None
    """Runs at once; default as many as the cores have room for."""
    dry_run: bool = False
    """Print what there is to do and what it costs, and do nothing."""
    retry_failed: bool = False
    """Try again what failed before; else it stays failed."""
    slurm: SlurmOptions = field(default_factory=SlurmOptions)

    def __post_init__(self) -> None:
        check_at_least(1, processes=self.processes)

    def open_executor(self) -> Executor:
        """Return what carries out the jobs."""
        return SlurmCluster(self.slurm, self.processes) if self.executor == "slurm" else LocalPool(self.processes)


def print_plan(groups: Mapping[str, Sequence[Cell]], heading: str, store: RunStore, processes: int | None) -> None:
    """Print runs, epochs, steps, forward passes and time of each group and of all, and how much of it is done.

    Epochs that branches share with their trunks are counted in the first column of epochs alone.
    """
    from scala_lab.sweep.cost import describe_seconds, estimate

    table, all_cells = Table(heading), list(chain(*groups.values()))
    for name in ("runs", "measurements", "epochs", "of which shared", "steps", "forward passes", "time here"):
        table.add_column(name, justify="right")
    for name, group in (*groups.items(), ("all, shared runs once", all_cells)):
        work = estimate(group, store, processes)
        time = "unknown" if work.seconds is None else describe_seconds(work.seconds)
        numbers = (work.runs, work.measurements, work.epochs, work.shared_epochs, work.steps, work.forward_passes)
        if group is all_cells:
            table.add_section()
        texts = [f"{number:,.0f}" for number in numbers]
        table.add_row(name, *texts, time, style="bold" if group is all_cells else None)
    console = result_console()
    console.print(table)
    done = sum(len(items) for status, items in store.by_status(all_cells).items() if status in ENDED)
    console.print(f"{done} of {work.runs + work.measurements} are done in {store.root}.", highlight=False)
    for note in work.notes:
        console.print(note[0].upper() + note[1:] + ".", highlight=False)
