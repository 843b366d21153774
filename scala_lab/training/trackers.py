"""Experiment trackers that get a run's metrics as well, where asked for: TensorBoard, Weights & Biases, MLflow.

A run folder has everything without them. Where their data goes is theirs to say, by their own environment variables:
`WANDB_MODE=offline`, `WANDB_PROJECT`, `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`. They are given settings, metrics
and the status, no code and no checkpoints. A tracker that raises an error is given nothing more, and the run goes on.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Protocol

from scala_lab.config import RunSpec, flat_settings
from scala_lab.errors import UserError, nearest
from scala_lab.files import write_json

TrackerName = Literal["tensorboard", "wandb", "mlflow"]

IDS_FILE = "trackers.json"
"""In a run's folder: what it is called by each tracker, so that a resumed run goes on there."""

PROJECT = "scala-lab"  # W&B's project and MLflow's experiment, where their variables name no other


class Tracker(Protocol):
    """A run as one tracker has it."""

    id: str

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add numbers by name, such as `dev/accuracy`, at a step."""

    def end(self, status: str) -> None:
        """Say how the run ended."""


class TensorBoard:
    """Event files in `tensorboard/` of the run's folder."""

    id = "tensorboard"

    def __init__(self, folder: Path, record: Mapping[str, Any], known: str | None, steps_done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # purge_step hides earlier events of steps that will be done again
        self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=steps_done + 1)

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add scalars."""
        for name, value in numbers.items():
            self._events.add_scalar(name, value, step)

    def end(self, status: str) -> None:
        """Close the files."""
        self._events.close()


class WeightsAndBiases:
    """A run of Weights & Biases, whose config are the settings."""

    def __init__(self, folder: Path, record: Mapping[str, Any], known: str | None, steps_done: int) -> None:
        import wandb

        self.id = known or secrets.token_hex(4)
        quiet = {"console": "off", "silent": True, "disable_git": True, "disable_code": True, "init_timeout": 30}
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.id,
            name=record["name"],
            config=_settings(record),
            dir=str(folder),
            resume="allow",
            settings=wandb.Settings(**quiet),
        )

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add numbers; of a step that is done again it keeps those of before, which are the same."""
        self._run.log(dict(numbers), step=step)

    def end(self, status: str) -> None:
        """Finish, as failed unless the run finished."""
        self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MLflow:
    """A run of MLflow, whose parameters are the settings."""

    def __init__(self, folder: Path, record: Mapping[str, Any], known: str | None, steps_done: int) -> None:
        # a server that does not answer should not hold up training for its default of many minutes
        for variable, value in (("MAX_RETRIES", "1"), ("TIMEOUT", "15")):
            os.environ.setdefault(f"MLFLOW_HTTP_REQUEST_{variable}", value)
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._client, self._metric = MlflowClient(), Metric
        if known is None:
            experiment = self._find_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
            known = self._client.create_run(experiment, run_name=record["name"]).info.run_id
            parameters = [Param(name, str(value)[:500]) for name, value in _settings(record).items()]
            self._client.log_batch(known, params=parameters)
        else:
            self._client.update_run(known, status="RUNNING")
        self.id = known

    def _find_experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(name)
            except Exception:
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return experiment.experiment_id

    def log(self, numbers: Mapping[str, float], step: int) -> None:
        """Add metrics, all of a step in one message."""
        now = int(1000 * time.time())
        self._client.log_batch(
            self.id, metrics=[self._metric(name, value, now, step) for name, value in numbers.items()]
        )

    def end(self, status: str) -> None:
        """Say that the run finished, or failed."""
        self._client.set_tag(self.id, "status", status)
        self._client.set_terminated(self.id, "FINISHED" if status == "finished" else "FAILED")


TRACKERS: Mapping[str, Any] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that is unknown or whose package is not installed."""
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"unknown tracker {name!r}: {nearest(name, TRACKERS)}")
        if not is_installed(name):
            raise UserError(f"--log-to {name} needs the package {name}: pip install {name}")


def is_installed(name: str) -> bool:
    """Whether the package of a tracker can be imported."""
    return name in sys.modules or importlib.util.find_spec(name) is not None


class Trackers:
    """The trackers of a run; `failed` says by name what went wrong with those that are given nothing more."""

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        record: Mapping[str, Any],
        steps_done: int,
        lines: Sequence[bytes] = (),
    ) -> None:
        """Open the trackers; one that is new to the run is first given `lines`, those of its log so far."""
        self.failed: dict[str, str] = {}
        self._open: dict[str, Tracker] = {}
        self._at_last_step: set[str] = set()
        file = folder / IDS_FILE
        known: dict[str, str] = {}
        with suppress(OSError, ValueError):
            known = dict(json.loads(file.read_bytes())) if names else {}
        for name in names:
            with self._dropping(name):
                self._open[name] = TRACKERS[name](folder, record, known.get(name), steps_done)
                for line in () if name in known else map(json.loads, lines):
                    self._open[name].log(_numbers(line), line["step"])
        if self._open:
            write_json(file, known | {name: tracker.id for name, tracker in self._open.items()})

    def log(self, line: Mapping[str, Any]) -> None:
        """Give the trackers the numbers of one line of metrics.jsonl."""
        numbers = _numbers(line) if self._open else {}
        self._at_last_step = set(numbers)
        for name, tracker in list(self._open.items()):
            with self._dropping(name):
                tracker.log(numbers, line["step"])

    def end(self, record: Mapping[str, Any]) -> None:
        """Give the trackers the final metrics and losses that they do not have yet, and the status."""
        splits = {**record.get("metrics", {})}
        for split, loss in (record.get("losses") or {}).items():
            splits[split] = {**splits.get(split, {}), "loss_at_end": loss}
        numbers = {name: value for name, value in _by_group(splits).items() if name not in self._at_last_step}
        status = record["status"] if record["status"] != "running" else "failed"
        for name, tracker in list(self._open.items()):
            with self._dropping(name):
                if numbers and status == "finished":
                    tracker.log(numbers, record["steps_done"])
                tracker.end(status)
        self._open.clear()

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        """Give a tracker nothing more if it raises an error in the block, and say why."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a tracker runs into, the run goes on
            self._open.pop(name, None)
            self.failed[name] = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"scala-lab: warning: {name} gets nothing more of this run: {self.failed[name]}", file=sys.stderr)


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of metrics.jsonl by name: `train/loss`, `dev/accuracy`."""
    return _by_group(
        {"train": {name: value for name, value in line.items() if name not in ("step", "eval")}, **line.get("eval", {})}
    )


def _by_group(groups: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {
        f"{group}/{name}": value
        for group, values in groups.items()
        for name, value in values.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }


def _settings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run by name, as plain values, without those that its method does not have."""
    settings = flat_settings(RunSpec.from_dict(record["spec"]))
    plain = {name: str(value) if isinstance(value, (tuple, Path)) else value for name, value in settings.items()}
    return {name: value for name, value in plain.items() if value is not None}
