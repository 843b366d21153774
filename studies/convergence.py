"""Does the theorem's rate hold where everything it speaks of can be computed, and the lemma's?

The problem (scala_lab.theory.minimax) satisfies every printed assumption. Beside the theorem's own setting stand three
in which one of its terms is changed: an inner player with a known error, one sample per step in place of a batch that
grows with T, and an upper clip U far above the weights' norms.
"""

import math
from typing import Any

import numpy as np

from scala_lab.report.figures.convergence import rate_panels
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.statistics import FACTOR, Estimate, mean_interval
from scala_lab.study.tables import data_frame
from scala_lab.study.verdicts import Claim, ClaimRecord, at_most, judge, record, within
from scala_lab.sweep.cells import Measurement
from scala_lab.theory.lemma import ascent_gaps
from scala_lab.theory.minimax import envelope_gradients

STEPS = (32, 64, 128, 256, 512, 1024)
REPLICAS = 16
LOWER, UPPER, KAPPA = 4.0, 8.0, 4.0
KINDS = {"box": "box |y| <= 1/2 (convex)", "sparse": "a quarter of y not 0 (not convex)"}
ASCENTS = 24

OUTER: list[dict[str, Any]] = [
    *({"kappa": kappa} for kappa in (1.0, 4.0, 16.0)),
    *({"epsilon": epsilon} for epsilon in (0.01, 0.1, 1.0)),
    {"ascent_steps": 1},
    {"batch": "one"},
    *({"kappa": 1.0, "upper": upper} for upper in (32.0, 128.0)),
]
"""Settings of the outer player; each changes one thing from kappa_alpha 4, an exact inner player and U/L = 2."""
SETTING = ["kappa", "player", "clip", "batch"]
"""Columns of `outer_rows` that tell the settings apart; player is the inner one, clip U/L."""

SLACK = 0.05
"""How far a fitted exponent may lie from the claimed one: terms of lower order in T bend the line by that much."""

C19 = Claim(
    id="C19",
    source="Theorem of Section 4 and its appendix",
    statement="The expected squared gradient of the Moreau envelope is at most 4 eps max alpha + 2 kappa_alpha D G / "
    "sqrt(T), for every L <= U.",
    paper="at most 4 eps max alpha + 2 kappa_alpha D G / sqrt(T)",
    rule="The measured value over the bound, its largest over T, is at most 1: with an exact inner player at every "
    "kappa_alpha, with one that errs by eps, and at U/L far above 1. The unit is the replica. C22 says why the last "
    "fails, C27 judges the rate.",
)

C20 = Claim(
    id="C20",
    source="Lemma on projected gradient ascent, appendix",
    statement="The inner maximisation converges linearly: every step shrinks the gap by a factor of at most S/C - 1.",
    paper="C / (2C - S) * log(1/eps) steps for S/C < 2",
    rule="For S/C < 2 no step of any problem shrinks the gap by less than the factor S/C - 1, and the second half of "
    "log gap is more than half as steep as the first, where an error that falls like a power would flatten.",
)

C22 = Claim(
    id="C22",
    source="ours, on the theorem",
    statement="The printed constant lacks a factor U/L: where weight norms lie far below U, the bound does not hold, "
    "and with the factor it does.",
    paper="the bound holds for all L <= U",
    rule="At the largest U/L and T the measured value over the printed bound is at least 1, over the bound times U/L "
    "at most 1.",
)

C27 = Claim(
    id="C27",
    source="Theorem of Section 4 and its appendix",
    statement="The expected squared gradient falls like eps + kappa_alpha / sqrt(T).",
    paper="exponent of T -1/2; an error eps adds at most 4 eps max alpha; proportional to kappa_alpha",
    rule=f"The exponent of T is at most -1/2 + {SLACK}; what an inner error eps adds at the largest T is at most "
    "4 eps max alpha; the exponent of kappa_alpha, D and G divided out, is at most 1. The unit is the replica.",
)

NOTES = [
    f"Mean over {REPLICAS} starts and noises; {len(STEPS)} values of T from {STEPS[0]} to {STEPS[-1]}; 95% level.",
    "eta = 1/(U sqrt(T)); b = 16 T L^2 Z^2 / U^2 with Z = max sigma_i / alpha_i: the printed Z, a largest ratio of "
    "coordinates, is without bound where a coordinate of the gradient crosses 0.",
    "The printed batch size is 0 for L = 0, the value the method is used with: in the proof the noise term has the "
    "sign of a gain, and b is chosen to cancel another term by it. With the right sign a larger batch only helps.",
    "The proof replaces nu(||x_i||) by U under a term that is negative, which loses a factor U/L (last rows); it "
    "pulls a maximum over groups out of a sum of terms of either sign; and it uses G, a bound on coordinates, for "
    "the length of a group's gradient, which loses sqrt(d).",
    "The corollary's T = 16 kappa D^2 G^2 / eps^2 follows from the theorem only with kappa^2.",
    "The lemma needs concavity of r in the noise. r >= 0 = r(no noise), so near its start the ascent climbs from a "
    "minimum: the lemma says nothing about ScaLA's own inner problem.",
]


def cells(profile: Profile) -> list[Cell]:
    """Return the theorem's and the lemma's problems, the same under every profile: nothing is trained."""
    outer = []
    for changed in OUTER:
        settings = {"kappa": KAPPA, "lower": LOWER, "upper": UPPER, "epsilon": 0.0, "ascent_steps": 0} | changed
        settings |= {"batch": changed.get("batch", "growing"), "steps": list(STEPS), "replicas": REPLICAS}
        outer.append(Cell(Measurement(envelope_gradients, settings=settings), **settings))
    inner = [{"kind": kind, "ratio": ratio} for kind in KINDS for ratio in (1.1, 1.5, 1.9, 10.0)]
    sizes = {"problems": 32, "steps": ASCENTS}
    return outer + [Cell(Measurement(ascent_gaps, settings={**labels, **sizes}), **labels) for labels in inner]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare exponents with the theorem's, values with its bound, and gaps with the lemma's factor."""
    done = frame[frame["status"] == "finished"]
    outer, inner = outer_rows(done), inner_rows(done)
    claims = [judge(c19, outer), judge(c20, inner), judge(c22, outer), judge(c27, outer)]
    tables, figures, sentences = [], [], []
    if len(outer):
        table = rate_table(outer)
        tables.append(Tabulation("", table, "Theorem: E ||grad g||^2 over T against the printed bound.", NOTES))
        figures.append(Drawing("", _rate_figure(outer), "Theorem: squared gradient of the Moreau envelope over T."))
        exponent = claims[-1].parts[0].estimate.value if claims[-1].parts else math.nan
        sentences.append(f"With the theorem's rate and batch the squared gradient falls like T^({exponent:.2f}).")
        share = table["value / bound"]
        if share.notna().any():
            clip = table["U/L"][share.idxmax()]
            sentences.append(f"The largest value over the printed bound is {share.max():.2f}, at U/L = {clip:g}.")
    if len(inner):
        table = lemma_table(inner)
        tables.append(Tabulation("lemma", table, "Lemma: how a step of projected gradient ascent shrinks the gap."))
        figures.append(Drawing("lemma", _lemma_figure(done), "Lemma: relative gap over ascent steps."))
        assumed = inner[inner["ratio"] < 2]
        if len(assumed):
            slowest = (assumed["worst_factor"] / (assumed["ratio"] - 1)).max()
            sentences.append(
                f"Under the lemma's S/C < 2 the slowest single ascent step took {slowest:.2f} of its factor."
            )
    return Findings(tables, figures, claims, " ".join(sentences))


def c19(frame: DataFrame) -> ClaimRecord:
    """Judge the printed bound from the rows of `outer_rows`."""
    proper = frame[(frame["batch"] == "growing") & (frame["ascent_steps"] == 0)]
    if proper.empty:
        return record(C19, ())
    tight, exact = proper["clip"] == proper["clip"].min(), proper["epsilon"] == 0
    settings = {f"kappa_alpha = {kappa:g}": rows for kappa, rows in proper[tight & exact].groupby("kappa")}
    settings["inner errors eps"] = proper[tight & ~exact]
    settings |= {f"U/L = {clip:g}": rows for clip, rows in proper[~tight].groupby("clip")}
    bounded = [
        at_most(f"value over bound, {name}", _over_bound(rows), 1.0, paper=1.0) for name, rows in settings.items()
    ]
    return record(C19, bounded)


def c20(frame: DataFrame) -> ClaimRecord:
    """Judge the lemma on each kind of constraint set from the rows of `inner_rows`."""
    parts = []
    for kind, rows in frame[frame["ratio"] < 2].groupby("kind", sort=False):
        worst = float((rows["worst_factor"] / (rows["ratio"] - 1)).max())
        largest = Estimate(worst, len(rows), se=0.0, df=len(rows) - 1.0, sd=0.0, counts="problems")
        bend = mean_interval(rows["bend"], counts="problems")
        about = f"{kind}: steepness of log gap, second half over first"
        parts += [
            at_most(f"{kind}: largest factor of a step over S/C - 1", largest, 1.0, paper=1.0),
            within(about, bend, 0.5, math.inf, fixed=True),
        ]
    return record(C20, parts)


def c22(frame: DataFrame) -> ClaimRecord:
    """Judge the printed bound where U lies far above the weights' norms, from the rows of `outer_rows`."""
    if frame["clip"].nunique() < 2:
        return record(C22, ())
    clip = frame["clip"].max()
    widest = frame[(frame["clip"] == clip) & (frame["batch"] == "growing")]
    last = widest[widest["steps"] == widest["steps"].max()]
    over, mended = _over_bound(last), _over_bound(last.assign(bound=clip * last["bound"]))
    parts = [
        within(f"value over printed bound, U/L = {clip:g}", over, 1.0, math.inf),
        at_most(f"value over bound times U/L, U/L = {clip:g}", mended, 1.0),
    ]
    return record(C22, parts)


def c27(frame: DataFrame) -> ClaimRecord:
    """Judge the dependence on T, eps and kappa_alpha from the rows of `outer_rows`."""
    proper = frame[(frame["batch"] == "growing") & (frame["ascent_steps"] == 0)]
    if proper.empty:
        return record(C27, ())
    proper = proper[proper["clip"] == proper["clip"].min()]
    exact, longest = proper[proper["epsilon"] == 0], proper[proper["steps"] == proper["steps"].max()]
    last = longest[longest["epsilon"] == 0]
    last = last.assign(share=last["value"] / last["gap"] / last["gradient_bound"])
    parts = [
        at_most("exponent of T", _exponent(exact, "steps", "value", "kappa"), -0.5 + SLACK, paper=-0.5),
        at_most("what eps adds, over 4 eps max alpha", _added_by_error(longest), 1.0, paper=1.0),
        at_most("exponent of kappa_alpha", _exponent(last, "kappa", "share", "steps"), 1.0, paper=1.0),
    ]
    return record(C27, parts)


def _over_bound(frame: DataFrame) -> Estimate:
    """Return the value over the bound at the T and setting where their mean ratio is largest, over replicas."""
    ratios = frame.assign(ratio=frame["value"] / frame["bound"])
    worst = ratios.groupby(["epsilon", "steps"])["ratio"].transform("mean")
    return mean_interval(ratios[worst == worst.max()]["ratio"], FACTOR, counts="replicas")


def _exponent(frame: DataFrame, x: str, y: str, by: str) -> Estimate:
    """Return the slope of log y over log x, averaged in each replica over settings, which share its noise."""
    slopes = [
        np.mean([np.polyfit(np.log(rows[x].to_numpy(float)), np.log(rows[y].to_numpy(float)), 1)[0] for rows in lines])
        for _, replica in frame.groupby("replica")
        for lines in [[rows for _, rows in replica.groupby(by) if rows[x].nunique() > 1]]
        if lines
    ]
    return mean_interval(slopes, counts="replicas")


def _added_by_error(frame: DataFrame) -> Estimate:
    """(value at eps - value at 0) / (4 eps max alpha), averaged over eps > 0 in each replica, at equal kappa_alpha."""
    erring = frame[frame["epsilon"] > 0]
    exact = frame[frame["epsilon"] == 0].set_index(["kappa", "replica"])["value"]
    base = exact.reindex([*zip(erring["kappa"], erring["replica"], strict=True)]).to_numpy()
    shares = (erring["value"] - base) / (4 * erring["epsilon"] * erring["largest_alpha"])
    return mean_interval(shares.groupby(erring["replica"]).mean(), counts="replicas")


def outer_rows(done: DataFrame) -> DataFrame:
    """Return one row per setting, T and replica; there is no bound for an inner player of a few ascent steps."""
    rows = [
        {**cell, "clip": cell["upper"] / cell["lower"], "player": _player(cell["epsilon"], cell["ascent_steps"])}
        | {"steps": steps, "bound": np.nan if cell["ascent_steps"] else cell[f"bound_{steps}"]}
        | {"replica": replica, "value": value}
        for cell in done[done["kappa"].notna()].to_dict("records")
        for steps in cell["steps"]
        for replica, value in enumerate(cell[f"squared_gradient_{steps}"])
    ]
    measured = ["steps", "replica", "value", "bound", "gap", "gradient_bound", "largest_alpha"]
    return data_frame(rows, [*SETTING, "epsilon", "ascent_steps", *measured])


def _player(epsilon: float, ascents: float) -> str:
    if ascents:
        return f"PGA-{ascents:g}"
    return f"off by {epsilon:g}" if epsilon else "exact"


def inner_rows(done: DataFrame) -> DataFrame:
    """Return one row per random problem of the lemma."""
    names = ["factor", "worst_factor", "bend", "left"]
    problems = done[done["kind"].notna()].reindex(columns=["kind", "ratio", *names])
    return problems.explode(names, ignore_index=True).astype(dict.fromkeys(names, float))


def rate_table(outer: DataFrame) -> DataFrame:
    """Return one row per setting: fitted exponent of T, value and bound at the largest T."""
    rows = []
    for setting, group in outer.groupby(SETTING, sort=False):
        exponent, last = _exponent(group, "steps", "value", "kappa"), group[group["steps"] == group["steps"].max()]
        value, bound = mean_interval(last["value"]).value, last["bound"].iloc[0]
        rows.append((*setting, exponent.value, exponent.low, exponent.high, value, bound, value / bound))
    columns = ["kappa_alpha", "inner player", "U/L", "batch", "exponent of T", "low", "high"]
    columns += [f"value at T={outer['steps'].max()}", "printed bound", "value / bound"]
    return data_frame(rows, columns)


def lemma_table(inner: DataFrame) -> DataFrame:
    """Return one row per constraint set and S/C."""
    return data_frame(
        {
            "constraint": KINDS[kind],
            "S/C": ratio,
            "lemma's factor": ratio - 1 if ratio < 2 else np.nan,
            "mean factor": rows["factor"].mean(),
            "largest factor of a step": rows["worst_factor"].max(),
            "steepness, second half / first": rows["bend"].mean(),
            "problems that stalled": int((rows["left"] > 1e-6).sum()),
            "problems": len(rows),
        }
        for (kind, ratio), rows in inner.groupby(["kind", "ratio"], sort=False)
    )


def _rate_figure(outer: DataFrame) -> Any:
    tight, base = outer["clip"] == UPPER / LOWER, outer["kappa"] == KAPPA
    exact, growing = outer["player"] == "exact", outer["batch"] == "growing"
    by_clip = outer["clip"].map("U/L = {:g}, kappa 1".format).where(growing, "one sample per step, kappa 4")
    panels = [
        ("groups' condition number", exact & growing & tight, outer["kappa"].map("kappa = {:g}".format)),
        ("error of the inner player", base & growing & tight, outer["player"]),
        ("terms of the statement changed", exact & (((outer["kappa"] == 1) & growing) | ~growing), by_clip),
    ]
    rows = []
    for panel, chosen, labels in panels:
        for (label, steps), group in outer[chosen].groupby([labels[chosen], "steps"], sort=False):
            mean = mean_interval(group["value"])
            rows.append((panel, label, steps, mean.value, mean.low, mean.high, group["bound"].iloc[0]))
    return rate_panels(
        data_frame(rows, ["panel", "label", "steps", "value", "low", "high", "bound"]),
        "Squared gradient of the Moreau envelope, mean over iterates and replicas",
        "outer steps T",
        "E ||grad g||^2",
    )


def _lemma_figure(done: DataFrame) -> Any:
    rows = []
    for cell in done[done["kind"].notna()].to_dict("records"):
        for step, gap in enumerate(cell["median_gap"]):
            bound = (cell["ratio"] - 1) ** step
            shown = bound if cell["ratio"] < 2 and bound > 1e-12 else np.nan
            rows.append((KINDS[cell["kind"]], f"S/C = {cell['ratio']:g}", step, gap or np.nan, shown))
    return rate_panels(
        data_frame(rows, ["panel", "label", "steps", "value", "bound"]),
        "Gap of projected gradient ascent to the maximum, median over random problems",
        "ascent steps",
        "gap, relative to the first",
        log_steps=False,
        bound_label="(S/C - 1)^t, the lemma's",
    )


STUDY = declare(
    __name__,
    title="Convergence rate",
    question="Does the squared gradient of the Moreau envelope fall like eps + kappa_alpha / sqrt(T), and does the "
    "inner ascent converge linearly?",
    source="Theorem, Section 4 and appendix",
    paper_found="At most 4 eps max alpha + 2 kappa_alpha D G / sqrt(T) for eta = 1/(U sqrt(T)) and a batch that grows "
    "with T; the ascent reaches eps in C/(2C - S) log(1/eps) steps.",
)
