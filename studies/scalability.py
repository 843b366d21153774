"""How the time of an epoch falls with the number of workers, at a small and a large batch size."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from scala_lab.study import Cell, Drawing, Findings, Study, Tabulation
from scala_lab.study.statistics import Estimate, paired_columns, paired_ratio
from scala_lab.study.variants import BASELINE
from scala_lab.study.verdicts import Claim, ClaimRecord, Part, above, below, record
from scala_lab.timing.calibration import WITHIN
from scala_lab.timing.hosts import bits_per_second
from scala_lab.timing.model import rounds_and_share
from studies._timings import lacking, measured, medians, places, step_cell, step_note, step_rows

if TYPE_CHECKING:
    import pandas as pd

    from scala_lab.study.profiles import Profile

PLACE = ["label", "B", "workers", "link"]


def cells(profile: Profile) -> list[Cell]:
    """The baseline at both batch sizes, for every number of workers of the profile, and across two hosts."""
    rows = [(BASELINE.named(SMALL), profile.small_batch), (BASELINE.named(LARGE), profile.large_batch)]
    return [step_cell(profile, rows, profile.pair[0], place) for place in places(profile)]


def analyse(profile: Profile, frame: pd.DataFrame) -> Findings:
    """Lines over workers with and without communication, and what communication adds on each kind of link."""
    from scala_lab.report.figures.timing import exchange_bars, worker_lines

    done = frame[frame["status"] == "finished"]
    if measured(done).empty:
        return Findings()
    steps = step_rows(done)
    rows = epoch_rows(steps)
    here = rows[rows["link"] == WITHIN]
    task = done["task"].iloc[0]
    notes = [
        f"{step_note(profile)}, times the steps of an epoch over the same rows; "
        f"{task}, one process per worker on this machine.",
        "Without communication: the same steps run again without the all-reduce, on the slowest worker, in turns with "
        "those that have it. What is left is exposed communication; the trainer hides none of it.",
        *_host_notes(done),
    ]
    table = epoch_table(rows)
    return Findings(
        tables=[
            Tabulation("", table, "Figure 1(a): seconds per epoch over workers.", notes),
            Tabulation("exchange", exchange_table(steps), "Figure 1(a): the all-reduce by itself.", [_EXCHANGE_NOTE]),
            Tabulation("throughput", throughput_table(steps), "Throughput of the same steps.", [_FLOPS_NOTE]),
        ],
        figures=[
            Drawing(
                "",
                worker_lines(figure_rows(here), "Time per epoch over workers, with and without communication"),
                f"Figure 1(a): scalability on {task}.",
            ),
            Drawing(
                "links",
                exchange_bars(bar_rows(rows)),
                "Figure 1(a): what communication adds to a step, by batch size and by what the workers talk over.",
            ),
        ],
        claims=[c1(here), c2(here)],
        found=_sentence(table),
    )


_FLOPS_NOTE = (
    "FLOP/s of the model: its linear layers and attention over real tokens, a backward pass counted as two forward "
    "ones; their share of what the same workers reach at the same time in products of large matrices."
)


_EXCHANGE_NOTE = (
    "Seconds of the all-reduce on the worker that comes to it last, and so waits for nobody, beside what the bytes of "
    "each worker take at the link's rate; packets have headers, which the rate counts as well."
)


def _host_notes(done: pd.DataFrame) -> list[str]:
    if set(measured(done)["link"]) <= {WITHIN}:
        return lacking(done)
    return ["Links with a rate join two hosts, which are network namespaces of this machine, shaped in each direction."]


def epoch_rows(steps: pd.DataFrame) -> pd.DataFrame:
    """One row per place, batch size and step: seconds of an epoch at that step's pace."""
    rows = steps[[*PLACE, "step"]].copy()
    for name in ("seconds", "without"):
        rows[name] = steps[name] * steps["steps_per_epoch"]
    return rows


def figure_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The four lines of the figure: both batch sizes, with and without communication."""
    import pandas as pd

    parts = []
    for value, suffix in (("seconds", ""), ("without", " (no communication)")):
        part = medians(rows, PLACE, value)
        parts.append(part.assign(label=[f"B = {size}{suffix}" for size in part["B"]]))
    return pd.concat(parts, ignore_index=True)


def bar_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """A bar per batch size and place with several workers: computing and exposed communication, in shares."""
    several = rows[rows["workers"] > 1]
    whole, without = (medians(several, PLACE, value) for value in ("seconds", "without"))
    labels = [
        f"B = {bar['B']}, {bar['workers']} workers" + ("" if bar["link"] == WITHIN else f", 2 hosts, {bar['link']}")
        for bar in whole.to_dict("records")
    ]
    exposed = (whole["value"] - without["value"]).clip(lower=0)
    return whole.assign(label=labels, computing=without["value"], exposed=exposed).sort_values("B", kind="stable")


def epoch_table(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per batch size and place."""
    table = medians(rows, PLACE, "seconds").rename(columns={"value": "seconds per epoch"})
    table["without communication"] = medians(rows, PLACE, "without")["value"]
    exposed = 1 - table["without communication"] / table["seconds per epoch"]
    alone = table[table["workers"] == table["workers"].min()].set_index("label")["seconds per epoch"]
    table["exposed share"] = exposed.clip(lower=0)
    table["speedup"] = table["label"].map(alone) / table["seconds per epoch"]
    table["efficiency"] = table["speedup"] / (table["workers"] / table["workers"].min())
    table = table.rename(columns={"label": "batch"}).sort_values("B", kind="stable")
    kept = ["batch", "B", "workers", "link", "seconds per epoch", "low", "high", "without communication"]
    return table[[*kept, "exposed share", "speedup", "efficiency"]]


def exchange_table(steps: pd.DataFrame) -> pd.DataFrame:
    """The all-reduce at each place with several workers, beside bytes over rate where the link has one."""
    several = steps[steps["workers"] > 1]
    table = medians(several, [*PLACE, "gradient_bytes"], "exchange").rename(columns={"value": "all-reduce (s)"})
    sent = [
        rounds_and_share(workers, "ring")[1] * size
        for workers, size in zip(table["workers"], table.pop("gradient_bytes"), strict=True)
    ]
    table["MB sent"] = [size / 1e6 for size in sent]
    table["bytes / rate (s)"] = [
        math.nan if link == WITHIN else 8 * size / bits_per_second(link)
        for link, size in zip(table["link"], sent, strict=True)
    ]
    table["ratio"] = table["all-reduce (s)"] / table["bytes / rate (s)"]
    kept = [*PLACE, "MB sent", "all-reduce (s)", "low", "high", "bytes / rate (s)", "ratio"]
    return table[kept].rename(columns={"label": "batch"}).sort_values("B", kind="stable")


def throughput_table(steps: pd.DataFrame) -> pd.DataFrame:
    """Samples, tokens and operations per second at each place."""
    rates = steps[PLACE].copy()
    for name, unit in (("samples", 1.0), ("tokens", 1.0), ("flops", 1e9)):
        rates[name] = steps[name] / steps["seconds"] / unit
    rates["share of matmul"] = steps["flops"] / steps["seconds"] / steps["matmul_rate"]
    names = {"samples": "samples/s", "tokens": "tokens/s", "flops": "GFLOP/s", "label": "batch"}
    middle = rates.groupby(PLACE, sort=False)[["samples", "tokens", "flops", "share of matmul"]].median()
    return middle.reset_index().rename(columns=names).sort_values("B", kind="stable")


def _sentence(table: pd.DataFrame) -> str:
    """Speedups within a host, and what each link costs."""
    parts = []
    for label, group in table.groupby("batch", sort=False):
        here = group[group["link"] == WITHIN]
        last = here.loc[here["workers"].idxmax()]
        parts.append(f"{label} {last['speedup']:.2f}x on {last['workers']:g} workers")
        parts += [
            f"{row['speedup']:.2f}x on 2 hosts at {row['link']}"
            for row in group[group["link"] != WITHIN].to_dict("records")
        ]
    return f"Speedup over one worker: {', '.join(parts)}."


SMALL, LARGE = "small batch", "large batch"

GAIN = 1.2
"""Doubling the workers is said to help when it divides the time by more than this; perfect scaling divides it by 2."""

KNEE, MOST = 4, 32
"""Where the paper's small batch stops scaling, and how far its large batch goes."""

C1 = Claim(
    id="C1",
    source="Figure 1(a), Section 3",
    study="scalability",
    statement="At the small batch size time stops falling at about 4 workers; without communication it goes on.",
    paper="B=32: plateau from 4 of 32 workers on",
    rule="Per doubling of workers: beyond 4 the time falls by a factor below 1.2, up to 4 and without communication "
    "beyond 4 by one above 1.2. Decided only where more than 4 workers were measured.",
)

C2 = Claim(
    id="C2",
    source="Figure 1(a), Section 3",
    study="scalability",
    statement="At the large batch size time keeps falling up to 32 workers.",
    paper="B=1K: falls from 1 to 32 workers",
    rule="Per doubling of workers, over all and over the last, the time falls by a factor above 1.2. Decided only "
    "where 32 workers were measured.",
)


def c1(frame: pd.DataFrame) -> ClaimRecord:
    """The small batch."""
    small = frame[frame["label"] == SMALL]
    counts = _counts(small)
    if not counts:
        return record(C1, ())
    beyond = [count for count in counts if count >= KNEE]
    parts = [
        above("gain per doubling up to 4", _gain(small, "seconds", [count for count in counts if count <= KNEE]), GAIN),
        below("gain per doubling beyond 4", _gain(small, "seconds", beyond), GAIN),
        above("gain per doubling beyond 4 without communication", _gain(small, "without", beyond), GAIN),
    ]
    return record(C1, parts if counts[-1] > KNEE else _undecided(parts))


def c2(frame: pd.DataFrame) -> ClaimRecord:
    """The large batch."""
    large = frame[frame["label"] == LARGE]
    counts = _counts(large)
    if not counts:
        return record(C2, ())
    parts = [
        above(f"gain per doubling from {counts[0]:g} to {counts[-1]:g}", _gain(large, "seconds", counts), GAIN),
        above("gain of the last doubling", _gain(large, "seconds", counts[-2:]), GAIN),
    ]
    return record(C2, parts if counts[-1] >= MOST else _undecided(parts))


def _counts(frame: pd.DataFrame) -> list[float]:
    return sorted(set(frame["workers"]))


def _gain(line: pd.DataFrame, value: str, counts: list[float]) -> Estimate:
    """By what factor a doubling of the workers divides the time, from the fewest to the most of some numbers."""
    if len(counts) < 2:
        return Estimate(math.nan, -math.inf, math.inf, 0, unit="x")
    pairs = paired_columns(line[["workers", "step", value]], value, "workers", counts[0], counts[-1])
    whole = paired_ratio(pairs["left"], pairs["right"])
    power = 1 / math.log2(counts[-1] / counts[0])
    return replace(whole, value=whole.value**power, low=whole.low**power, high=whole.high**power)


def _undecided(parts: list[Part]) -> list[Part]:
    """The numbers, without a verdict: too few workers to speak of what the paper claims."""
    return [replace(part, verdict="inconclusive") if part.estimate.n else part for part in parts]


STUDY = Study(
    name="scalability",
    title="Scalability",
    question="Does more workers mean less time, at a small and at a large batch size?",
    cells=cells,
    analyse=analyse,
    source="Figure 1(a)",
    paper_found="BERT-base on MNLI: at B=32 time falls up to 4 GPUs and no further, because communication dominates; "
    "at B=1K it falls up to 32.",
    claims=(
        C1,
        C2,
    ),
)

if __name__ == "__main__":
    from scala_lab.study.api import main

    raise SystemExit(main(STUDY))
