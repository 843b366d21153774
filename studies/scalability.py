"""Figure 1(a): how the time of an epoch falls with the number of workers, at a small and a large batch size."""

import math
from functools import partial

from scala_lab.report.figures.timing import exchange_bars, worker_lines
from scala_lab.study import Cell, DataFrame, Drawing, Findings, Profile, Tabulation, declare
from scala_lab.study.variants import BASELINE
from scala_lab.study.verdicts import Claim, ClaimRecord, at_most, judge, record, within
from scala_lab.timing.calibration import WITHIN
from scala_lab.timing.hosts import bits_per_second
from scala_lab.timing.model import rounds_and_share
from studies import _timings as timings
from studies._timings import GAIN, LARGE, PAPER_WORKERS, SMALL

KEYS = ["label", "B", "workers", "link"]
KNEE = 4  # workers beyond which the paper's small batch stops scaling
HOSTS_NOTE = "Links with a rate join two hosts, which are network namespaces of this machine, shaped in each direction."
EXCHANGE_NOTE = (
    "Seconds of the all-reduce on the worker that comes to it last, and so waits for nobody, beside what the bytes of "
    "each worker take at the link's rate; packets have headers, which the rate counts as well."
)
FLOPS_NOTE = (
    "FLOP/s of the model: its linear layers and attention over real tokens, a backward pass counted as two forward "
    "ones; their share of what the same workers reach at the same time in products of large matrices."
)


def cells(profile: Profile) -> list[Cell]:
    """Return the baseline at both batch sizes, for every number of workers of the profile, and across two hosts."""
    rows = [(BASELINE.but(SMALL), profile.small_batch), (BASELINE.but(LARGE), profile.large_batch)]
    return timings.step_cells(profile, rows, profile.pair[0])


def analyse(profile: Profile, frame: DataFrame) -> Findings:
    """Draw time over workers with and without communication, and what communication adds on each kind of link."""
    done = frame[frame["status"] == "finished"]
    if timings.measured(done).empty:
        return Findings()
    steps = timings.step_rows(done)
    rows = steps.assign(**{name: steps[name] * steps["steps_per_epoch"] for name in ("seconds", "without")})
    here, projected = rows[rows["link"] == WITHIN], timings.projected_steps(profile, done)
    task, between = done["task"].iloc[0], set(timings.measured(done)["link"]) - {WITHIN}
    notes = [
        timings.step_note(profile, "an epoch over the same rows", task),
        "Without communication: the same steps run again without the all-reduce, on the slowest worker, in turns with "
        "those that have it. What is left is exposed communication; the trainer hides none of it.",
        *([HOSTS_NOTE] if between else timings.lacking(done)),
    ]
    table, figures = epoch_table(rows), []
    if len(here):
        lines, title = figure_rows(here, projected), "Time per epoch over workers, with and without communication"
        figures.append(Drawing("", worker_lines(lines, title), f"Figure 1(a): scalability on {task}."))
        notes += timings.projection_note(projected)
    if (rows["workers"] > 1).any():
        adds = "Figure 1(a): what communication adds to a step, by batch size and by what the workers talk over."
        figures.append(Drawing("links", exchange_bars(bar_rows(rows)), adds))
    return Findings(
        tables=[
            Tabulation("", table, "Figure 1(a): seconds per epoch over workers.", notes),
            Tabulation("exchange", exchange_table(steps), "Figure 1(a): the all-reduce by itself.", [EXCHANGE_NOTE]),
            Tabulation("throughput", throughput_table(steps), "Throughput of the same steps.", [FLOPS_NOTE]),
        ],
        figures=figures,
        claims=[judge(c1, here), judge(c2, here)],
        found=_sentence(table),
    )


def figure_rows(rows: DataFrame, projected: DataFrame) -> DataFrame:
    """Return the four lines of the figure: both batch sizes, with and without communication, measured and projected."""
    import pandas as pd

    names, parts = ("seconds", "without"), []
    epochs = projected.assign(**{name: projected[name] * projected["steps_per_epoch"] for name in names}, link=WITHIN)
    for value, suffix in zip(names, ("", " (no communication)"), strict=True):
        part = timings.with_projection(timings.medians(rows, KEYS, value), epochs, value)
        parts.append(part.assign(label=[f"B = {size}{suffix}" for size in part["B"]]))
    return pd.concat(parts, ignore_index=True)


def bar_rows(rows: DataFrame) -> DataFrame:
    """Return a bar per batch size, number of workers and link: computing and exposed communication."""
    several = rows[rows["workers"] > 1]
    whole, without = (timings.medians(several, KEYS, value) for value in ("seconds", "without"))
    labels = [
        f"B = {bar['B']}, {bar['workers']} workers" + ("" if bar["link"] == WITHIN else f", 2 hosts, {bar['link']}")
        for bar in whole.to_dict("records")
    ]
    exposed = (whole["value"] - without["value"]).clip(lower=0)
    return whole.assign(label=labels, computing=without["value"], exposed=exposed).sort_values("B", kind="stable")


def epoch_table(rows: DataFrame) -> DataFrame:
    """Return seconds per epoch, exposed communication and speedup by batch size, number of workers and link."""
    table = timings.medians(rows, KEYS, "seconds").rename(columns={"value": "seconds per epoch"})
    table["without communication"] = timings.medians(rows, KEYS, "without")["value"]
    exposed = 1 - table["without communication"] / table["seconds per epoch"]
    first = table[(table["link"] == WITHIN) & (table["workers"] == table["workers"].min())].set_index("label")
    table["exposed share"] = exposed.clip(lower=0)
    table["speedup"] = table["label"].map(first["seconds per epoch"]) / table["seconds per epoch"]
    table["efficiency"] = table["speedup"] / (table["workers"] / table["workers"].min())
    columns = [*KEYS, "seconds per epoch", "low", "high", "without communication"]
    return _sorted(table[[*columns, "exposed share", "speedup", "efficiency"]])


def exchange_table(steps: DataFrame) -> DataFrame:
    """Return the seconds of an all-reduce, beside bytes over rate where the link has one."""
    several = steps[steps["workers"] > 1]
    table = timings.medians(several, [*KEYS, "gradient_bytes"], "exchange").rename(columns={"value": "all-reduce (s)"})
    shares = [rounds_and_share(workers)[1] for workers in table["workers"]]
    table["bytes"] = shares * table["gradient_bytes"]
    table["MB sent"] = table["bytes"] / 1e6
    rates = [math.nan if link == WITHIN else bits_per_second(link) for link in table["link"]]
    table["bytes / rate (s)"] = 8 * table["bytes"] / rates
    table["ratio"] = table["all-reduce (s)"] / table["bytes / rate (s)"]
    return _sorted(table[[*KEYS, "MB sent", "all-reduce (s)", "low", "high", "bytes / rate (s)", "ratio"]])


def throughput_table(steps: DataFrame) -> DataFrame:
    """Return samples, tokens and operations per second by batch size, number of workers and link."""
    rates = steps[KEYS].assign(
        **{
            "samples/s": steps["samples"] / steps["seconds"],
            "tokens/s": steps["tokens"] / steps["seconds"],
            "GFLOP/s": steps["flops"] / steps["seconds"] / 1e9,
            "share of matmul": steps["flops"] / steps["seconds"] / steps["matmul_rate"],
        }
    )
    return _sorted(rates.groupby(KEYS, sort=False).median().reset_index())


def _sorted(table: DataFrame) -> DataFrame:
    return table.rename(columns={"label": "batch"}).sort_values("B", kind="stable")


def _sentence(table: DataFrame) -> str:
    parts = []
    for label, group in table.groupby("batch", sort=False):
        here = group[group["link"] == WITHIN]
        if here.empty:
            continue
        last = here.loc[here["workers"].idxmax()]
        parts.append(f"{label} {last['speedup']:.2f}x on {last['workers']:g} workers")
        across = group[group["link"] != WITHIN]
        parts += [f"{row['speedup']:.2f}x on 2 hosts at {row['link']}" for row in across.to_dict("records")]
    return f"Speedup over one worker: {', '.join(parts)}." if parts else ""


C1 = Claim(
    id="C1",
    source="Figure 1(a), Section 3",
    statement="At the small batch size time stops falling at about 4 workers; without communication it goes on.",
    paper="B=32: plateau from 4 of 32 workers on",
    rule=f"Per doubling of workers: beyond {KNEE} the time falls by a factor below {GAIN}, up to {KNEE} and without "
    f"communication beyond {KNEE} by one above it. The unit is the timed step; takes steps timed with 8 workers.",
)


def c1(frame: DataFrame) -> ClaimRecord:
    """Judge the small batch by the rows of its steps on one host."""
    small = frame[frame["label"] == SMALL]
    counts = sorted(set(small["workers"]))
    if not counts:
        return record(C1, ())
    up_to, beyond = [count for count in counts if count <= KNEE], [count for count in counts if count >= KNEE]
    gain, silent = (partial(timings.gain_per_doubling, small, value) for value in ("seconds", "without"))
    parts = [
        within("gain per doubling up to 4", gain(up_to), GAIN, math.inf),
        at_most("gain per doubling beyond 4", gain(beyond), GAIN, paper=1.0),
        within("gain per doubling beyond 4 without communication", silent(beyond), GAIN, math.inf),
    ]
    return record(C1, parts, [timings.workers_gate(counts, 2 * KNEE)])


C2 = Claim(
    id="C2",
    source="Figure 1(a), Section 3",
    statement="At the large batch size time keeps falling up to 32 workers.",
    paper="B=1K: falls from 1 to 32 workers",
    rule=f"Per doubling of workers, over all and over the last, the time falls by a factor above {GAIN}. The unit is "
    f"the timed step; takes steps timed with {PAPER_WORKERS} workers.",
)


def c2(frame: DataFrame) -> ClaimRecord:
    """Judge the large batch by the rows of its steps on one host."""
    large = frame[frame["label"] == LARGE]
    counts = sorted(set(large["workers"]))
    if not counts:
        return record(C2, ())
    gain = partial(timings.gain_per_doubling, large, "seconds")
    parts = [
        within(f"gain per doubling from {counts[0]:g} to {counts[-1]:g}", gain(counts), GAIN, math.inf),
        within("gain of the last doubling", gain(counts[-2:]), GAIN, math.inf),
    ]
    return record(C2, parts, [timings.workers_gate(counts, PAPER_WORKERS)])


STUDY = declare(
    __name__,
    title="Scalability",
    question="Does more workers mean less time, at a small and at a large batch size?",
    source="Figure 1(a)",
    paper_found="BERT-base on MNLI: at B=32 time falls up to 4 GPUs and no further, because communication dominates; "
    "at B=1K it falls up to 32.",
)
