"""Figure 1(c), claims C5 and C6: the top Hessian eigenvalue where each method ends, and how it varies with samples.

Curvature falls as a model fits its rows, so that methods are also compared at equal training loss: each run of the
paper's three methods is trained again up to where its loss first falls to the largest loss that one of the three ends
with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from scala_lab.report.figures.curvature import sharpness_bars, sharpness_over_loss
from scala_lab.report.figures.forest import difference_figure
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import LEVEL, Estimate, paired_ratio
from scala_lab.study.tables import data_frame
from scala_lab.study.variants import (
    BASELINE,
    EFFECTIVE,
    LAMB,
    SAM,
    SCALA_OTHER,
    SCALA_TUNED,
    SMALL_BATCH,
    MethodVariant,
    arm_cells,
)
from scala_lab.study.verdicts import SAME_RATIO, Claim, ClaimRecord, effect, judge, no_worse, record
from scala_lab.sweep.cells import Measurement

if TYPE_CHECKING:
    from scala_lab.curvature.checkpoint import Loaded
    from scala_lab.training.run_dir import RunResult

SIDE_BY_SIDE = (SMALL_BATCH, BASELINE, SCALA_TUNED)  # the three of the paper's figure

RATE_NOTE = "Each method at settings tuned on rows of their own; ScaLA at the better of the paper's two t_s."
METHODS = (SMALL_BATCH, BASELINE, LAMB, SCALA_TUNED, SCALA_OTHER, EFFECTIVE, SAM)
MAX_POWER_PRODUCTS, POWER_TOL = 30, 1e-2
"""Hessian products and tolerance of the check by power iteration, which needs far more than Lanczos."""
CHECKS = 8  # how often per epoch the loss of a run that is trained again is compared with the loss to be matched
RUN, MEASUREMENT, MATCHED = "run", "measurement", "matched"  # kinds of cells: runs, their ends, and at equal loss
MEASURED = ["eigenvalue", "deviation", "loss", "matched", "matched_loss", "matched_epoch"]
"""Numbers of a run that may be missing."""


def measure(
    runs: Sequence[RunResult], *, samples: int, sets: int, tol: float, power_products: int, threads: int
) -> dict[str, Any]:
    """Measure a run's top eigenvalue on disjoint sets of rows by Lanczos, and check the first by power iteration.

    A residual r bounds the relative error of an eigenvalue by r. `power_products` limits the check, 0 for none.
    `threads` is set by the caller: it is part of what determines the last bits. In the result, `deviation` is the
    standard deviation over the sets, None for one.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs

    loaded = load_run(runs[0], samples, sets)
    values, residuals, hvps, losses = [], [], 0, []
    power: dict[str, Any] = {}
    for batches in loaded.sets:
        op = HessianOperator(loaded.model, batches)
        top = top_eigenpairs(op, 1, tol)
        values += top.eigenvalues.tolist()
        residuals += top.residuals.tolist()
        hvps += top.hvps
        losses.append(op.loss())
        if power_products and not power:
            check = top_eigenpairs(op, 1, POWER_TOL, solver="power", max_products=power_products)
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
        **power,
    }


def measure_matched(
    runs: Sequence[RunResult], *, names: Sequence[str], samples: int, tol: float, threads: int
) -> dict[str, Any]:
    """Measure the top eigenvalue of several runs at one loss over the same rows, the largest that one ends with.

    A run that ends below it is trained again, with its own schedule, until its loss first falls to it. The result has
    `name:eigenvalue` (None if it did not converge), `name:loss` and `name:epoch`, where that was, for each run, and
    `target`.
    """
    from scala_lab.curvature import HessianOperator, load_run, top_eigenpairs

    loaded = [load_run(run, samples) for run in runs]
    ends = [HessianOperator(each.model, each.sets[0]).loss() for each in loaded]
    result: dict[str, Any] = {"target": max(ends)}
    for name, run, each, end in zip(names, runs, loaded, ends, strict=True):
        epoch = train_until(run, each, max(ends)) if end < max(ends) else float(run.spec.optim.epochs)
        op = HessianOperator(each.model, each.sets[0])
        top = top_eigenpairs(op, 1, tol)
        value = float(top.eigenvalues[0]) if top.converged else None
        result |= {f"{name}:eigenvalue": value, f"{name}:loss": op.loss(), f"{name}:epoch": epoch}
    return result


def train_until(run: RunResult, loaded: Loaded, target: float) -> float:
    """Train a run again, by one worker, until its loss is at most the target; return the epoch, leave the weights."""
    import torch

    from scala_lab.curvature.operator import HessianOperator, Shortcuts
    from scala_lab.training.distributed import join_world
    from scala_lab.training.preparation import prepare
    from scala_lab.training.trainer import Training

    threads, spec = torch.get_num_threads(), run.spec.override(workers=1).resolved()
    try:
        training = Training(spec, prepare(spec), join_world(spec.machine))
        training.model.train()
        per_epoch = training.plan.steps_per_epoch
        for done in range(1, training.steps + 1):
            training.accumulate(done - 1)
            training.update(done - 1)
            if done % max(1, per_epoch // CHECKS) == 0 or done == training.steps:
                loaded.model.load_state_dict(training.model.state_dict())
                if HessianOperator(loaded.model, loaded.sets[0], budget=0, shortcuts=Shortcuts()).loss() <= target:
                    break
    finally:
        torch.set_num_threads(threads)
    return done / per_epoch


def run_cells(profile: Profile, variants: Sequence[MethodVariant], **labels: Any) -> list[Cell]:
    """Return the runs of methods with every seed on the task of the paper's figures."""
    return [
        cell
        for variant in variants
        for batch_size in [profile.small_batch if variant is SMALL_BATCH else profile.large_batch]
        for cell in arm_cells(profile, variant, batch_size, profile.pair[:1], **labels)
    ]


def measured_cells(
    runs: Sequence[Cell],
    function: Callable[..., dict[str, Any]],
    settings: Callable[[int], dict[str, Any]],
    kind: str = MEASUREMENT,
) -> list[Cell]:
    """Return one measurement by `function` per run, with `settings` by the run's seed."""
    return [
        Cell(Measurement(function, run.specs, settings(run.labels["seed"])), **{**run.labels, "kind": kind})
        for run in runs
    ]


def first_seed_cells(profile: Profile, measure: Callable[..., dict[str, Any]], **settings: Any) -> list[Cell]:
    """Return what is measured of small batch, large batch and ScaLA with the first seed."""
    plan, first = profile.curvature, run_cells(profile.restricted(seeds=profile.seeds[:1]), SIDE_BY_SIDE)
    settings = {"samples": plan.samples, **settings, "threads": plan.threads}
    return measured_cells(first, measure, lambda seed: settings)


def cells(profile: Profile) -> list[Cell]:
    """Return the runs of all methods on the task of the paper's figure, and what is measured of them.

    The first seed is checked by power iteration; the paper's three methods are also measured at equal loss.
    """
    plan, runs = profile.curvature, run_cells(profile, METHODS, kind=RUN)
    settings = {"samples": plan.samples, "tol": plan.tol, "threads": plan.threads}

    def by_seed(seed: int) -> dict[str, Any]:
        products = MAX_POWER_PRODUCTS if seed == profile.seeds[0] else 0
        return {**settings, "sets": plan.sets, "power_products": products}

    names, matched = [variant.method for variant in SIDE_BY_SIDE], []
    for seed in profile.seeds:
        by_method = {run.labels["method"]: run.specs[0] for run in runs if run.labels["seed"] == seed}
        specs = tuple(by_method[name] for name in names)
        measurement = Measurement(measure_matched, specs, {**settings, "names": names})
        matched.append(Cell(measurement, kind=MATCHED, task=profile.pair[0], seed=seed))
    return [*runs, *measured_cells(runs, measure, by_seed), *matched]


def sharpness_rows(frame: DataFrame) -> DataFrame:
    """Return the runs with what was measured of each; an eigenvalue that did not converge is nan.

    Columns beside those of runs: eigenvalue (mean over disjoint sets of rows), deviation (standard deviation over them;
    nan for one set), loss, residuals and so on at the end; matched, matched_loss and matched_epoch at equal loss.
    """
    runs, found = frame[frame["kind"] == RUN], frame[frame["status"] == "finished"]
    names = ["eigenvalues", "residuals", "converged", "hvps", "power_eigenvalue", "power_residual", "power_hvps"]
    names = [*MEASURED[:3], *names]
    ends = found[found["kind"] == MEASUREMENT].set_index(["method", "seed"]).reindex(columns=names)
    rows = runs.drop(columns=names, errors="ignore").join(ends, on=["method", "seed"])
    equal = found[found["kind"] == MATCHED].set_index("seed")
    keys = list(zip(rows["method"], rows["seed"], strict=True))
    for name, part in zip(MEASURED[3:], ("eigenvalue", "loss", "epoch"), strict=True):
        rows[name] = [equal.get(f"{method}:{part}", {}).get(seed) for method, seed in keys]
    rows[MEASURED] = rows[MEASURED].astype(float)
    lost = [not value or value != value for value in rows["converged"]]
    rows.loc[lost, ["eigenvalue", "deviation"]] = math.nan
    return rows


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw bars, tabulate eigenvalues with their residuals, and judge the claims."""
    rows = sharpness_rows(frame)
    done = rows[rows["loss"].notna()]
    if done.empty:
        return Findings()
    plan, task = profile.curvature, done["task"].iloc[0]
    notes = [
        f"Top eigenvalue of the Hessian of the mean training loss over {plan.sets} disjoint sets of {plan.samples} "
        f"rows of {task}, without dropout; mean over sets and seeds. Deviation: over the sets, mean over seeds.",
        f"Lanczos to the residual shown. Power iteration, the paper's method, as a check on the first set of the first "
        f"seed: its eigenvalue over Lanczos's after at most {MAX_POWER_PRODUCTS} products.",
        "At equal loss: on the first set, where a run's loss, looked at "
        f"{CHECKS} times per epoch, first falls to the largest with which one of the seed's three runs ends.",
        "ScaLA differs from the baselines in its optimizer and in its noise; LAMB's row shows what the optimizer does.",
        f"{RATE_NOTE} Budget: {profile.settings['epochs']} epochs; passes: forward passes over the training rows, a "
        "backward counted as two.",
    ]
    lost = rows[rows["loss"].isna()]
    if len(lost):
        notes.append(f"Without a result: {', '.join(sorted(set(lost['method'])))} ({len(lost)} runs).")
    claims = [judge(rule, rows, profile.level) for rule in (c5, c6)]
    figures = [Drawing("", _bars(done), f"Figure 1(c): top eigenvalue on {task}, over sets and seeds.")]
    parts = [part for claim in claims for part in claim.parts if part.estimate.n]
    if parts:
        figure = difference_figure(parts, title="Ratios of top eigenvalues")
        figures.append(Drawing("ratios", figure, "Figure 1(c): ratios, paired by seed; marks are seeds."))
    caption = "Sharpness against training loss: every seed at the end, and where the loss was equal."
    figures.append(Drawing("loss", sharpness_over_loss(loss_rows(done)), caption))
    table = Tabulation("", sharpness_table(done, profile.level), "Figure 1(c): sharpness where training ends.", notes)
    found = "; ".join(f"{part.statement} {part.estimate}" for part in parts)
    return Findings([table], figures, claims, f"Ratios of top eigenvalues: {found}." if found else "")


def sharpness_table(done: DataFrame, level: float = LEVEL) -> DataFrame:
    """Return one row per method."""
    rows = []
    for method, runs in done.groupby("method", sort=False):
        over_small, check = Estimate(math.nan), runs[runs["power_hvps"].notna()]
        if method != SMALL_BATCH.method:
            over_small = paired_ratio(done, method, SMALL_BATCH.method, value="eigenvalue").at(level)
        rows.append(
            {
                "method": method,
                "B": runs["batch_size"].iloc[0],
                "rate": runs["rate"].iloc[0],
                "seeds": len(runs),
                "passes": runs["forward_passes"].mean(),
                "top eigenvalue": runs["eigenvalue"].mean(),
                "deviation": runs["deviation"].mean(),
                "over small batch": over_small.value,
                "low": over_small.interval[0],
                "high": over_small.interval[1],
                "loss": runs["loss"].mean(),
                "loss over chance": (runs["loss"] / runs["chance_loss"]).mean(),
                "at equal loss": runs["matched"].mean(),
                "that loss": runs["matched_loss"].mean(),
                "at epoch": runs["matched_epoch"].mean(),
                "largest residual": max(max(values) for values in runs["residuals"]),
                "converged": f"{int(runs['converged'].sum())}/{len(runs)}",
                "products": int(runs["hvps"].sum()),
                "power / Lanczos": (check["power_eigenvalue"] / [values[0] for values in check["eigenvalues"]]).mean(),
                "power residual": check["power_residual"].max(),
                "power products": int(check["power_hvps"].sum()),
                "score": runs["score"].mean(),
            }
        )
    return data_frame(rows)


def loss_rows(done: DataFrame) -> DataFrame:
    """Return the points of the figure of sharpness against loss: each run at the end, and at equal loss."""
    rows = [
        (run["method"], run["seed"], state, run[loss], run[value])
        for state, loss, value in (("end", "loss", "eigenvalue"), ("equal loss", "matched_loss", "matched"))
        for run in done.to_dict("records")
    ]
    return data_frame(rows, ["label", "seed", "state", "loss", "value"]).dropna()


def _bars(done: DataFrame) -> Any:
    names = [f"{method} (B = {size:.0f})" for method, size in zip(done["method"], done["batch_size"], strict=True)]
    sets = done.assign(checkpoint=names, eigenvalue=done["eigenvalues"]).explode("eigenvalue")
    figure = sharpness_bars(sets.astype({"eigenvalue": float, "converged": bool}))
    figure.axes[0].set_xlabel(
        "top eigenvalue (nats per squared unit of weight)\nmean and standard deviation over seeds and sets of samples"
    )
    return figure


C5 = Claim(
    id="C5",
    source="Figure 1(c), Section 3",
    statement="A model trained with a large batch ends in a sharper place than one trained with a small batch, and its "
    "sharpness varies more between samples.",
    paper="top eigenvalue 2.6x, deviation 3.9x",
    rule="Ratios large over small batch, paired by seed, are effects at least as large as the root of the paper's, "
    "half of it on the log scale; the deviation decides where several sets of rows were measured. The ratio at equal "
    "training loss stands beside.",
)

C6 = Claim(
    id="C6",
    source="Figure 1(c), Section 5",
    statement="ScaLA ends in a place much less sharp than the large-batch baseline does, and a little less sharp than "
    "the small-batch baseline.",
    paper="6.9x smaller than at the large batch, 2.6x of which is the small batch's, but 'slightly' below that",
    rule="The ratio large batch over ScaLA, paired by seed, is an effect at least as large as the root of the paper's; "
    f"ScaLA is not sharper than the small batch by more than a factor of {SAME_RATIO}. ScaLA has the t_s that is "
    "better on tuning rows; the other one, LAMB and the ratios at equal training loss stand beside.",
)


def c5(frame: DataFrame) -> ClaimRecord:
    """Judge large batch against small batch by the rows of `sharpness_rows`."""
    over = partial(paired_ratio, frame, BASELINE.method, SMALL_BATCH.method)
    one_set = not frame["deviation"].notna().any()
    parts = [
        effect("large over small batch", over(value="eigenvalue"), 2.6),
        effect("deviation, large over small batch", over(value="deviation"), 3.9, contextual=one_set),
        effect("large over small batch, equal loss", over(value="matched"), 2.6, contextual=True),
    ]
    return record(C5, parts, accuracy_gates(frame, (SMALL_BATCH.method, BASELINE.method)))


def c6(frame: DataFrame) -> ClaimRecord:
    """Judge ScaLA against both batch sizes by the rows of `sharpness_rows`."""
    small, large, scala = (variant.method for variant in SIDE_BY_SIDE)
    over, matched = (partial(paired_ratio, frame, value=value) for value in ("eigenvalue", "matched"))
    not_sharper = partial(no_worse, margin=SAME_RATIO, paper=6.9 / 2.6)
    parts = [
        effect("large batch over ScaLA", over(large, scala), 6.9),
        not_sharper("small batch over ScaLA", over(small, scala)),
        effect("large batch over ScaLA, equal loss", matched(large, scala), 6.9, contextual=True),
        not_sharper("small batch over ScaLA, equal loss", matched(small, scala), contextual=True),
        effect("large batch over ScaLA, other t_s", over(large, SCALA_OTHER.method), 6.9, contextual=True),
        effect("LAMB over ScaLA", over(LAMB.method, scala), 6.9, contextual=True),
    ]
    return record(C6, parts, accuracy_gates(frame, (small, large, scala)))


STUDY = declare(
    __name__,
    title="Sharpness",
    question="Does a large batch end in a sharper place than a small one, and ScaLA in a flatter one?",
    source="Figure 1(c)",
    paper_found="BERT-base on MNLI: the top eigenvalue at B=1K is 2.6x that at B=32, its deviation 3.9x; ScaLA's is "
    "6.9x smaller than B=1K's, slightly below B=32's.",
)
