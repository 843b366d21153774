"""All benchmarks in one table, and a figure for each area.

    python benchmarks/summary.py

Reads results/*.json, prints measure, ours, peer, ratio, goal, limit, share of the limit and whether the goal is met,
and draws results/<area>.png and .svg. It knows of no single benchmark: whatever writes measures is in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from figures import figure_of
from measures import RESULTS, read_results
from tables import print_measures

from scala_lab.report.figures.style import save_figure


@dataclass(frozen=True)
class Options:
    """Where the results are."""

    results: Path = RESULTS
    """Folder of the results, and of the figures."""


def main(options: Options) -> None:
    """Print the table and draw the figures."""
    results = read_results(options.results)
    print_measures(results)
    for result in results:
        save_figure(figure_of(result), options.results / result.area)
    judged = [measure.met for result in results for measure in result.measures if measure.met is not None]
    print(f"{sum(judged)} of {len(judged)} goals met")


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
