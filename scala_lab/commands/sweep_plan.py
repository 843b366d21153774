"""`--dry-run`: what a sweep has to do, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scala_lab.runs.cell import Cell

if TYPE_CHECKING:
    from scala_lab.runs.estimate import SweepEstimate


def print_plan(cells: Mapping[str, Sequence[Cell]], folder: Path, processes: int | None) -> None:
    """Print runs, steps, forward passes and time of each study and of all, and how much of it is done.

    Args:
        cells: By study.
        folder: The store, where what is done lies.
        processes: Runs at once.
    """
    from rich.table import Table

    from scala_lab.commands.summary import result_console
    from scala_lab.runs.estimate import estimate
    from scala_lab.runs.store import ENDED, RunStore

    store = RunStore(folder)
    everything = [cell for needed in cells.values() for cell in needed]
    table = Table("study")
    for heading in ("runs", "measurements", "steps", "forward passes", "time here"):
        table.add_column(heading, justify="right")
    for name, needed in cells.items():
        table.add_row(name, *_row(estimate(needed, store=store, processes=processes)))
    table.add_section()
    total = estimate(everything, store=store, processes=processes)
    table.add_row("all, shared runs once", *_row(total), style="bold")
    console = result_console()
    console.print(table)
    by_status = store.by_status(everything)
    done = sum(len(found) for status, found in by_status.items() if status in ENDED)
    console.print(f"{done} of {total.runs + total.measurements} are done in {folder}.", highlight=False)
    for note in total.notes:
        console.print(note[0].upper() + note[1:] + ".", highlight=False)


def _row(work: SweepEstimate) -> list[str]:
    from scala_lab.runs.progress import describe_seconds

    time = "unknown" if work.seconds is None else describe_seconds(work.seconds)
    return [f"{work.runs:,}", f"{work.measurements:,}", f"{work.steps:,}", f"{work.forward_passes:,.0f}", time]
