"""Small studies in files of their own, for tests of reports."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scala_lab.report.chapter import Manifest
from scala_lab.study.api import find_study
from scala_lab.study.tuning import Choices
from scala_lab.sweep.store import Records
from tests.report.made_up import made_up_records, made_up_run

STUDY = """
import pandas as pd
from scala_lab.study.verdicts import Claim, effect, record
from scala_lab.report.figures.style import new_figure, styled
from scala_lab.study.statistics import mean_interval
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
    gain = mean_interval([0.4, 0.5, 0.6], "points")
    return Findings(
        [Tabulation("", frame[["method", "seed", "score"]], "Table 9. Scores", ["Budget: 6 epochs."]), *{more}],
        [Drawing("", figure, "Figure 9. Scores")],
        [record(claim, [effect("a over b", gain, 0.8)])],
        "It <i>helps</i>.",
    )

STUDY = Study({name!r}, {title!r}, "Does it help?", cells, analyse, "Table 9", "It helps by 1 & more.")
"""

FIVE = """
from scala_lab.report.figures.forest import difference_figure
from scala_lab.report.figures.timing import worker_lines
from scala_lab.study import Drawing, Findings, Study
from scala_lab.study.gates import Gate
from scala_lab.study.statistics import mean_interval
from scala_lab.study.tables import data_frame
from scala_lab.study.variants import BASELINE, LAMB, MethodVariant, arm_cells
from scala_lab.study.verdicts import Claim, at_most, effect, equivalent, judge, no_worse, record

def claim(number, what):
    return Claim(f"C{number}", f"Table {number}", "five", f"Claim {number} is {what}.", "+0.8", "As the module says.")

def points(*values):
    return mean_interval(values, "points")

EFFECTIVE = MethodVariant("ScaLA-effective", "scala-effective", radius="omega rho")
PASSED = Gate("fitted", True, "training loss at most 0.21 of chance's")
FAILED = Gate("fitted", False, "LAMB ends at 0.93 of chance's loss", "training until the loss is at most 0.5")

def supported(frame):
    parts = [effect("ScaLA - LAMB", points(0.9, 0.6, 0.8), 0.8),
             no_worse("LAMB - baseline", points(0.1, -0.1, 0.0), 0.4),
             effect("time of the baseline over ScaLA's", mean_interval([9.0, 9.9, 8.1], "x"), 12.0)]
    return record(claim(1, "supported"), parts, [PASSED])

RECORDS = [
    record(claim(2, "null"), [effect("LP - GT", points(0.02, -0.05, 0.01), 0.8)], [PASSED]),
    record(claim(10, "reversed"), [effect("sharpness, large over small", mean_interval([0.3, 0.4, 0.35], "x"), 2.5)]),
    record(claim(4, "undecided"), [equivalent("square-root rule - tuned", points(0.9, -0.8, 0.3), 0.4),
                                   effect("slope per doubling", points(-16.0, 18.0, 0.2), -0.3, contextual=True)]),
    record(claim(5, "not testable"), [effect("ScaLA - LAMB, t_s=3", points(1.2, -1.3, 0.4), 0.8),
                                      at_most("exponent", mean_interval([-0.51, -0.49, -0.52]), -0.4)],
           [PASSED, FAILED]),
    record(claim(6, "not measured"), []),
]

def cells(profile):
    small = arm_cells(profile, BASELINE, profile.small_batch)
    return [*small, *arm_cells(profile, [BASELINE, LAMB, EFFECTIVE], profile.large_batch)]

def analyse(profile, frame):
    claims = [judge(supported, frame), *RECORDS]
    parts = [*claims[0].parts, *RECORDS[0].parts, *RECORDS[2].parts[:1]]
    lines = data_frame([
        {"label": label, "workers": workers, "value": seconds, "low": 0.9 * seconds, "high": 1.1 * seconds,
         "measured": workers <= 2, "paper": 3.0 if workers == 32 else float("nan")}
        for label, one, power in (("B = 32", 80.0, 0.3), ("B = 256", 40.0, 0.9)) for workers in (1, 2, 4, 8, 16, 32)
        for seconds in (one / workers**power,)
    ])
    return Findings(figures=[
        Drawing("differences", difference_figure(parts, title="Paired differences"), "Table 2: paired differences."),
        Drawing("workers", worker_lines(lines, "Time over workers"), "Figure 5: time over workers."),
    ], claims=claims)

STUDY = Study("five", "Five verdicts", "Are there five?", cells, analyse, "Table 1", claims=[x.claim for x in RECORDS])
"""
"""A study with tuned arms, figures of its own and a claim of each verdict."""


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


def write_five(folder: Path) -> str:
    """Write the study with a claim of each verdict; returns its reference."""
    (folder / "five.py").write_text(FIVE)
    return str(folder / "five.py")


EMBEDDED = Manifest("embedded")
TWO_TASKS = Manifest("embedded", tasks=("mini-mnli", "mini-sst2"))


def records_of(*references: str, manifest: Manifest = EMBEDDED) -> Records:
    """Made-up runs for everything that studies need, trials first."""
    profile, records = manifest.load_profile(), Records()
    while True:
        choices = Choices(lambda spec: records.runs.get(spec.run_id))
        tuned = profile.with_choices(choices)
        cells = [cell for reference in references for cell in find_study(reference).cells(tuned)]
        if not choices.pending:
            return Records({**records.runs, **made_up_records(cells).runs})
        records.runs |= {key: made_up_run(spec) for key, spec in choices.pending.items()}


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
