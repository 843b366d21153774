"""Measures as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from measures import Measure, Result

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("measure", "ours", "peer", "ratio", "goal", "limit", "share of limit", "met")
SIGNS = {"at least": ">=", "at most": "<="}


def cells(measure: Measure) -> tuple[str, ...]:
    """One measure in the order of `COLUMNS`."""
    goal = "" if measure.goal is None else f"{SIGNS[measure.bound]} {measure.goal:g}"
    share = "" if measure.share_of_limit is None else f"{measure.share_of_limit:.0%}"
    return (
        measure.name,
        value(measure.ours, measure.unit, measure.ours_range),
        "" if measure.peer is None else f"{measure.peer_name}: {value(measure.peer, measure.unit, measure.peer_range)}",
        "" if measure.ratio is None else number(measure.ratio),
        goal,
        "" if measure.limit is None else number(measure.limit),
        share,
        {None: "", True: "yes", False: "no"}[measure.met],
    )


def value(median: float, unit: str, spread: Sequence[float] | None = None) -> str:
    """A value with its unit, and the range of the rounds where they differ."""
    text = f"{number(median)} {unit}".rstrip()
    if spread is None or number(spread[0]) == number(spread[1]):
        return text
    return f"{text} ({number(spread[0])}-{number(spread[1])})"


def number(value: float) -> str:
    """Three digits, and never in powers of ten for what people count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def measures_table(results: Sequence[Result]) -> Table:
    """All measures, area by area."""
    from rich.table import Table

    table = Table(*COLUMNS)
    for result in results:
        table.add_section()
        table.add_row(f"[bold]{result.title}[/bold]")
        for measure in result.measures:
            table.add_row(*cells(measure), style="bold red" if measure.met is False else None)
    return table


def print_measures(results: Sequence[Result]) -> None:
    """To the terminal, or as wide as it needs to be into a file."""
    from rich.console import Console

    console = Console()
    (console if console.is_terminal else Console(width=180)).print(measures_table(results))
