"""Made-up runs of every claim with a given truth and without noise: the arms, columns and units that its rule asks for.

tests/studies scatters them a little and asks for the right verdict, verdict_rates.py gives them the noise of real runs
and counts the wrong ones. Arguments are the values of a claim's parts, in points or as factors, and default to those
of the paper, or to ones that support the claim where the paper has none. All runs pass all gates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from scala_lab.study.variants import (
    BASELINE,
    FREELB,
    GAUSSIAN,
    LAMB,
    SCALA,
    SCALA_EARLY,
    SCALA_OTHER,
    SCALA_TUNED,
    SMALL_BATCH,
    WITHOUT_DELAY,
    MethodVariant,
)
from scala_lab.timing.harness import STEP
from studies import _paper_tables as paper
from studies._timings import LARGE, NO_DELAY, SMALL
from studies.ablation import WITHOUT_GROUPS, WITHOUT_NOISE
from studies.batch_sizes import PAPER_GAINS
from studies.dropout_confound import DRAWS, NOISE, OTHER_DRAWS
from studies.flatness import ARMS, LARGEST, RELATIVES
from studies.lr_scaling import RULED, TUNED
from studies.main_results import BASELINE_GAINS, FASTER, MODELS, SECONDS, TASK_NAMES
from studies.perturbation_kinds import SCALA_GT, SCALA_LP
from studies.sharpness import MEASUREMENT
from studies.train_longer import LONGER

TRAINED = {
    **{"model": "m", "status": "finished", "rows": 20_000, "chance_score": 50.0, "train_loss": 0.1, "chance_loss": 0.7},
    **{"interior": True, "selection_split": "tuning", "score_split": "heldout", "steps": 192, "forward_passes": 18.0},
}
"""What every run has that passes all gates."""
LEVEL = 80.0
"""Accuracy to which an arm adds its own."""
WORKERS = (1, 2, 4, 8, 16, 32)

Arms = list[dict[str, Any]]


def crossed(rows: Iterable[Mapping[str, Any]], **units: Sequence[Any]) -> pd.DataFrame:
    """Return each row with every combination of the units' values, row after row."""
    combinations = pd.DataFrame(itertools.product(*units.values()), columns=list(units))
    made = pd.DataFrame(rows).merge(combinations, how="cross")
    return made.astype(dict.fromkeys(made.select_dtypes("str"), object))  # whose values are read much faster


def runs(arms: Arms, seeds: int, tasks: Sequence[str] = ("a",)) -> pd.DataFrame:
    """Return a run of every arm, task and seed."""
    rows = [{**TRAINED, **arm, "score": LEVEL + arm.get("score", 0.0)} for arm in arms]
    return crossed(rows, task=tasks, seed=range(seeds))


def arm(variant: MethodVariant, score: float = 0.0, trunk: object = None, **columns: Any) -> dict[str, Any]:
    """Return an arm with what it adds to the score; arms of one trunk share their first epochs, seed by seed."""
    own = variant.method if trunk is None else trunk
    return {"method": variant.method, "score": score, "trunk": own, **columns}


branch = partial(arm, trunk=LAMB.method)


def heat(
    exponent: float = 0.5, sizes: Sequence[int] = (32, 512, 2048), curvature: float = 1.0, points: int = 5
) -> Arms:
    """C3: trials whose score falls with the square of `doublings`, from a best rate that grows with B as B^exponent."""
    trials = []
    for size in sizes:
        best, centre = 2e-4 * (size / 32) ** exponent, 2e-4 * math.sqrt(size / 32)
        nearest = round(math.log2(best / centre))
        for step in range(nearest - points // 2, nearest + points // 2 + 1):
            doublings = math.log2(centre / best) + step
            place = {"batch_size": size, "rate": centre * 2.0**step, "doublings": doublings, "curvature": curvature}
            score = -curvature * doublings**2
            trials.append(arm(BASELINE, score, (size, step), rows=4000, interior=math.nan, **place))
    return trials


def gaps(gap: float = 0.9, slope: float = -0.27) -> Arms:
    """C4: the mean gap of the large batches to the small one, and their slope per doubling."""
    large = [2**power for power in (8, 9, 10, 11)]
    scores = {32: 0.0, **{size: -gap + slope * (math.log2(size) - 9.5) for size in large}}
    return [arm(BASELINE, score, size, batch_size=size) for size, score in scores.items()]


def sharpness(large: float = 2.6, deviation: float = 3.9, scala: float = 2.6 / 6.9, matched: float = 1.0) -> Arms:
    """C5, C6: top eigenvalues of the large batch and of ScaLA over the small batch's; `matched` at equal loss."""
    return [
        arm(SMALL_BATCH, eigenvalue=1.0, deviation=0.1, matched=1.0),
        arm(BASELINE, eigenvalue=large, deviation=0.1 * deviation, matched=matched),
        arm(SCALA_TUNED, eigenvalue=scala, deviation=0.05, matched=matched),
    ]


def ascents(
    gain: float = 0.0,
    counts: Sequence[int] = (1, 2, 3),
    passes: Callable[[int], float] = lambda steps: 10.0 + 2 * steps,
) -> Arms:
    """C8: what more than one ascent step gains, and forward passes as a function of the steps."""
    return [branch(SCALA_TUNED, gain * (steps > 1), pga_steps=steps, forward_passes=passes(steps)) for steps in counts]


def results(
    seeds: int,
    accuracy: float = 0.0,
    faster: float = geometric_mean(FASTER),
    scaling: float = geometric_mean(BASELINE_GAINS),
    workers: int = 32,
    tasks: Sequence[str] = ("a",),
) -> pd.DataFrame:
    """C9, C23, C24: runs and timed steps of the small batch and of ScaLA.

    Args:
        seeds: Seeds of the runs, and timed steps.
        accuracy: ScaLA minus the small batch.
        faster: Time of the small batch over ScaLA's, both on many workers.
        scaling: Time of the small batch on one worker over that on many.
        workers: How many are many.
        tasks: Tasks of runs and steps.
    """
    arms = [arm(SMALL_BATCH), branch(SCALA_TUNED, accuracy), branch(SCALA_OTHER, accuracy)]
    trained = runs(arms, seeds, tasks).assign(kind=None, workers=1, dev=90.0)
    small, scala = 100 / scaling, 100 / scaling / faster
    times = [(SMALL_BATCH, 1, 100.0), (SMALL_BATCH, workers, small), (SCALA_TUNED, workers, scala)]
    timed = [
        {"kind": SECONDS, "model": "m", "method": variant.method, "workers": count, "seconds": seconds}
        for variant, count, seconds in times
    ]
    return pd.concat([trained, crossed(timed, task=tasks, step=range(seeds))], ignore_index=True)


def encoders(seeds: int, gain: float = 0.4, bert: float = 1.0, roberta: float = 0.1) -> pd.DataFrame:
    """C26: ScaLA minus the small batch, and how far the small batch of each encoder lies above what was published."""
    parts = []
    for name, above in ((paper.BERT, bert), (paper.ROBERTA, roberta)):
        made = runs([arm(SMALL_BATCH), branch(SCALA_TUNED, gain)], seeds, tuple(TASK_NAMES))
        published = made["task"].map(TASK_NAMES).map(paper.published(name)).fillna(90.0)
        parts.append(made.assign(model=MODELS[name], kind=None, workers=32, dev=published + above))
    return pd.concat(parts, ignore_index=True)


def table_2(over_lamb: float = 0.8, lamb: float = 0.2) -> Arms:
    """C10: ScaLA minus LAMB, and LAMB minus the baseline."""
    scala = lamb + over_lamb
    return [arm(BASELINE), branch(LAMB, lamb), branch(SCALA_TUNED, scala), branch(SCALA_OTHER, scala)]


def ablation(cost: float = 1.7, delay: float = 0.1, groups: float = -0.2, noise: float = -0.8) -> Arms:
    """C11: forward passes without delay over ScaLA's, and accuracy without each part minus ScaLA."""
    return [
        branch(SCALA_TUNED, forward_passes=28.0),
        branch(SCALA_OTHER, forward_passes=23.0),
        arm(WITHOUT_DELAY, delay, forward_passes=28 * cost),
        arm(WITHOUT_GROUPS, groups),
        branch(WITHOUT_NOISE, noise),
    ]


def freelb(accuracy: float = -0.1, cost: float = 2.7) -> Arms:
    """C12: FreeLB minus ScaLA, and its forward passes over ScaLA's."""
    return [
        branch(SCALA, forward_passes=20.0),
        branch(SCALA_EARLY, forward_passes=33.0),
        arm(FREELB, accuracy, forward_passes=20 * cost),
    ]


def kinds(target: float = 0.4, direction: float = 0.3, random: float = 0.3) -> Arms:
    """C13: what LP gains over GT, GT over Gaussian noise, and that over none."""
    return [
        arm(BASELINE),
        branch(LAMB),
        branch(GAUSSIAN, random),
        branch(SCALA_GT, random + direction),
        branch(SCALA_LP, random + direction + target),
    ]


def longer(gain: float = 1.2) -> Arms:
    """C15: ScaLA minus the baseline trained longer."""
    trained_longer = BASELINE.but(LONGER)
    return [arm(trained_longer), arm(BASELINE, -0.2), branch(SCALA_TUNED, gain), branch(SCALA_OTHER, gain)]


def sizes(slope: float = -0.19, gain: float = 1.0, last: float = 1.0) -> Arms:
    """C16: the baseline's slope per doubling, and shares of the paper's gains of ScaLA.

    `gain` is the share at every size, `last` another factor of what ScaLA gains over LAMB at the last one.
    """
    over_lamb, over_baseline = ((first, 0.8, end) for first, end in PAPER_GAINS.values())
    arms = [arm(BASELINE, trunk=32, batch_size=32)]
    for size, above_lamb, above in zip((512, 1024, 2048), over_lamb, over_baseline, strict=True):
        score = slope * math.log2(size / 32)
        scala, factor = score + gain * above, gain * (last if size == 2048 else 1.0)
        arms.append(arm(BASELINE, score, size, batch_size=size))
        arms.append(arm(LAMB, scala - factor * above_lamb, -size, batch_size=size))
        arms += [arm(variant, scala, -size, batch_size=size) for variant in (SCALA_TUNED, SCALA_OTHER)]
    return arms


def delays(start: float = 0.0, over_start: float = 0.8, over_last: float = 0.8) -> Arms:
    """C17: noise from the start minus none, and a middle t_s minus the start and minus the last."""
    middle = start + over_start
    scores = {0.0: start, 2.0: middle, 3.0: middle, 5.0: middle - over_last, math.inf: 0.0}
    return [arm(SCALA, score, "start" if delay == 0 else "LAMB", delay=delay) for delay, score in scores.items()]


def rule_rates(scala: float = 0.3, baseline: float = -0.7) -> Arms:
    """C18, C25: ScaLA by rule minus ScaLA tuned, and the baseline by rule minus the small batch."""
    return [
        *(arm(SMALL_BATCH), arm(RULED[0], baseline), arm(TUNED[0], baseline)),
        *(arm(TUNED[1]), arm(RULED[1], scala)),
    ]


def causes(
    draws: float = 0.8, scala: float = 0.0, noise: float = 0.0, by_draws: float = 1.0, by_noise: float = 1e-3
) -> Arms:
    """C21: each cause alone.

    Args:
        draws: Two draws minus LAMB, in points.
        scala: ScaLA minus two draws.
        noise: Noise with one draw minus LAMB.
        by_draws: Divergence of two draws over ScaLA's.
        by_noise: Divergence of noise with one draw over ScaLA's.
    """
    return [
        branch(LAMB, divergence=math.nan),
        *(branch(variant, draws, divergence=by_draws) for variant in (DRAWS, OTHER_DRAWS)),
        *(branch(variant, draws + scala, divergence=1.0) for variant in (SCALA_TUNED, SCALA_OTHER)),
        branch(NOISE, noise, divergence=by_noise),
    ]


def flatness(relation: float = -0.95) -> Arms:
    """C28: all methods, relatives as one trunk; `relation` is the correlation of their sharpness and accuracy."""
    own = {"kind": MEASUREMENT, LARGEST: 1.0, "loss": 0.1, "relation": relation}
    return [arm(variant, trunk=RELATIVES.get(variant.method), **own) for variant in ARMS]


def falling(*gains: float) -> list[float]:
    """Return seconds on 1, 2, 4, ... workers that each doubling divides by its gain."""
    return (100 / np.cumprod([1.0, *gains])).tolist()


def small(steps: int, up_to: float = 1.8, beyond: float = 1.0, silent: float = 1.8) -> pd.DataFrame:
    """C1: gains per doubling of the small batch up to 4 workers, beyond, and without communication."""
    seconds = zip(WORKERS, falling(*2 * [up_to], *3 * [beyond]), falling(*5 * [silent]), strict=True)
    cells = [{"label": SMALL, "workers": count, "seconds": whole, "without": part} for count, whole, part in seconds]
    return crossed(cells, step=range(steps))


def large(steps: int, gain: float = 1.8, last: float = 1.8) -> pd.DataFrame:
    """C2: gains per doubling of the large batch up to 16 workers, and from there to 32."""
    seconds = zip(WORKERS, falling(*4 * [gain], last), strict=True)
    return crossed(
        [{"label": LARGE, "workers": count, "seconds": value} for count, value in seconds], step=range(steps)
    )


def methods(steps: int, gain: float = 1.8, baseline: float = 1.8, saved: float = 1.21) -> pd.DataFrame:
    """C14: gains per doubling, the baseline's apart, and what the delay saves on fewer workers over that on 32."""
    lines = {label: falling(*5 * [gain]) for label in (LAMB.method, SCALA.method, SCALA_EARLY.method)}
    late = [
        1.1 * value * (1.0 if count == 32 else saved)
        for count, value in zip(WORKERS, falling(*5 * [gain]), strict=True)
    ]
    lines |= {BASELINE.method: falling(*5 * [baseline]), NO_DELAY: late}
    cells = [
        {"label": label, "workers": count, "seconds": value}
        for label, seconds in lines.items()
        for count, value in zip(WORKERS, seconds, strict=True)
    ]
    return crossed(cells, step=range(steps))


def phases(
    steps: int, inner: float = 1.0, backward: float = 2.0, optimizer: float = 1.0, plain_backward: float = 2.0
) -> pd.DataFrame:
    """C7: phases of a step in units of a forward pass; plain forward 1, optimizer 0.5.

    Args:
        steps: Timed steps.
        plain_backward: Backward of a plain step.
        inner: The inner forward pass.
        backward: Backward with noise over plain.
        optimizer: Optimizer with noise over plain.
    """
    plain = {"clean forward": 1.0, "backward": plain_backward, "optimizer": 0.5}
    noise = {"clean forward": 1.0, "inner forward": inner, "inner backward": 1.0, "adversarial forward": 1.0}
    noise |= {"backward": plain_backward * backward, "optimizer": 0.5 * optimizer}
    cells = [
        {"method": method, "phase": phase, "seconds": seconds}
        for method, by_phase in (("plain", plain), ("PGA-1", noise))
        for phase, seconds in {**by_phase, STEP: sum(by_phase.values())}.items()
    ]
    return crossed(cells, step=range(steps))


SETTINGS = ((1.0, 0.0, 2.0), (4.0, 0.0, 2.0), (16.0, 0.0, 2.0), (4.0, 0.01, 2.0), (4.0, 0.1, 2.0), (1.0, 0.0, 32.0))


def outer(
    replicas: int,
    power: float = -0.5,
    added: float = 0.5,
    kappa_power: float = 0.0,
    tight: float = 0.6,
    wide: float = 3.0,
    settings: Sequence[tuple[float, float, float]] = SETTINGS,
) -> pd.DataFrame:
    """C19, C22, C27: squared gradients over T, kappa_alpha, the inner error eps and U/L.

    Args:
        replicas: How many.
        power: Exponent of T.
        added: What eps adds over the printed term; in a column of its own as well.
        kappa_power: Exponent of kappa_alpha.
        tight: Value over bound at kappa_alpha 1, U/L = 2 and the smallest T.
        wide: Value over bound at U/L = 32.
        settings: kappa_alpha, eps and U/L.
    """
    fixed = {"ascent_steps": 0, "batch": "growing", "gap": 20.0, "gradient_bound": 3.2, "largest_alpha": 4.4}
    cells = []
    for (kappa, epsilon, clip), steps in itertools.product(settings, (64, 256, 1024)):
        by_error = 4 * epsilon * fixed["largest_alpha"]
        bound = by_error + 2 * kappa * fixed["gap"] * fixed["gradient_bound"] / math.sqrt(steps)
        exact = tight * 16 * (steps / 64) ** power * kappa**kappa_power if clip == 2 else wide * bound
        cells.append(
            {**fixed, "kappa": kappa, "epsilon": epsilon, "clip": clip, "steps": steps, "bound": bound}
            | {"value": exact + added * by_error, "added": added * by_error}
        )
    return crossed(cells, replica=range(replicas))


def inner(
    problems: int, worst: float = 0.5, bend: float = 0.9, ratios: Sequence[float] = (1.2, 1.9, 4.0)
) -> pd.DataFrame:
    """C20: the largest factor of a step over S/C - 1, and the steepness of log gap, second half over first."""
    cells = [
        {"kind": kind, "ratio": ratio, "worst_factor": worst * (ratio - 1), "bend": bend}
        for kind in ("box", "sparse")
        for ratio in ratios
    ]
    return crossed(cells, problem=range(problems))
