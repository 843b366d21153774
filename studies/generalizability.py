"""Figure 1(b): how do the best learning rate and the accuracy it reaches change with the batch size?

The heat map shows the trials that tuned the baseline's rate: one seed, scored on tuning rows. Accuracies come from runs
at the tuned rates with all seeds, scored on other rows.
"""

import math

import numpy as np

from scala_lab.report.figures.accuracy import rate_heat_map
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import Gate, accuracy_gates
from scala_lab.study.statistics import Estimate, contrast, slope_per_doubling
from scala_lab.study.tables import data_frame, difference_drawing, notes, status_note
from scala_lab.study.tuning import TUNING_SPLIT, score_error
from scala_lab.study.variants import BASELINE, arm_cells
from scala_lab.study.verdicts import Claim, ClaimRecord, effect, judge, record, within

ABOUT_SQRT = (0.25, 0.75)
"""Exponents of B that count as about a square root: nearer to 1/2 than to a constant rate or to the linear rule."""
MIN_SIZES = 3
HALF_STEP = 0.5
"""Half of a grid's step, in doublings: the best rate lies no further from the nearest one that was tried."""

C3 = Claim(
    id="C3",
    statement="The best learning rate grows about with the square root of the batch size.",
    paper="roughly sqrt(B) over B = 1K to 8K, not always",
    rule="The exponent of B in the best rate, from a least-squares line through the logarithms, lies within {} to {}. "
    "A batch size's best rate is anywhere between the lowest and the highest rate whose trial is within one standard "
    "error of the best one's score, and half a step of the grid beyond; the interval adds up these errors. There is "
    "one tuning seed: what other seeds would change beyond that is not in it.".format(*ABOUT_SQRT),
)
C4 = Claim(
    id="C4",
    statement="Large batches are less accurate than the small one at their best rates, the more so the larger.",
    paper="the gap to B=32 grows from 1K to 8K; on MNLI it is 0.5 at 1K (Table 2) and 1.3 at 8K (Figure 7)",
    rule="The mean gap of the large batches to the small one, and the slope of accuracy over the large ones per "
    "doubling of B, one per seed, have the paper's signs, and are not smaller than half of its 0.9 and -0.27 points.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline at its tuned rates, and the trials that tuned them."""
    task, sizes = profile.pair[0], profile.batch_sizes
    cells = [cell for size in sizes for cell in arm_cells(profile, BASELINE, size, [task])]
    for size in sizes:
        labels = {"model": profile.models[0], "task": task, "method": "plain", "batch_size": size}
        for rate, spec in profile.rate_trials(task, "adamw", size).items():
            cells.append(Cell(spec, **labels, rate=rate, seed=spec.seed))
    return cells


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw the heat map; compare the best rates and the gaps to the small batch."""
    task, small = profile.pair[0], profile.small_batch
    arms, trials = frame[frame["interior"].notna()], frame[frame["interior"].isna()]
    measured = [name for name in frame.columns if name.startswith(f"{TUNING_SPLIT}_")]
    rows = profile.settings.get("tuning_samples", 0)
    trials = trials.assign(score=trials[measured[0]] if measured else math.nan, rows=rows)
    trials["diverged"] = trials["status"] == "diverged"
    by_rate = trials.assign(shown=trials["score"].astype(object).where(~trials["diverged"], "diverged"))
    by_rate = by_rate.pivot(index="batch_size", columns="rate", values="shown").rename(columns="{:g}".format)
    claims = [judge(c3, trials, profile.level), judge(c4, arms, profile.level)]
    exponent, gap, slope = (part.estimate for claim in claims for part in claim.parts)
    tables = [
        Tabulation(
            "",
            by_rate.rename_axis(columns=None, index="batch size"),
            f"Figure 1(b): accuracy (%) of the baseline on {task}, batch sizes as rows, rates as columns.",
            [f"AdamW, {profile.settings['epochs']} epochs, one seed, {rows:,} tuning rows.", *status_note(trials)],
        ),
        Tabulation(
            "best",
            best_by_size(arms, small),
            "Figure 1(b): tuned rate of each batch size, its accuracy on other rows, and the gap to the small batch.",
            notes(profile, arms),
        ),
    ]
    figures = difference_drawing(claims[1].parts, f"Gap to B={small} on {task}", "Figure 1(b)", "gaps")
    if trials["score"].notna().any():
        caption = (
            f"Figure 1(b): accuracy of the baseline on {task} over batch size and rate, on tuning rows. Framed: the "
            "best rate of a batch size, dashed where it ends its grid. Lines: rates that the square-root and the "
            "linear rule carry over from the smallest batch shown."
        )
        heat_map = rate_heat_map(trials, f"Baseline on {task}: accuracy over batch size and rate")
        figures.insert(0, Drawing("", heat_map, caption))
    summary = (
        f"The best rate grows with B to the power {exponent}; large batches lie {gap} below B={small}, and accuracy "
        f"changes by {slope} per doubling."
    )
    return Findings(tables, figures, claims, summary)


def best_by_size(arms: DataFrame, small: int) -> DataFrame:
    """Return the tuned rate of each batch size, whether it lies inside of its grid, its score, and the gap."""
    small_score = arms[arms["batch_size"] == small]["score"].mean()
    rows = [
        (size, runs["rate"].iloc[0], bool(runs["interior"].iloc[0]), score := runs["score"].mean(), small_score - score)
        for size, runs in arms.groupby("batch_size")
    ]
    columns = ["batch size", "tuned rate", "inside of its grid", "accuracy", f"gap to B={small}"]
    return data_frame(rows, columns).set_index("batch size")


def c3(frame: DataFrame) -> ClaimRecord:
    """Fit the exponent on the trials: batch_size, rate, score on tuning rows (nan where a run diverged) and rows."""
    scored = frame.dropna(subset=["score"])
    ends = scored.groupby("batch_size")["rate"]
    best = scored.assign(interior=(ends.transform("min") < scored["rate"]) & (scored["rate"] < ends.transform("max")))
    best = best.sort_values("score").groupby("batch_size", as_index=False).tail(1)
    sizes = sorted(frame["batch_size"].unique().tolist())
    remedy = f"at least {MIN_SIZES} batch sizes, so that a line can miss them"
    asked = ("arms run", "clear of chance", "fitted", "best setting inside", "steps")
    gates = [
        Gate("batch sizes", len(sizes) >= MIN_SIZES, f"{len(sizes)} batch sizes", remedy),
        *accuracy_gates(best, sizes, ask=asked, column="batch_size"),
    ]
    part = within("exponent of B in the best rate", exponent_of(scored), *ABOUT_SQRT, paper=0.5)
    return record(C3, [part], gates)


def exponent_of(scored: DataFrame) -> Estimate:
    """Return the exponent with the interval that the plausible ranges of best rates leave.

    A rate that is uniform in a range of width w, in doublings, has the variance w^2 / 12.
    """
    sizes, middles, variances = [], [], []
    for size, runs in scored.groupby("batch_size"):
        error = score_error(runs["rows"].iloc[0])
        plausible = np.log2(runs[runs["score"] >= runs["score"].max() - error]["rate"].to_numpy(float))
        sizes.append(float(size))
        middles.append((plausible.min() + plausible.max()) / 2)
        variances.append((plausible.max() - plausible.min() + 2 * HALF_STEP) ** 2 / 12)
    if len(sizes) < 2:
        return Estimate(math.nan)
    centred = np.log2(sizes) - np.mean(np.log2(sizes))
    weights = centred / np.sum(centred**2)
    error = math.sqrt(float(weights**2 @ variances))
    note = "one tuning seed: the interval is that of the grid and the tuning rows"
    return Estimate(float(weights @ middles), 1, se=error, df=1e6, se_rows=error, note=note)


def c4(frame: DataFrame) -> ClaimRecord:
    """Compare the scores of large batches at their best rates with those of the smallest batch_size, by seed."""
    sizes = sorted(frame["batch_size"].unique().tolist())
    large = sizes[1:]
    weights = {**dict.fromkeys(sizes[:1], 1.0), **dict.fromkeys(large, -1 / max(1, len(large)))}
    slope = slope_per_doubling(frame[frame["batch_size"].isin(large)])
    parts = [
        effect("gap of large batches to the small one", contrast(frame, weights, column="batch_size"), 0.9),
        effect("slope of accuracy over large batches per doubling of B", slope, -0.27),
    ]
    return record(C4, parts, accuracy_gates(frame, sizes, column="batch_size"))


STUDY = declare(
    __name__,
    title="Accuracy over batch size and learning rate",
    question="How do the best learning rate and the accuracy it reaches change with the batch size?",
    source="Figure 1(b)",
    paper_found="BERT-base on MNLI: the best rate grows roughly with the square root of B, though not always; the gap "
    "to the small batch grows from B=1K to 8K.",
)
