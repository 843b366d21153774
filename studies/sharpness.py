"""How sharp is the place where each method ends: top eigenvalue of the Hessian, and how it varies between samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.variants import SCALA
from scala_lab.study.verdicts import Claim, ClaimRecord, above, record
from studies._checkpoints import ALL, LARGE, RATE_NOTE, SMALL, measured_cells

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from scala_lab.study.profiles import Profile
    from scala_lab.training.run_dir import RunResult

POWER_PRODUCTS = 30
"""Of the check by power iteration, which needs far more products than Lanczos for the same residual."""


def measure(runs: Sequence[RunResult], **settings: Any) -> dict[str, Any]:
    """Look at one trained checkpoint; see `scala_lab.curvature.checkpoint.sharpness`."""
    from scala_lab.curvature.checkpoint import sharpness

    return sharpness(runs, **settings)


def cells(profile: Profile) -> list[Cell]:
    """Five methods on the task of the paper's figure, with every seed."""
    plan = profile.curvature
    same = {"samples": plan.samples, "sets": plan.sets, "tol": plan.tol, "threads": plan.threads}
    checks = {profile.seeds[0]: POWER_PRODUCTS}
    return measured_cells(
        profile, measure, lambda seed: {**same, "power_products": checks.get(seed, 0)}, ALL, profile.seeds
    )


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Bars and a table of eigenvalues with their evidence, and verdicts."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    plan, task = profile.curvature, done["task"].iloc[0]
    table = sharpness_table(done)
    notes = [
        f"Top eigenvalue of the Hessian of the mean training loss over {plan.sets} disjoint sets of {plan.samples} "
        f"rows of {task}, without dropout; mean over sets and seeds. Deviation: over the sets, mean over seeds.",
        f"Lanczos to the residual shown. Power iteration, the paper's method, as a check on the first set of the first "
        f"seed: its eigenvalue over Lanczos's after at most {POWER_PRODUCTS} products.",
        "ScaLA differs from the baselines in its optimizer and in its noise; LAMB's row shows what the optimizer does.",
        f"{RATE_NOTE} Budget: {profile.settings['epochs']} epochs; passes: forward passes over the training rows, a "
        "backward counted as two.",
        *_missing(frame),
    ]
    return Findings(
        tables=[Tabulation("", table, "Figure 1(c): sharpness at the end of training.", notes)],
        figures=[
            Drawing("", _bars(done), f"Figure 1(c): top eigenvalue on {task}, mean and deviation over sets and seeds.")
        ],
        claims=[c5(done), c6(done)],
        found=_sentence(done),
    )


def sharpness_table(done: pd.DataFrame) -> pd.DataFrame:
    """One row per method."""
    import pandas as pd

    rows = []
    for method, runs in done.groupby("method", sort=False):
        ratio, check = ratio_to(done, str(method), SMALL.method), runs[runs["power_hvps"].notna()]
        rows.append(
            {
                "method": method,
                "B": runs["batch_size"].iloc[0],
                "rate": runs["rate"].iloc[0],
                "seeds": len(runs),
                "passes": runs["passes"].iloc[0],
                "top eigenvalue": runs["eigenvalue"].mean(),
                "deviation": runs["deviation"].astype(float).mean(),
                "over small batch": ratio.value,
                "low": ratio.low if ratio.decided else np.nan,
                "high": ratio.high if ratio.decided else np.nan,
                "largest residual": max(max(values) for values in runs["residuals"]),
                "converged": f"{int(runs['converged'].sum())}/{len(runs)}",
                "products": int(runs["hvps"].sum()),
                "power / Lanczos": (check["power_eigenvalue"] / [values[0] for values in check["eigenvalues"]]).mean(),
                "power residual": check["power_residual"].max(),
                "power products": int(check["power_hvps"].sum()),
                "loss": runs["loss"].mean(),
                "score": runs["score"].mean(),
            }
        )
    return pd.DataFrame(rows)


def ratio_to(done: pd.DataFrame, left: str, right: str, value: str = "eigenvalue") -> Estimate:
    """Geometric mean of one method's values over another's, paired by seed."""
    if left == right:
        return Estimate(1.0, 1.0, 1.0, int((done["method"] == left).sum()), unit="x")
    pairs = paired_columns(done[["task", "seed", "method", value]], value, "method", left, right)
    return paired_ratio(pairs["left"], pairs["right"])


def _bars(done: pd.DataFrame) -> Figure:
    import pandas as pd

    from scala_lab.report.figures.curvature import sharpness_bars

    rows = [
        (f"{run['method']} (B = {run['batch_size']})", value, residual <= run["tolerance"])
        for run in done.to_dict("records")
        for value, residual in zip(run["eigenvalues"], run["residuals"], strict=True)
    ]
    figure = sharpness_bars(pd.DataFrame(rows, columns=["checkpoint", "eigenvalue", "converged"]))
    figure.axes[0].set_xlabel(
        "top eigenvalue (nats per squared unit of weight)\nmean and standard deviation over seeds and sets of samples"
    )
    return figure


def _sentence(done: pd.DataFrame) -> str:
    small = SMALL.method
    parts = []
    for left, right in (("large batch", small), ("large batch", "ScaLA"), (small, "ScaLA"), ("LAMB", "ScaLA")):
        ratio = ratio_to(done, left, right)
        if ratio.n:
            parts.append(f"{left} over {right} {ratio}")
    return f"Top eigenvalue: {'; '.join(parts)}." if parts else ""


def _missing(frame: pd.DataFrame) -> list[str]:
    lost = frame[frame["status"] != "finished"]
    return [f"Without a result: {', '.join(sorted(set(lost['method'])))} ({len(lost)} runs)."] if len(lost) else []


C5 = Claim(
    id="C5",
    source="Figure 1(c), Section 3",
    study="sharpness",
    statement="A model trained with a large batch ends in a sharper place than one trained with a small batch, and its "
    "sharpness varies more between samples.",
    paper="top eigenvalue 2.6x, deviation 3.9x",
    rule="Ratios large over small batch, paired by seed: reproduced if the intervals of both lie above 1, "
    "contradicted if one lies below 1.",
)

C6 = Claim(
    id="C6",
    source="Figure 1(c), Section 5",
    study="sharpness",
    statement="ScaLA ends in a place much less sharp than the large-batch baseline does, and a little less sharp than "
    "the small-batch baseline.",
    paper="6.9x smaller than at the large batch; slightly below the small batch",
    rule="Ratios large batch over ScaLA and small batch over ScaLA, paired by seed: reproduced if the intervals of "
    "both lie above 1, contradicted if one lies below 1.",
)


def c5(frame: pd.DataFrame) -> ClaimRecord:
    """Large batch against small batch."""
    return record(
        C5,
        [
            above("eigenvalue, large over small batch", _ratio(frame, "eigenvalue", LARGE.method, SMALL.method), 1.0),
            above("deviation, large over small batch", _ratio(frame, "deviation", LARGE.method, SMALL.method), 1.0),
        ],
    )


def c6(frame: pd.DataFrame) -> ClaimRecord:
    """ScaLA against both."""
    return record(
        C6,
        [
            above("eigenvalue, large batch over ScaLA", _ratio(frame, "eigenvalue", LARGE.method, SCALA.method), 1.0),
            above("eigenvalue, small batch over ScaLA", _ratio(frame, "eigenvalue", SMALL.method, SCALA.method), 1.0),
        ],
    )


def _ratio(frame: pd.DataFrame, value: str, left: str, right: str) -> Estimate:
    converged = frame[frame["converged"].astype(bool)]
    pairs = paired_columns(converged[["task", "seed", "method", value]], value, "method", left, right)
    return paired_ratio(pairs["left"], pairs["right"])


STUDY = Study(
    name="sharpness",
    title="Sharpness",
    question="Does a large batch end in a sharper place than a small one, and ScaLA in a flatter one?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(c)",
    paper_found="BERT-base on MNLI: the top eigenvalue at B=1K is 2.6x that at B=32, its deviation 3.9x; ScaLA's is "
    "6.9x smaller than B=1K's, slightly below B=32's.",
    claims=(
        C5,
        C6,
    ),
)

if __name__ == "__main__":
    from scala_lab.study.api import main

    raise SystemExit(main(STUDY))
