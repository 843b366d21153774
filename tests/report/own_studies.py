"""Small studies in files of their own, for tests of reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scala_lab.report.chapter import Manifest
from scala_lab.study.api import find_study
from scala_lab.sweep.store import Records
from tests.report.made_up import made_up_records

STUDY = """
import pandas as pd
from scala_lab.study.verdicts import Claim, above, record
from scala_lab.report.figures.style import new_figure, styled
from scala_lab.study.statistics import Estimate
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation

def cells(profile):
    return [
        Cell(profile.spec("mini-sst2", method, 512, seed=seed), method=method, seed=seed)
        for method in ("plain", "lamb") for seed in (0, 1)
    ]

def analyse(profile, frame):
    {before}
    figure = new_figure(3, 2)
    figure.subplots().plot(frame["score"], label={label!r})
    figure.legend()
    claim = Claim({claim!r}, "Table 9", {name!r}, "A <b>bold</b> & plain claim", "1 > 0", "by rule")
    gain = Estimate(0.5, 0.25, 0.75, 3, 2.0, "points")
    return Findings(
        [Tabulation("", frame[["method", "seed", "score"]], "Table 9. Scores", ["Budget: 6 epochs."]), *{more}],
        [Drawing("", figure, "Figure 9. Scores")],
        [record(claim, [above("a over b", gain)])],
        "It <i>helps</i>.",
    )

STUDY = Study({name!r}, {title!r}, "Does it help?", cells, analyse, "Table 9", "It helps by 1 & more.")
"""


def write_study(
    folder: Path,
    name: str,
    *,
    title: str = "Scores",
    claim: str = "X1",
    before: str = "pass",
    label: str = "score",
    more: str = "()",
) -> str:
    """Write a study of four runs, whose analysis can be made to do something first; returns its reference."""
    file = folder / f"{name}.py"
    file.write_text(STUDY.format(name=name, title=title, claim=claim, before=before, label=label, more=more))
    return str(file)


def records_of(*references: str) -> Records:
    """Made-up runs for everything that studies need."""
    profile = Manifest("embedded").load_profile()
    return made_up_records([cell for reference in references for cell in find_study(reference).cells(profile)])


@contextmanager
def forgotten_imports() -> Iterator[None]:
    """Forget modules that were imported in the block, so that a file of the same name can be imported anew."""
    path, modules = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if isinstance(getattr(sys.modules[name], "__file__", None), str) and hasattr(sys.modules[name], "STUDY"):
                del sys.modules[name]
