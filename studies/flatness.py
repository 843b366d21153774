"""Beyond the paper, claim C28: does sharpness explain anything? Its measures against accuracy, over all end points.

The paper puts the gap of large batches down to sharp minima. If sharpness is what matters, it should rank models by
their accuracy: across methods, across the seeds of one method, and among models that fit their rows equally well, since
sharpness falls as a model fits. Every method that another study trains is a point here; several measures stand side by
side, because a correlation with one alone may be a matter of its scale (Jiang et al., Fantastic Generalization Measures
and Where to Find Them, ICLR 2020; Andriushchenko et al., A Modern Look at the Relationship between Sharpness and
Generalization, ICML 2023). For models that fit equally well, runs are trained again up to where their loss first falls
to one and the same value, and sharpness and accuracy are those of the weights there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from scala_lab.report.figures.curvature import accuracy_over_sharpness
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, RunResult, Tabulation, declare
from scala_lab.study.correlation import Over, rank_correlation
from scala_lab.study.gates import GATES, accuracy_gates
from scala_lab.study.statistics import LEVEL
from scala_lab.study.tables import data_frame, status_note
from scala_lab.study.variants import FREELB, LAMB, RDROP, SCALA_OTHER, SCALA_TUNED, TWO_DRAWS, WITHOUT_DELAY
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record
from studies.sharpness import MATCHED, MEASUREMENT, METHODS, RATE_NOTE, RUN, measured_cells, run_cells, train_until

if TYPE_CHECKING:
    from scala_lab.curvature.checkpoint import Loaded

NO_DELAY = WITHOUT_DELAY.but("ScaLA, no delay")
MATCHED_ARMS = tuple(variant for variant in METHODS if variant is not SCALA_OTHER)
ARMS = (*MATCHED_ARMS, SCALA_OTHER, FREELB, RDROP, TWO_DRAWS, NO_DELAY)  # the same marks in all figures
FAMILIES = ((LAMB, SCALA_TUNED, SCALA_OTHER, TWO_DRAWS), (RDROP, NO_DELAY))
"""Methods that are all but the same: LAMB with two draws of dropout in its last epochs, and in all of them."""
RELATIVES = {variant.method: family[0].method for family in FAMILIES for variant in family}
TOP, TOL, MAX_PRODUCTS, TRACE_PRODUCTS = 5, 1e-2, 40, 15
"""How many eigenvalues, to which residual and by how many products at most: ranks need less precision than ratios."""
STEPS, ASAM_FACTOR = 5, 10
"""Ascent steps, the largest rise of which counts, and the radius of ASAM over SAM's, as published."""
LARGEST = "top eigenvalue"
SHOWN = (LARGEST, f"sum of top {TOP}", "trace", "sharpest layer", f"SAM, {STEPS} steps", f"ASAM, {STEPS} steps")
"""Measures of the figures."""
MEASURES = (*SHOWN, "SAM, 1 step", "ASAM, 1 step")
EVIDENCE = ("loss", "epoch", "residual", "trace_error", "converged", "hvps")
LAYERS = ("layers", "layer_eigenvalues", "layer_residuals")
LISTS = ("eigenvalues", "residuals", *LAYERS)
POINTS: dict[Over, str] = {"runs": "all runs", "methods": "methods' means", "seeds": "seeds within methods"}
SMALLEST = -0.3  # smallest rank correlation of interest: a tenth of the ranks' variance


def measure(
    runs: Sequence[RunResult], *, samples: int, sam_rho: float, threads: int, matched_loss: float | None = None
) -> dict[str, Any]:
    """Measure the sharpness of a run at its end, or where its loss first falls to a share of chance's.

    The loss is that over the measured rows. For the latter the run is trained again, with its own schedule; the result
    has the held-out `score` of the weights there, in percent, and `epoch` None, with no measure, for a run that ends
    above that loss. `threads` is set by the caller: it is part of what determines the last bits.
    """
    from scala_lab.curvature import HessianOperator, load_run

    (run,) = runs
    loaded = load_run(run, samples)
    if matched_loss is None:
        return {**measures(loaded, sam_rho), "epoch": float(run.spec.optim.epochs)}
    target = matched_loss * run.record["chance"]["loss"]
    loss = HessianOperator(loaded.model, loaded.sets[0], budget=0).loss()
    if not loss <= target:
        return {"loss": loss, "epoch": None}
    epoch = train_until(run, loaded, target)
    return {**measures(loaded, sam_rho), "epoch": epoch, "score": held_out_score(run, loaded)}


def measures(loaded: Loaded, sam_rho: float) -> dict[str, Any]:
    """Measure top eigenvalues, trace, every layer's top eigenvalue, and how far the loss rises within SAM's radius.

    A measure is None if its eigenvalues did not converge, or the loss is not finite. `residual` is the largest of all
    eigenvalues, `trace_error` one standard error, `hvps` all products, those of a layer's block counted like others.
    """
    from scala_lab.curvature import HessianOperator, layer_eigenvalues, top_eigenpairs, trace
    from scala_lab.curvature.sam_sharpness import sam_sharpness

    op = HessianOperator(loaded.model, loaded.sets[0])
    top = top_eigenpairs(op, TOP, TOL, max_products=MAX_PRODUCTS)
    total = trace(op, max_products=TRACE_PRODUCTS, known=top)
    layers = layer_eigenvalues(op, loaded.model, TOL, max_products=MAX_PRODUCTS)
    by_layer = [layer.first() for layer in layers.values()]
    layers_converged = all(layer["converged"] for layer in by_layer)
    values = {
        LARGEST: float(top.eigenvalues[0]) if top.residuals[0] <= TOL else math.nan,
        f"sum of top {TOP}": float(top.eigenvalues.sum()) if top.converged else math.nan,
        "trace": total.trace,
        "sharpest layer": max(layer["eigenvalue"] for layer in by_layer) if layers_converged else math.nan,
    }
    for kind, rho in (("SAM", sam_rho), ("ASAM", ASAM_FACTOR * sam_rho)):
        rises = sam_sharpness(loaded.model, loaded.sets[0], rho, STEPS, adaptive=kind == "ASAM")
        values |= {f"{kind}, 1 step": float(rises[0]), f"{kind}, {STEPS} steps": float(rises.max())}
    return {
        **{name: value if math.isfinite(value) else None for name, value in values.items()},
        "eigenvalues": top.eigenvalues.tolist(),
        "residuals": top.residuals.tolist(),
        "layers": list(layers),
        "layer_eigenvalues": [layer["eigenvalue"] for layer in by_layer],
        "layer_residuals": [layer["residual"] for layer in by_layer],
        "residual": max(*top.residuals.tolist(), *(layer["residual"] for layer in by_layer)),
        "trace_error": total.error,
        "converged": top.converged and layers_converged,
        "hvps": op.products + sum(layer.hvps for layer in layers.values()),
        "loss": op.loss(),
    }


def held_out_score(run: RunResult, loaded: Loaded) -> float:
    """Return the task's first metric of a model, in percent, on the rows that the run's own score is of."""
    from scala_lab.data.tasks import compute_metrics
    from scala_lab.training.distributed import World
    from scala_lab.training.preparation import admit_model, prepare
    from scala_lab.training.trainer import predict_split

    prepared = prepare(run.spec)
    splits = {**prepared.kept_apart, **prepared.evals}
    split = splits["heldout" if "heldout" in splits else next(iter(prepared.evals))]
    admission = admit_model(loaded.model, prepared, str(run.checkpoint), use="predict")
    encoder, world = admission.encoder(loaded.model), World(0, 1, loaded.model.device)
    logits = predict_split(encoder, split, run.spec.batches.micro_batch, admission.padding, world)
    assert logits is not None
    return 100 * compute_metrics(prepared.task, logits, split.labels)[prepared.task.metrics[0]]


def cells(profile: Profile) -> list[Cell]:
    """Return the runs of all methods on the task of the paper's figure, and what is measured of them."""
    plan, runs = profile.curvature, run_cells(profile, ARMS, kind=RUN)
    settings = {"samples": plan.flatness_samples, "sam_rho": profile.start_radii["sam_rho"], "threads": plan.threads}
    names = [variant.method for variant in MATCHED_ARMS]
    again = [run for run in runs if run.labels["method"] in names]
    at_loss = {**settings, "matched_loss": plan.matched_loss}
    ends = [*runs, *measured_cells(runs, measure, lambda seed: settings)]
    return (
        ends if plan.matched_loss is None else [*ends, *measured_cells(again, measure, lambda seed: at_loss, MATCHED)]
    )


def flatness_rows(frame: DataFrame) -> DataFrame:
    """Return the runs with what was measured at their ends, then those with what was at the matched loss.

    Column `kind` tells them apart. What was not measured is nan; at the matched loss `score` is that of the weights
    there.
    """
    import pandas as pd

    keys, numbers, parts = ["method", "seed"], [*MEASURES, *EVIDENCE], []
    runs, found = frame[frame["kind"] == RUN], frame[frame["status"] == "finished"]
    names = [variant.method for variant in MATCHED_ARMS]
    for kind, of, own in ((MEASUREMENT, runs, []), (MATCHED, runs[runs["method"].isin(names)], ["score"])):
        columns = [*numbers, *LISTS, *own]
        measured = found[found["kind"] == kind].set_index(keys).reindex(columns=columns)
        parts.append(of.drop(columns=columns, errors="ignore").join(measured, on=keys).assign(kind=kind))
    return pd.concat(parts, ignore_index=True).astype(dict.fromkeys([*numbers, "score"], float))


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Tabulate rank correlations and what they are made of, draw accuracy over each measure, and judge the claim."""
    rows = flatness_rows(frame)
    done = rows[rows["hvps"].notna()]
    ends, matched = (done[done["kind"] == kind] for kind in (MEASUREMENT, MATCHED))
    if ends.empty:
        return Findings()
    plan, level, task = profile.curvature, profile.level, ends["task"].iloc[0]
    claim, rho = judge(c28, rows, level), profile.start_radii["sam_rho"]
    families = "; ".join(" = ".join(variant.method for variant in family) for family in FAMILIES)
    about = [
        f"Spearman's rank correlation with held-out accuracy on {task}; negative if flatter is better. Given loss: "
        "partial correlation, the rank of the training loss over the measured rows regressed out.",
        f"{ends['method'].nunique()} methods with {ends['seed'].nunique()} seeds. Methods that are all but the same "
        f"count as one, the mean of their runs with each seed: {families}.",
        f"{100 * level:g}% intervals by permuting methods and seeds, which is what was sampled: many runs of few "
        "methods are few points. Where a run has no value, its seed or its method is left out.",
    ]
    means = [
        f"Means over seeds, loss and sharpness over {plan.flatness_samples} training rows of {task}, without dropout. "
        f"Sharpest layer: largest top eigenvalue of a layer's block. SAM: rise of the loss within rho = {rho:g}, by "
        f"SAM's one step and as the best of {STEPS} normalised ascent steps; ASAM: the same in units of |w|, "
        f"rho = {ASAM_FACTOR * rho:g}.",
        RATE_NOTE,
    ]
    above = rows[(rows["kind"] == MATCHED) & rows["loss"].notna() & rows["epoch"].isna()]
    names = ", ".join(f"{method} (seed {seed})" for method, seed in zip(above["method"], above["seed"], strict=True))
    lost = [f"Ended above the loss to be matched, and are left out: {names}."] if names else []
    tables = [
        Tabulation("", correlation_table(rows, level), "Rank correlation of sharpness with accuracy.", about),
        Tabulation("measures", measure_table(ends), "Sharpness where training ends.", [*means, *status_note(frame)]),
        Tabulation("layers", layer_table(ends), "Top eigenvalue of each layer's block of the Hessian, at the end."),
    ]
    share = ""
    if plan.matched_loss is not None:
        share = f"{plan.matched_loss:g} of chance's"
        about.append(f"At matched loss: of {', '.join(variant.method for variant in MATCHED_ARMS)}.")
        caption = f"Sharpness where the loss first falls to {share}."
        tables.insert(2, Tabulation("matched", measure_table(matched), caption, lost))
    figures = [
        Drawing(
            name, _marks(points), f"Held-out accuracy on {task} over measures of sharpness {where}: a mark per run."
        )
        for name, points, where in (("", ends, "at the end"), ("matched", matched, f"where the loss falls to {share}"))
        if len(points)
    ]
    found = "; ".join(f"{part.statement} {part.estimate}" for part in claim.parts)
    return Findings(tables, figures, [claim], f"Rank correlations: {found}.")


def correlation_table(rows: DataFrame, level: float = LEVEL) -> DataFrame:
    """Return a row per measure and kind of points: at the end, given the training loss, and at the matched loss."""
    ends, matched = (rows[rows["kind"] == kind] for kind in (MEASUREMENT, MATCHED))
    table = []
    for name in MEASURES:
        for over, points in POINTS.items():
            row: dict[str, Any] = {"measure": name, "over": points}
            for about, runs, given in (("", ends, ""), ("given loss", ends, "loss"), ("at matched loss", matched, "")):
                found = rank_correlation(runs, name, over=over, given=given, relatives=RELATIVES).at(level)
                headings = (about or "rank correlation", f"{about} from".strip(), f"{about} to".strip())
                row |= dict(zip(headings, (found.value, *found.interval), strict=True))
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
            "loss": runs["loss"].mean(),
            "at epoch": runs["epoch"].mean(),
            **{name: runs[name].mean() for name in MEASURES},
            "largest residual": runs["residual"].max(),
            "largest error of the trace": (runs["trace_error"] / runs["trace"].abs()).max(),
            "converged": f"{int(runs['converged'].sum())}/{len(runs)}",
            "products": int(runs["hvps"].sum()),
        }
        for method, runs in done.groupby("method", sort=False)
    )


def layer_table(done: DataFrame) -> DataFrame:
    """Return a row per layer and a column per method: means over the seeds whose eigenvalue converged."""
    layers = done[["method", *LAYERS]].explode(list(LAYERS))
    layers = layers[layers["layer_residuals"] <= TOL].astype({"layer_eigenvalues": float})
    table = layers.pivot_table("layer_eigenvalues", "layers", "method", sort=False).rename_axis("layer")
    return table.reindex(columns=done["method"].unique())


def _marks(points: DataFrame) -> Any:
    return accuracy_over_sharpness(points, {name: name for name in SHOWN if points[name].notna().any()})


C28 = Claim(
    id="C28",
    source="ours, on Figure 1(c) and Section 3",
    statement="At the end of training, flatter models generalise better: the rank correlation of the top eigenvalue "
    "with held-out accuracy is negative.",
    paper="sharp minima are given as the reason for the gap of large batches; no correlation is reported",
    rule=f"Over all runs, Spearman's correlation is an effect below 0, {SMALLEST} being the smallest of interest; its "
    "interval takes methods and seeds as sampled, and methods that are all but the same count as one. Methods' means, "
    "seeds within methods, the partial correlation given training loss and the one at matched loss stand beside. A "
    "setting at the end of its grid is no objection: any model that trained is a point.",
)


def c28(frame: DataFrame) -> ClaimRecord:
    """Judge the rank correlation by the rows of `flatness_rows`."""
    ends, matched = (frame[frame["kind"] == kind] for kind in (MEASUREMENT, MATCHED))
    correlate, about = partial(rank_correlation, x=LARGEST, relatives=RELATIVES), "sharpness and accuracy"
    negative = partial(effect, paper=None, smallest=SMALLEST)
    beside = {
        **{points: correlate(ends, over=over) for over, points in POINTS.items() if over != "runs"},
        f"{POINTS['runs']}, given loss": correlate(ends, given="loss"),
        f"{POINTS['runs']}, at matched loss": correlate(matched),
    }
    parts = [
        negative(f"{about}, {POINTS['runs']}", correlate(ends)),
        *(negative(f"{about}, {points}", found, contextual=True) for points, found in beside.items()),
    ]
    asked = [gate for gate in GATES if gate != "best setting inside"]
    return record(C28, parts, accuracy_gates(ends, [variant.method for variant in ARMS], ask=asked))


STUDY = declare(
    __name__,
    title="Does sharpness explain anything?",
    question="Do models that end in a flatter place generalise better, by any measure of sharpness?",
    paper_found="Not asked of single models: three methods are compared, of which the flatter are the more accurate.",
)
