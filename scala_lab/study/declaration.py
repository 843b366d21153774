"""A study is a declaration: which runs and measurements it needs, and how to read them.

`cells` names what is needed and under which words the study knows it; `analyse` gets one row per cell, with these
words as columns beside what was found, and returns tables, figures and verdicts. A study does not train: runs are
addressed by their spec, so a run that six studies need is trained once.

Example:
    A study in one file::

        def cells(profile):
            return [
                Cell(profile.spec(task, method, profile.large_batch, seed=seed), task=task, method=method, seed=seed)
                for task in profile.tasks
                for method in ("lamb", "scala")
                for seed in profile.seeds
            ]

        def analyse(profile, frame):
            table = frame.pivot_table("score", "method", "task")
            return Findings(tables=[Tabulation("scores", table, "Scores by method and task.")])

        STUDY = Study("mine", "My study", "Does it help?", cells, analyse)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scala_lab.runs.cell import Cell

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.claims.record import ClaimRecord
    from scala_lab.study.profiles import Profile


@dataclass(frozen=True)
class Tabulation:
    """A table for the report.

    Attributes:
        name: Part of the file's name, after the study's; '' for the study's main table.
        frame: Its index, where it has names, becomes the first columns.
        caption: With the paper's number of the table, where it has one.
        notes: Below the table: budget, edge-best rates, what is projected.
    """

    name: str
    frame: pd.DataFrame
    caption: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure for the report.

    Attributes:
        name: Part of the file's name, after the study's; '' for the study's main figure.
        figure: Ready to save.
        caption: With the paper's number of the figure, where it has one.
    """

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Findings:
    """What a study returns.

    Attributes:
        tables: In the order of the page.
        figures: In the order of the page.
        claims: Verdicts on claims of the paper, and on ours.
        found: One to three sentences with numbers, computed from this run, to stand beside what the paper found.
    """

    tables: Sequence[Tabulation] = ()
    figures: Sequence[Drawing] = ()
    claims: Sequence[ClaimRecord] = ()
    found: str = ""


@dataclass(frozen=True)
class Study:
    """A question, the runs that answer it, and how to read them.

    Attributes:
        name: As in `scala-lab study NAME`; also the start of its files' names.
        title: Heading of its page.
        question: One sentence.
        cells: What is needed under a profile.
        analyse: From the rows of the cells to findings. Called only when at least one cell is there; rows of cells
            that were not run have status `missing`, failed ones `failed`, diverged ones `diverged`.
        source: Figure or table of the paper; '' for a study beyond it.
        paper_found: What the paper reports, in our words and its figures.
    """

    name: str
    title: str
    question: str
    cells: Callable[[Profile], list[Cell]]
    analyse: Callable[[Profile, pd.DataFrame], Findings]
    source: str = ""
    paper_found: str = ""
