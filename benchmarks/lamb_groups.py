"""What LAMB's groups, its clip U and adapt_all do to accuracy, beside AdamW, each at its own tuned rate.

    python benchmarks/lamb_groups.py --task mini-mnli
    python benchmarks/lamb_groups.py --task sst2 --data-dir glue --model paraphrase-MiniLM-L3-v2 \
        --train-samples 8192 --epochs 6 --batch-size 1024

Rates are chosen with the first seed on tuning rows, by a geometric grid that is extended until its best is inside; all
arms get as many trials as the one that needs most. Scores and their paired differences from AdamW are of all seeds on
held-out rows, which no choice has seen. Runs are kept in --store: an interrupted command goes on where it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from measures import RESULTS

from scala_lab import RunSpec
from scala_lab.files import write_json
from scala_lab.machine import describe_environment
from scala_lab.study.api import frame_of
from scala_lab.study.statistics import Estimate, mean_interval, paired_difference
from scala_lab.study.tuning import Choice, Choices, rounded
from scala_lab.sweep.cells import Cell
from scala_lab.sweep.engine import run_sweep
from scala_lab.sweep.local import LocalPool
from scala_lab.sweep.store import Records, RunStore

ADAMW = "AdamW"
GROUPS: Mapping[str, Mapping[str, Any]] = {
    "tensor": {"groups": "tensor"},
    "tensor, adapt_all": {"groups": "tensor", "adapt_all": True},
    "layer": {"groups": "layer"},
}
RATE = {"adamw": 1e-3, "lamb": 2e-2}
"""Middle of the first grid at batch size 1024, from where it moves by the square-root rule."""


@dataclass(frozen=True)
class Options:
    """LAMB's groups beside AdamW."""

    task: str = "mini-mnli"
    """A GLUE task or an embedded one."""
    data_dir: Path | None = None
    """Folder in the classic GLUE layout."""
    model: str = "embedded"
    """As in `scala-lab train`."""
    train_samples: int = 2048
    """Training rows of a run."""
    tuning_samples: int = 2048
    """Train rows on which rates are chosen."""
    heldout_samples: int = 8192
    """Train rows on which arms are compared."""
    epochs: int = 12
    """Passes over the training rows."""
    batch_size: int = 512
    """Samples per step."""
    micro_batch: int = 64
    """Samples that run at once."""
    points: int = 5
    """Rates of the first grid, a factor of 2 apart."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the comparison."""
    store: Path = Path("runs/lamb_groups")
    """Where runs are kept."""
    processes: int | None = None
    """Runs at once; default as many as the cores have room for."""


def arms(options: Options) -> dict[str, RunSpec]:
    """The spec of each arm, without its rate."""
    rows = {name: getattr(options, name) for name in ("train_samples", "tuning_samples", "heldout_samples")}
    shared = {"task": options.task, "data_dir": options.data_dir, "model": options.model, **rows, "eval_samples": 64}
    shared |= {"epochs": options.epochs, "batch_size": options.batch_size, "micro_batch": options.micro_batch}
    shared |= {"seed": options.seeds[0], "threads": 1, "evaluate": "end"}
    return {ADAMW: RunSpec.of(method="plain", **shared)} | {
        f"LAMB by {name}, U={limit:g}": RunSpec.of(method="lamb", max_weight_norm=limit, **settings, **shared)
        for name, settings in GROUPS.items()
        for limit in (10.0, math.inf)
    }


def first_grid(spec: RunSpec, points: int) -> list[float]:
    """Rates around the middle, a factor of 2 apart."""
    middle = RATE["adamw" if spec.recipe.method == "plain" else "lamb"] * math.sqrt(spec.batches.batch_size / 1024)
    return [rounded(middle * 2.0 ** (index - points // 2)) for index in range(points)]


def extended(choice: Choice, trials: int) -> list[float]:
    """The grid of a choice with more rates, always at the end to which its best is nearer."""
    grid = sorted(choice.scores)
    while len(grid) < trials:
        below = grid.index(choice.value)
        grid = [rounded(grid[0] / 2), *grid] if below < len(grid) - 1 - below else [*grid, rounded(grid[-1] * 2)]
    return grid


def tune(options: Options, store: RunStore) -> dict[str, Choice]:
    """Choose the rate of each arm, with equally many trials for all."""
    specs = arms(options)
    grids = {name: first_grid(spec, options.points) for name, spec in specs.items()}
    while True:
        choices = Choices(store.record)
        chosen = {name: choices.choose(spec, "lr", grids[name]) for name, spec in specs.items()}
        if choices.pending:
            train([Cell(spec) for spec in choices.pending.values()], store, options)
            continue
        trials = max(len(choice.scores) for choice in chosen.values())
        if all(len(choice.scores) == trials for choice in chosen.values()):
            return chosen
        grids = {name: extended(choice, trials) for name, choice in chosen.items()}


def train(cells: list[Cell], store: RunStore, options: Options) -> Records:
    """Train what the store lacks."""
    return run_sweep(cells, store, LocalPool(options.processes), progress=True)


def main(options: Options) -> None:
    """Tune, compare, print, and write benchmarks/results/lamb_groups_<task>.json."""
    store = RunStore(options.store)
    chosen = tune(options, store)
    cells = [
        Cell(spec.override(lr=chosen[name].value, seed=seed), method=name, seed=seed)
        for name, spec in arms(options).items()
        for seed in options.seeds
    ]
    frame = frame_of(cells, train(cells, store, options))
    table = []
    for name, choice in chosen.items():
        runs = frame[frame["method"] == name]
        against = None if name == ADAMW else paired_difference(frame, name, ADAMW)
        table.append(
            {
                "arm": name,
                "rate": choice.value,
                "interior": choice.interior,
                "trials": {str(rate): score for rate, score in choice.scores.items() if math.isfinite(score)},
                "scores": runs["score"].tolist(),
                "mean": mean_interval(runs["score"]).value,
                "train_loss": float(runs["train_loss"].mean()),
                "against_adamw": against and _interval(against),
            }
        )
    print(f"{'':34} {'rate':>8} {'tuning':>7} {'held-out':>9} {'train loss':>11}   minus AdamW (95%)")
    for row in table:
        best = max(row["trials"].values(), default=math.nan)
        line = f"{row['arm']:34} {row['rate']:>8g} {best:>7.2f} {row['mean']:>9.2f} {row['train_loss']:>11.3f}   "
        print(line + ("" if row["against_adamw"] is None else row["against_adamw"]["text"]))
    settings = {**asdict(options), "model": Path(options.model).name, "data_dir": None, "store": None}
    environment = {name: value for name, value in describe_environment().items() if name != "command"}  # it has paths
    result = {"title": "LAMB's groups beside AdamW", "settings": settings, "environment": environment}
    write_json(RESULTS / f"lamb_groups_{options.task}.json", {**result, "arms": table})


def _interval(estimate: Estimate) -> dict[str, Any]:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "text": str(estimate)}


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
