"""Trained runs as a DataFrame, one row a run, from a store, a sweep, a report or any folder with run folders in it."""

from __future__ import annotations

import json
import math
import os
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec, flat_settings, setting_types
from scala_lab.errors import UserError
from scala_lab.sweep.engine import Executor
from scala_lab.sweep.grid import Grid, SweepFolder, setting_text
from scala_lab.sweep.store import RUNS_FILE

if TYPE_CHECKING:
    from pandas import DataFrame

TIMINGS = ("train_seconds", "evaluation_seconds", "samples_per_second", "tokens_per_second")
"""Columns that differ when a run is trained again."""

IDENTITY = ("status", "error", "id", "name", "folder")
RATES, COUNTS = ("learning_rate", "noise_start"), ("steps", "steps_done", "parameters")

KINDS = {bool: "boolean", int: "Int64", float: "float64"}  # pandas' types that can lack a value; others are text


def load_runs(folder: Path | str) -> DataFrame:
    """Return one row per run of a folder: a store, a sweep's --out, a report, or any folder with run folders in it.

    Columns, in this order: the axes of a sweep and the settings that differ between the runs, all other settings (as
    resolved, so that defaults are filled in; missing where the method has no such option), `status`, `error`, `id`,
    `name` and `folder` (seen from the given one). Then numbers: metrics as fractions and mean losses by split
    (`dev_accuracy`, `heldout_accuracy`, `train_loss`), those of the best epoch (`best_dev_accuracy`), `learning_rate`
    (the peak), `noise_start` in epochs, `steps`, `steps_done`, `parameters`, rows by split (`dev_rows`) and timings.
    A run that diverged or failed has a row without metrics; `error` says why.

    Example:
        >>> from scala_lab import load_runs
        >>> runs = load_runs("sweep1")  # doctest: +SKIP
        >>> runs.groupby(["method", "lr"])["dev_accuracy"].agg(["mean", "std"])  # doctest: +SKIP
    """
    import pandas as pd

    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"{folder} {'is no folder' if folder.exists() else 'does not exist'}")
    rows = [_row(record, where) for record, where in _records(folder)]
    if not rows:
        raise UserError(f"{folder} holds no runs")
    frame, settings = pd.DataFrame(rows), list(setting_types())
    texts = [name for name in IDENTITY if name in frame]
    counts = [*COUNTS, *(name for name in frame if name.endswith("_rows"))]
    last = [*RATES, *counts, *TIMINGS]
    metrics = [name for name in frame if name not in (*settings, *texts, *last)]
    metrics.sort(key=lambda name: (name.startswith("best_"), name.endswith("_loss")))
    types = {name: KINDS.get(_kind(setting_types()[name][1]), "string") for name in settings}
    types |= (
        dict.fromkeys(texts, "string") | dict.fromkeys([*metrics, *last], "float64") | dict.fromkeys(counts, "Int64")
    )
    frame = frame.astype(types)
    differing = [name for name in settings if frame[name].nunique(dropna=False) > 1]
    sweep = SweepFolder.read(folder)
    if sweep is None:
        frame, axes = frame.sort_values([*differing, "id"], kind="stable"), []
    else:
        place, axes = {cell.key: number for number, cell in enumerate(sweep.cells())}, [*sweep.axes, "seed"]
        frame = frame.sort_values("id", key=lambda ids: ids.map(lambda one: place.get(one, len(place))), kind="stable")
    first = dict.fromkeys([*axes, *differing, *settings])
    return frame[[*first, *texts, *metrics, *last]].reset_index(drop=True)


def _kind(hint: Any) -> Any:
    """Return the type of a setting that may be None."""
    arguments = [argument for argument in typing.get_args(hint) if argument is not type(None)]
    return arguments[0] if type(None) in typing.get_args(hint) else hint


def _records(folder: Path) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Find the records of a report, or those of all run folders, with their folders."""
    report = folder / RUNS_FILE
    if report.is_file():
        for number, line in enumerate(report.read_text(encoding="utf-8").splitlines(), 1):
            yield _parsed(line, f"{report}, line {number},"), ""
        return
    for path, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "run.json" in files:
            folders.clear()
            file = Path(path, "run.json")
            yield _parsed(file.read_text(encoding="utf-8"), str(file)), str(Path(path).relative_to(folder))


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
        return {**record, "spec": RunSpec.from_dict(record["spec"]), "id": record["id"], "status": record["status"]}
    except (ValueError, TypeError, KeyError, AttributeError, UserError) as error:
        raise UserError(f"{where} is damaged or no run record of this version ({error})") from None


def _row(record: Mapping[str, Any], folder: str) -> dict[str, Any]:
    settings = {
        name: setting_text(value) if isinstance(value, (tuple, Path)) else value
        for name, value in flat_settings(record["spec"]).items()
    }
    status, error = record["status"], record.get("error")
    if status == "diverged":
        error = error or f"the loss is not finite at step {record.get('steps_done')}"
    row = {**settings, "status": status, "error": error, "id": record["id"], "name": record.get("name")}
    row["folder"] = folder or None
    finished = status == "finished"
    metrics, best = record.get("metrics") or {}, record.get("best")
    for split, values in (metrics if finished else {}).items():
        row |= {f"{split}_{name}": _number(value) for name, value in values.items()}
    row |= {f"{split}_loss": _number(value) for split, value in (record.get("losses") or {}).items() if finished}
    if finished and best:
        row["best_epoch"] = best["epoch"]
        for split, values in best["metrics"].items():
            row |= {f"best_{split}_{name}": _number(value) for name, value in values.items()}
    row |= {name: _number(record.get(name)) for name in RATES} | {name: record.get(name) for name in COUNTS}
    row |= {f"{split}_rows": count for split, count in (record.get("samples") or {}).items()}
    timing = record.get("timing") or {}
    return row | {name: _number(timing.get(name)) for name in TIMINGS}


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def run_grid(
    grid: Mapping[str, Any],
    *,
    out: Path | str,
    seeds: int | Iterable[int] | None = None,
    spec: RunSpec | None = None,
    executor: Executor | None = None,
    progress: bool = False,
    retry_failed: bool = False,
    log_to: Sequence[str] = (),
    **settings: Any,
) -> DataFrame:
    """Train every combination of some settings' values with every seed, and return one row a run (see `load_runs`).

    What `out` holds already is not trained again: a call that was interrupted is given again, and another grid with the
    same fixed settings adds its points. `scala-lab report OUT` draws tables, figures and a page of it.

    Args:
        grid: The values of each setting that varies.
        out: The sweep's folder.
        seeds: A number n for the seeds 0 to n-1, or the seeds.
        spec: The fixed settings; `settings` override them.
        executor: What carries out the runs; default a `LocalPool` on this machine.
        progress: Show on stderr what is done, running and left.
        retry_failed: Try again what failed before.
        log_to: Trackers that get the metrics too: tensorboard, wandb, mlflow.
        settings: Fixed settings by name, as for `RunSpec.of`.

    Example:
        >>> from scala_lab import run_grid
        >>> runs = run_grid(
        ...     {"lr": [1e-3, 1e-2], "method": ["lamb", "scala"]}, seeds=3, task="my.csv", out="sweep1"
        ... )  # doctest: +SKIP
        >>> runs.groupby(["method", "lr"])["dev_accuracy"].mean()  # doctest: +SKIP
    """
    from scala_lab.sweep.local import LocalPool

    folder = SweepFolder.open(Path(out))
    wanted = seeds if isinstance(seeds, int) or seeds is None else list(seeds)
    folder = folder.add(Grid.of((spec or RunSpec()).override(**settings), grid, wanted))
    folder.check_inputs()
    folder.run(executor or LocalPool(), progress=progress, retry_failed=retry_failed, log_to=tuple(log_to))
    return load_runs(folder.folder)
