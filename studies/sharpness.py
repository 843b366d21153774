"""Figure 1(c), claims C5 and C6: the top Hessian eigenvalue where each method ends, and how it varies with samples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.statistics import Estimate
from scala_lab.study.tables import data_frame
from scala_lab.study.variants import LAMB, SCALA
from scala_lab.study.verdicts import Claim, ClaimRecord, above, ratio, record
from studies._checkpoints import ALL, LARGE, RATE_NOTE, SMALL, measured_cells

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

MAX_POWER_PRODUCTS = 30
"""Maximum Hessian products of the check by power iteration: it needs far more than Lanczos for the same residual."""


def measure(
    runs: Sequence[RunResult],
    *,
    samples: int,
    sets: int,
    tol: float = 1e-3,
    max_products: int = 300,
    power_products: int = 0,
    power_tol: float = 1e-2,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Measure a run's top eigenvalue on disjoint sets of rows by Lanczos, and check the first by power iteration.

    A residual r bounds the relative error of an eigenvalue by r. `power_products` limits the check, 0 for none.
    `threads` is set by the caller: it is part of what determines the last bits. In the result, `deviation` is the
    standard deviation over the sets, None for one; `score` is the run's headline metric in percent.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs

    loaded = load_run(runs[0], samples, sets, seed)
    values, residuals, hvps, losses = [], [], 0, []
    power: dict[str, Any] = {}
    for batches in loaded.sets:
        op = HessianOperator(loaded.model, batches)
        top = top_eigenpairs(op, 1, tol, max_products=max_products, seed=seed)
        values += top.eigenvalues.tolist()
        residuals += top.residuals.tolist()
        hvps += top.hvps
        losses.append(op.loss())
        if power_products and not power:
            check = top_eigenpairs(op, 1, power_tol, solver="power", max_products=power_products, seed=seed)
            power = {f"power_{name}": value for name, value in check.first().items()} | {"power_hvps": check.hvps}
    return {
        "eigenvalue": float(np.mean(values)),
        "deviation": float(np.std(values, ddof=1)) if sets > 1 else None,
        "eigenvalues": values,
        "residuals": residuals,
        "converged": max(residuals) <= tol,
        "tolerance": tol,
        "hvps": hvps,
        "loss": float(np.mean(losses)),
        "score": next((100 * value for split in runs[0].metrics.values() for value in split.values()), None),
        **power,
    }


def cells(profile: Profile) -> list[Cell]:
    """Return five methods on the task of the paper's figure, with every seed; the first seed is checked."""
    plan = profile.curvature
    settings = {"samples": plan.samples, "sets": plan.sets, "tol": plan.tol, "threads": plan.threads}

    def by_seed(seed: int) -> dict[str, Any]:
        return {**settings, "power_products": MAX_POWER_PRODUCTS if seed == profile.seeds[0] else 0}

    return measured_cells(profile, measure, by_seed, ALL, profile.seeds)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw bars, tabulate eigenvalues with their residuals, and judge the claims."""
    done = frame[frame["status"] == "finished"]
    if done.empty:
        return Findings()
    plan, task = profile.curvature, done["task"].iloc[0]
    notes = [
        f"Top eigenvalue of the Hessian of the mean training loss over {plan.sets} disjoint sets of {plan.samples} "
        f"rows of {task}, without dropout; mean over sets and seeds. Deviation: over the sets, mean over seeds.",
        f"Lanczos to the residual shown. Power iteration, the paper's method, as a check on the first set of the first "
        f"seed: its eigenvalue over Lanczos's after at most {MAX_POWER_PRODUCTS} products.",
        "ScaLA differs from the baselines in its optimizer and in its noise; LAMB's row shows what the optimizer does.",
        f"{RATE_NOTE} Budget: {profile.settings['epochs']} epochs; passes: forward passes over the training rows, a "
        "backward counted as two.",
    ]
    lost = frame[frame["status"] != "finished"]
    if len(lost):
        notes.append(f"Without a result: {', '.join(sorted(set(lost['method'])))} ({len(lost)} runs).")
    caption = f"Figure 1(c): top eigenvalue on {task}, mean and deviation over sets and seeds."
    return Findings(
        tables=[Tabulation("", sharpness_table(done), "Figure 1(c): sharpness at the end of training.", notes)],
        figures=[Drawing("", _bars(done), caption)],
        claims=[c5(done), c6(done)],
        found=_sentence(done),
    )


def sharpness_table(done: DataFrame) -> DataFrame:
    """Return one row per method."""
    rows = []
    for method, runs in done.groupby("method", sort=False):
        over_small, check = Estimate(1.0, 1.0, 1.0, len(runs)), runs[runs["power_hvps"].notna()]
        if method != SMALL.method:
            over_small = ratio(done, method, SMALL.method, value="eigenvalue")
        rows.append(
            {
                "method": method,
                "B": runs["batch_size"].iloc[0],
                "rate": runs["rate"].iloc[0],
                "seeds": len(runs),
                "passes": runs["passes"].iloc[0],
                "top eigenvalue": runs["eigenvalue"].mean(),
                "deviation": runs["deviation"].astype(float).mean(),
                "over small batch": over_small.value,
                "low": over_small.low if over_small.decided else np.nan,
                "high": over_small.high if over_small.decided else np.nan,
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
    return data_frame(rows)


def _bars(done: DataFrame) -> Any:
    from scala_lab.report.figures.curvature import sharpness_bars

    rows = [
        (f"{run['method']} (B = {run['batch_size']})", value, residual <= run["tolerance"])
        for run in done.to_dict("records")
        for value, residual in zip(run["eigenvalues"], run["residuals"], strict=True)
    ]
    figure = sharpness_bars(data_frame(rows, ["checkpoint", "eigenvalue", "converged"]))
    figure.axes[0].set_xlabel(
        "top eigenvalue (nats per squared unit of weight)\nmean and standard deviation over seeds and sets of samples"
    )
    return figure


def _sentence(done: DataFrame) -> str:
    parts = []
    for left, right in ((LARGE, SMALL), (LARGE, SCALA), (SMALL, SCALA), (LAMB, SCALA)):
        over = ratio(done, left.method, right.method, value="eigenvalue")
        parts += [f"{left.method} over {right.method} {over}"] if over.n else []
    return f"Top eigenvalue: {'; '.join(parts)}." if parts else ""


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


def c5(frame: DataFrame) -> ClaimRecord:
    """Judge large batch against small batch.

    The frame has one row per run: task, method, seed, eigenvalue (mean over disjoint sets of rows), deviation
    (standard deviation over them; nan for one set) and converged. Runs whose eigenvalue did not converge are left out.
    """
    converged = frame[frame["converged"].astype(bool)]
    parts = [
        above(f"{value}, large over small batch", ratio(converged, LARGE.method, SMALL.method, value=value), 1.0)
        for value in ("eigenvalue", "deviation")
    ]
    return record(C5, parts)


def c6(frame: DataFrame) -> ClaimRecord:
    """Judge ScaLA against both batch sizes, by the frame of `c5`; runs that did not converge are left out."""
    converged = frame[frame["converged"].astype(bool)]
    parts = [
        above(f"eigenvalue, {batch} over ScaLA", ratio(converged, batch, SCALA.method, value="eigenvalue"), 1.0)
        for batch in (LARGE.method, SMALL.method)
    ]
    return record(C6, parts)


STUDY = Study(
    name="sharpness",
    title="Sharpness",
    question="Does a large batch end in a sharper place than a small one, and ScaLA in a flatter one?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(c)",
    paper_found="BERT-base on MNLI: the top eigenvalue at B=1K is 2.6x that at B=32, its deviation 3.9x; ScaLA's is "
    "6.9x smaller than B=1K's, slightly below B=32's.",
    claims=(C5, C6),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
