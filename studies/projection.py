"""What a small model of time makes of the paper's own reported times, and of more workers than it had.

The first version: constants from the paper's tables alone. Only one and 32 workers are reported there, so what lies
between and beyond is the model's, and marked as projected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from scala_lab.runs.measurement import Measurement
from scala_lab.scaling.paper_times import SECONDS
from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
ODD = 1.5
"""A cell whose fitted time is off by more than this factor is named as one that the model does not explain."""


def cells(profile: Profile) -> list[Cell]:
    """One fit per model of the paper, the same under every profile."""
    return [
        Cell(
            Measurement(
                "scala_lab.scaling.measurements:paper_projection", settings={"model": model, "workers": list(WORKERS)}
            ),
            model=model,
        )
        for model in SECONDS
    ]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Residual of every reported cell, constants, and lines over workers."""
    from scala_lab.report.timing_figures import worker_lines

    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    residuals = residual_rows(done)
    off = np.exp(np.abs(np.log(residuals["fitted / reported"])))
    odd = residuals[off > ODD]
    names = ", ".join(f"{row['model']} {row['task']} {row['row']}" for row in odd.to_dict("records"))
    notes = [
        "t = a_task B/P + overhead + exchange (P-1)/P, LAMB's extra time per step, and the noise as a share of a "
        "sample's time; fitted to the relative errors of all reported cells.",
        f"Not explained within a factor of {ODD}: {names or 'none'}.",
    ]
    projected = projection_rows(done)
    return Findings(
        tables=[
            Tabulation("", residuals, "Tables 1 and 2: reported seconds of a step beside the fit.", notes),
            Tabulation("constants", constant_rows(done), "Fitted constants, in seconds."),
            Tabulation("workers", projected.pivot_table("value", "label", "workers", sort=False), _CAPTION),
        ],
        figures=[Drawing("", worker_lines(projected, "Projected time per epoch of MNLI"), _CAPTION)],
        found=f"Median error of the fit over {len(off)} reported cells: {100 * (np.median(off) - 1):.0f}%; "
        f"{len(odd)} cells off by more than {ODD}x.",
    )


_CAPTION = "Projected seconds per epoch of MNLI; reported are 1 and 32 workers at B=32 and 32 at B=1K."


def residual_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per reported cell."""
    import pandas as pd

    return pd.DataFrame(
        {"model": fit["model"], "row": row, "task": task, "reported": reported, "fitted": fitted}
        | {"fitted / reported": fitted / reported}
        for fit in done.to_dict("records")
        for row, task, reported, fitted in zip(fit["row"], fit["task"], fit["reported"], fit["fitted"], strict=True)
    )


def constant_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per model."""
    names = [name for name in done.columns if name.startswith("sample_")]
    names += ["overhead", "exchange", "optimizer", "noise"]
    return done[["model", *names]].rename(columns=lambda name: name.replace("sample_", "sample of "))


def projection_rows(done: pd.DataFrame) -> pd.DataFrame:
    """One row per model, batch size and number of workers."""
    import pandas as pd

    return pd.DataFrame(
        {"label": f"{fit['model']}, B = {batch}", "workers": workers, "value": seconds}
        for fit in done.to_dict("records")
        for batch in (32, 1024)
        for workers, seconds in zip(fit["projected_workers"], fit[f"projected_{batch}"], strict=True)
        if seconds is not None
    )


STUDY = Study(
    name="projection",
    title="Projection",
    question="Does one small model of time explain the paper's tables, and what does it say of more workers?",
    cells=cells,
    analyse=analyse,
)

if __name__ == "__main__":
    from scala_lab.study.discovery import main

    raise SystemExit(main(STUDY))
