"""Figure 7: how does accuracy fall as the batch grows, by method?"""

from itertools import product

from scala_lab.study import Cell, DataFrame, Findings, Profile, Tabulation, declare
from scala_lab.study.gates import accuracy_gates
from scala_lab.study.statistics import paired_difference, slope_per_doubling
from scala_lab.study.tables import difference_drawing, lines_drawing, notes
from scala_lab.study.variants import BASELINE, LAMB, SCALA_OTHER, SCALA_TUNED, arm_cells
from scala_lab.study.verdicts import EQUAL, Claim, ClaimRecord, effect, judge, record

METHODS = (BASELINE, LAMB, SCALA_TUNED, SCALA_OTHER)
PAPER_GAINS = {LAMB.method: (1.05, 0.7), BASELINE.method: (0.65, 1.1)}
"""What the paper's ScaLA gains over each at its first and last large batch, 1K (Table 2) and 8K, mean of both tasks."""

C16 = Claim(
    id="C16",
    statement="Accuracy falls as the batch grows, and ScaLA stays above LAMB and the baseline at every large batch.",
    paper="at 8K: 84.4 / 83.9 / 83.5 (MNLI), 92.6 / 91.7 / 91.3 (SST-2) for ScaLA / LAMB / baseline",
    rule="The slope of the baseline's accuracy per doubling of B, one per seed, has the sign of the "
    "paper's -0.19 points and not less than half of it; so have ScaLA minus LAMB and ScaLA minus baseline at each "
    f"large batch size, by the paper's gains at 1K and 8K for the first and the last, and {2 * EQUAL} points between. "
    "ScaLA has the t_s that is better on tuning rows at the first large batch; the other one is shown.",
)


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline at the small batch size, and all methods from the large one on."""
    large = [batch_size for batch_size in profile.batch_sizes if batch_size >= profile.large_batch]
    cells = arm_cells(profile, BASELINE, profile.small_batch, profile.pair)
    return cells + [cell for size in large for cell in arm_cells(profile, METHODS, size, profile.pair)]


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Compare accuracy over batch sizes."""
    claim = judge(c16, frame, profile.level)
    cells = frame.groupby(["task", "method", "batch_size"], sort=False)
    diverged = cells["status"].agg(lambda values: (values == "diverged").any())
    scores = cells["score"].mean().astype(object).where(~diverged, "diverged").unstack("batch_size")
    scores = scores.rename(columns="B={}".format).rename_axis(columns=None)
    table = Tabulation("", scores, "Figure 7: accuracy (%) over batch sizes.", notes(profile, frame))
    caption = "Figure 7: accuracy over batch sizes; bars standard deviations over seeds."
    title, x_label = "Accuracy over batch sizes", "batch size, log scale"
    figures = lines_drawing(frame, "batch_size", caption, x_label=x_label, title=title, log_x=True)
    figures += difference_drawing(claim.parts[1:], "What ScaLA gains at each batch size", "Figure 7", "gains")
    deciding = "; ".join(f"{part.statement} {part.estimate}" for part in claim.deciding[1:])
    return Findings([table], figures, [claim], f"Baseline per doubling of B {claim.parts[0].estimate}; {deciding}.")


def c16(frame: DataFrame) -> ClaimRecord:
    """Compare baseline, LAMB and ScaLA over `batch_size`, whose smallest value is the small batch."""
    names = zip(frame["method"], frame["batch_size"], strict=True)
    frame = frame.assign(arm=[f"{method} at B={size}" for method, size in names])
    scala, other, lamb, baseline = (variant.method for variant in (SCALA_TUNED, SCALA_OTHER, LAMB, BASELINE))
    sizes = sorted(frame["batch_size"].unique().tolist())
    slope = slope_per_doubling(frame[frame["method"] == baseline])
    parts = [effect("slope of the baseline per doubling of B", slope, -0.19)]
    for size, (method, name), worse in product(sizes[1:], ((scala, "ScaLA"), (other, other)), (lamb, baseline)):
        gain = paired_difference(frame, f"{method} at B={size}", f"{worse} at B={size}", column="arm")
        paper = dict(zip((sizes[1], sizes[-1]), PAPER_GAINS[worse], strict=True)).get(size)
        smallest = EQUAL if paper is None else None
        parts.append(effect(f"{name} minus {worse} at B={size}", gain, paper, smallest, contextual=method == other))
    arms = [f"{baseline} at B={size}" for size in sizes]
    arms += [f"{method} at B={size}" for size in sizes[1:] for method in (lamb, scala)]
    return record(C16, parts, accuracy_gates(frame, arms, column="arm"))


STUDY = declare(
    __name__,
    title="Accuracy over batch sizes",
    question="How does accuracy fall as the batch grows, by method?",
    source="Figure 7",
    paper_found="Accuracy falls from B=32 to 8K; at 8K ScaLA, LAMB and baseline reach 84.4, 83.9, 83.5 on MNLI and "
    "92.6, 91.7, 91.3 on SST-2.",
)
