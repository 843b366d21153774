"""Beyond the paper, claim C28: does sharpness explain anything? Its measures against accuracy, over all end points.

The paper puts the gap of large batches down to sharp minima. If sharpness is what matters, it should rank models by
their accuracy: across methods, across the seeds of one method, and among models that fit their rows equally well, since
sharpness falls as a model fits. Every method that another study trains is a point here, so that nothing is trained
anew; several measures stand side by side, because a correlation with one alone may be a matter of its scale (Jiang et
al., Fantastic Generalization Measures and Where to Find Them, ICLR 2020; Andriushchenko et al., A Modern Look at the
Relationship between Sharpness and Generalization, ICML 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Study, Tabulation, main
from scala_lab.study.correlation import Over, rank_correlation
from scala_lab.study.gates import GATES, accuracy_gates
from scala_lab.study.statistics import LEVEL, Estimate
from scala_lab.study.tables import data_frame, status_note
from scala_lab.study.variants import FREELB, LAMB, RDROP, SCALA_OTHER, SCALA_TUNED, TWO_DRAWS, WITHOUT_DELAY
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record
from studies._checkpoints import ALL, RATE_NOTE, measured_cells, run_cells

if TYPE_CHECKING:
    from scala_lab.training.run_dir import RunResult

NO_DELAY = WITHOUT_DELAY.but("ScaLA, no delay")
ARMS = (*ALL, FREELB, RDROP, TWO_DRAWS, NO_DELAY)
FAMILIES = ((LAMB, SCALA_TUNED, SCALA_OTHER, TWO_DRAWS), (RDROP, NO_DELAY))
"""Methods that are all but the same: LAMB with two draws of dropout in its last epochs, and in all of them."""
RELATIVES = {variant.method: family[0].method for family in FAMILIES for variant in family}
MAX_SAMPLES = 512
"""Most rows that are measured on: ranks need less precision than ratios, and there are many runs."""
TOP, STEPS = 5, 5
"""How many eigenvalues, and how many normalised ascent steps, of which the best counts."""
ASCENTS = {"SAM": (1.0, False), "SAM at 4 rho": (4.0, False), "ASAM": (10.0, True), "ASAM at 4 rho": (40.0, True)}
"""Radii in units of the profile's first radius of SAM, and whether they are adaptive: ASAM's published radius is ten
times SAM's."""
LARGEST = "top eigenvalue"
MEASURES = (
    *(LARGEST, f"sum of top {TOP}", "trace", "sharpest layer"),
    *(f"{kind}, {steps}" for kind in ASCENTS for steps in ("1 step", f"{STEPS} steps")),
)
SHOWN = (*MEASURES[:4], f"SAM, {STEPS} steps", f"ASAM, {STEPS} steps")
"""Measures of the figure."""
EVIDENCE = ("residual", "trace_error", "converged", "hvps")
POINTS: dict[Over, str] = {"runs": "all runs", "methods": "methods' means", "seeds": "seeds within methods"}
SMALLEST = -0.3
"""Smallest rank correlation of interest: a tenth of the ranks' variance."""
RUN = "run"


def measure(
    runs: Sequence[RunResult],
    *,
    samples: int,
    sam_rho: float,
    tol: float = 1e-2,
    max_products: int = 40,
    trace_products: int = 15,
    seed: int = 0,
    threads: int = 1,
) -> dict[str, Any]:
    """Measure the sharpness of a run in several ways: top eigenvalues, trace, sharpest layer, and rises of the loss.

    A measure is None if its eigenvalues did not converge, or the loss is not finite. `residual` is the largest of all
    eigenvalues, `trace_error` one standard error, `hvps` all products, those of a layer's block counted like others.
    `threads` is set by the caller: it is part of what determines the last bits.
    """
    from scala_lab.curvature import HessianOperator, layer_eigenvalues, load_run, top_eigenpairs, trace
    from scala_lab.curvature.sam_sharpness import sam_sharpness

    loaded = load_run(runs[0], samples, seed=seed)
    model, batches = loaded.model, loaded.sets[0]
    op = HessianOperator(model, batches)
    top = top_eigenpairs(op, TOP, tol, max_products=max_products, seed=seed)
    total = trace(op, max_products=trace_products, seed=seed, known=top)
    layers = layer_eigenvalues(op, model, tol, max_products=max_products, seed=seed).values()
    layers_converged = all(layer.converged for layer in layers)
    values = {
        LARGEST: float(top.eigenvalues[0]) if top.residuals[0] <= tol else math.nan,
        f"sum of top {TOP}": float(top.eigenvalues.sum()) if top.converged else math.nan,
        "trace": total.trace,
        "sharpest layer": max(float(layer.eigenvalues[0]) for layer in layers) if layers_converged else math.nan,
    }
    for adaptive in (False, True):
        radii = {kind: factor * sam_rho for kind, (factor, adapts) in ASCENTS.items() if adapts == adaptive}
        rises = sam_sharpness(model, batches, list(radii.values()), STEPS, adaptive=adaptive)
        for kind, by_step in zip(radii, rises, strict=True):
            values |= {f"{kind}, 1 step": float(by_step[0]), f"{kind}, {STEPS} steps": float(by_step.max())}
    return {
        **{name: value if math.isfinite(value) else None for name, value in values.items()},
        "residual": float(max(*top.residuals, *(layer.residuals[0] for layer in layers))),
        "trace_error": total.error,
        "converged": top.converged and layers_converged,
        "hvps": op.products + sum(layer.hvps for layer in layers),
    }


def cells(profile: Profile) -> list[Cell]:
    """Return the runs of all methods on the task of the paper's figure, and what is measured of them."""
    plan, runs = profile.curvature, run_cells(profile, ARMS, kind=RUN)
    settings = {"samples": min(plan.samples, MAX_SAMPLES), "sam_rho": profile.start_radii["sam_rho"]}
    return [*runs, *measured_cells(runs, measure, lambda seed: {**settings, "threads": plan.threads})]


def flatness_rows(frame: DataFrame) -> DataFrame:
    """Return the runs with what was measured of each; nan for what was not."""
    columns, keys = [*MEASURES, *EVIDENCE], ["method", "seed"]
    runs = frame[frame["kind"] == RUN].drop(columns=columns, errors="ignore")
    found = frame[(frame["kind"] != RUN) & (frame["status"] == "finished")].reindex(columns=[*keys, *columns])
    return runs.merge(found.astype(dict.fromkeys(columns, float)), "left", keys)


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Tabulate rank correlations and what they are made of, draw accuracy over each measure, and judge the claim."""
    from scala_lab.report.figures.curvature import accuracy_over_sharpness

    rows = flatness_rows(frame)
    done = rows[rows["hvps"].notna()]
    if done.empty:
        return Findings()
    level, task, rho = profile.level, done["task"].iloc[0], profile.start_radii["sam_rho"]
    correlate = partial(rank_correlation, rows, relatives=RELATIVES, level=level)
    by_points = {name: correlate(LARGEST, over=over) for over, name in POINTS.items()}
    found = "; ".join(f"{name} {estimate}" for name, estimate in by_points.items())
    families = "; ".join(" = ".join(variant.method for variant in family) for family in FAMILIES)
    about = [
        f"Spearman's rank correlation with held-out accuracy on {task}; negative if flatter is better. Given loss: "
        "partial correlation, the rank of the training loss regressed out.",
        f"{done['method'].nunique()} methods with {done['seed'].nunique()} seeds. Methods that are all but the same "
        f"count as one, the mean of their runs with each seed: {families}.",
        f"{100 * level:g}% intervals by permuting methods and seeds, which is what was sampled: many runs of few "
        "methods are few points.",
    ]
    measured = [
        f"Means over seeds, on {min(profile.curvature.samples, MAX_SAMPLES)} training rows of {task}, without dropout. "
        f"Sharpest layer: largest top eigenvalue of a layer's block. SAM: rise of the loss within rho = {rho:g}, by "
        f"SAM's one step and as the best of {STEPS} normalised ascent steps; ASAM: the same in units of |w|, "
        f"rho = {10 * rho:g}.",
        RATE_NOTE,
        *status_note(frame),
    ]
    panels = {name: f"{name}\n{_short(correlate(name))}" for name in SHOWN if done[name].notna().any()}
    caption = f"Held-out accuracy on {task} over measures of sharpness: a mark per run; rank correlation over all runs."
    return Findings(
        tables=[
            Tabulation("", correlation_table(rows, level), "Rank correlation of sharpness with accuracy.", about),
            Tabulation("measures", measure_table(done), "Sharpness where training ends.", measured),
        ],
        figures=[Drawing("", accuracy_over_sharpness(done, panels), caption)],
        claims=[judge(partial(c28, level=level), rows)],
        found=f"Rank correlation of the top eigenvalue with held-out accuracy: {found}; all runs, given training loss "
        f"{correlate(LARGEST, given='train_loss')}.",
    )


def correlation_table(rows: DataFrame, level: float = LEVEL) -> DataFrame:
    """Return a row per measure and kind of points."""
    table, correlate = [], partial(rank_correlation, rows, relatives=RELATIVES, level=level)
    for name in MEASURES:
        for over, points in POINTS.items():
            row: dict[str, Any] = {"measure": name, "over": points}
            for prefix, given in (("", ""), ("given loss", "train_loss")):
                found = correlate(name, over=over, given=given)
                ends = (found.low, found.high) if found.decided else (math.nan, math.nan)
                headings = (prefix or "rank correlation", *(f"{prefix} {end}".strip() for end in ("from", "to")))
                row |= dict(zip(headings, (found.value, *ends), strict=True))
            table.append(row)
    return data_frame(table).set_index(["measure", "over"])


def measure_table(done: DataFrame) -> DataFrame:
    """Return a row per method: means of accuracy, loss and measures, and the evidence that they have converged."""
    return data_frame(
        {
            "method": method,
            "B": runs["batch_size"].iloc[0],
            "seeds": len(runs),
            "accuracy": runs["score"].mean(),
            "training loss": runs["train_loss"].mean(),
            **{name: runs[name].mean() for name in MEASURES},
            "largest residual": runs["residual"].max(),
            "largest error of the trace": (runs["trace_error"] / runs["trace"].abs()).max(),
            "converged": f"{int(runs['converged'].sum())}/{len(runs)}",
            "products": int(runs["hvps"].sum()),
        }
        for method, runs in done.groupby("method", sort=False)
    )


def _short(found: Estimate) -> str:
    """Write a correlation for a panel."""
    return f"r = {found.value:.2f} [{found.low:.2f}, {found.high:.2f}]" if found.decided else f"r = {found.value:.2f}"


C28 = Claim(
    id="C28",
    source="ours, on Figure 1(c) and Section 3",
    study="flatness",
    statement="At the end of training, flatter models generalise better: the rank correlation of the top eigenvalue "
    "with held-out accuracy is negative.",
    paper="sharp minima are given as the reason for the gap of large batches; no correlation is reported",
    rule=f"Over all runs, Spearman's correlation is an effect below 0, {SMALLEST} being the largest of interest, by an "
    "interval that takes methods and seeds as sampled; methods that are all but the same count as one. Methods' means, "
    "seeds within methods, partial correlations given training loss and other measures stand beside. A setting at the "
    "end of its grid is no objection: any model that trained is a point.",
)


def c28(frame: DataFrame, scale: float = 1.0, level: float = LEVEL) -> ClaimRecord:
    """Judge the rank correlation by the rows of `flatness_rows`."""
    correlate = partial(rank_correlation, frame, relatives=RELATIVES, level=level)
    negative = partial(effect, paper=None, smallest=SMALLEST, scale=scale)
    beside = {
        **{POINTS[over]: correlate(LARGEST, over=over) for over in POINTS if over != "runs"},
        **{f"{POINTS[over]}, given loss": correlate(LARGEST, over=over, given="train_loss") for over in POINTS},
    }
    others = {f"{name} and accuracy, {POINTS['runs']}": correlate(name) for name in SHOWN[1:]}
    parts = [
        negative(f"{LARGEST} and accuracy, {POINTS['runs']}", correlate(LARGEST)),
        *(negative(f"{LARGEST} and accuracy, {points}", found, contextual=True) for points, found in beside.items()),
        *(negative(statement, found, contextual=True) for statement, found in others.items()),
    ]
    asked = [gate for gate in GATES if gate != "best setting inside"]
    return record(C28, parts, accuracy_gates(frame, [variant.method for variant in ARMS], ask=asked))


STUDY = Study(
    name="flatness",
    title="Does sharpness explain anything?",
    question="Do models that end in a flatter place generalise better, by any measure of sharpness?",
    cells=cells,
    analyse=analyse,
    paper_found="Not asked of single models: three methods are compared, of which the flatter are the more accurate.",
    claims=(C28,),
)

if __name__ == "__main__":
    raise SystemExit(main(STUDY))
