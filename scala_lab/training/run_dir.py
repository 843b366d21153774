"""The folder of a run: one process writes to it, and it is consistent at any moment, even after kill -9.

`run.json` is the record, `metrics.jsonl` has a line per step, `predictions.npz` the final prediction of every evaluated
row, `checkpoint/` is the trained model, `state/` what an interrupted run resumes from, `trunk/` states that it keeps
for other runs with the same prefix to branch off.
"""

from __future__ import annotations

import copy
import fcntl
import io
import json
import math
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from scala_lab.config import RunSpec, flat_settings, plain_epochs, steps_before
from scala_lab.errors import UserError
from scala_lab.files import check_writable, nan_to_null, new_folder, write_bytes, write_json
from scala_lab.training.trackers import Trackers

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


PREDICTIONS = "predictions.npz"
WRITTEN = ("run.json", PREDICTIONS, "checkpoint")


@dataclass(frozen=True)
class RunResult:
    """What `run.json` says of a run."""

    folder: Path
    record: dict[str, Any]

    @property
    def status(self) -> str:
        """finished, diverged, failed or running."""
        return self.record["status"]

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """Metrics after the last epoch, by split."""
        return self.record["metrics"]

    @property
    def spec(self) -> RunSpec:
        """The resolved spec."""
        return RunSpec.from_dict(self.record["spec"])

    @property
    def checkpoint(self) -> Path:
        """Folder of the trained model."""
        return self.folder / "checkpoint"

    @property
    def ended(self) -> bool:
        """Whether it is finished or diverged, so that resuming would do nothing."""
        return self.status in ("finished", "diverged")


REQUIRED = {"id", "name", "status", "spec", "fingerprints", "metrics", "steps", "steps_done", "skipped_rows"}
"""Entries that every `run.json` has."""


def read_run(folder: Path) -> RunResult | None:
    """Read the run in a folder; None if there is none."""
    file = folder / "run.json"
    try:
        record = json.loads(file.read_bytes())
        missing = sorted(REQUIRED - set(record))
        if missing:
            raise UserError(f"it has no {missing[0]!r}")
        RunSpec.from_dict(record["spec"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, AttributeError, UserError) as error:
        raise UserError(f"{file} is damaged or no run record of this version ({error})") from None
    return RunResult(folder, record)


def check_folder(folder: Path, spec: RunSpec, resume: bool) -> RunResult | None:
    """Return the run that a folder holds if it is this one; refuse a folder that is not free for it."""
    check_writable(folder, "--out takes a folder")
    present = read_run(folder)
    if present is None:
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise UserError(f"{folder} is not empty and holds no run: choose another --out")
        return None
    if present.record["id"] != spec.run_id:
        changed = differences(present.spec, spec.resolved())
        raise UserError(f"{folder} holds another run ({changed}): choose another --out")
    if not present.ended and not resume:
        raise UserError(
            f"{folder} holds this run, {present.status} at step {present.record['steps_done']} of "
            f"{present.record['steps']}: pass --resume to go on, or choose another --out"
        )
    return present


def differences(present: RunSpec, spec: RunSpec) -> str:
    """Say in which settings two specs with different ids differ, as `name: present -> new`."""
    new = flat_settings(spec)
    changed = [f"{name}: {old} -> {new[name]}" for name, old in flat_settings(present).items() if old != new[name]]
    return "; ".join(changed) or "made by another version, or the model folder is gone"


def check_inputs(present: RunResult, fingerprints: dict[str, str]) -> None:
    """Check that the run in a folder was on the same data and model, whatever they are called."""
    for name, value in fingerprints.items():
        if present.record["fingerprints"].get(name) != value:
            raise UserError(f"{present.folder} holds a run of the same spec on another {name}: choose another --out")


def check_trunk(folder: Path, spec: RunSpec, fingerprints: dict[str, str]) -> None:
    """Refuse a trunk whose plain steps are not those of a resolved spec, or that keeps no state to start from."""
    trunk, epochs = read_run(folder), plain_epochs(spec)
    if epochs == 0:
        raise UserError(f"--trunk: method {spec.recipe.method!r} takes no plain steps that a trunk could save it")
    if trunk is None:
        raise UserError(f"--trunk {folder} holds no run")
    if trunk.record["id"] == spec.run_id:
        raise UserError(f"--trunk {folder} is this run itself: give --out {folder} --resume to go on with it")
    if trunk.record["id"] != trunk.spec.run_id or trunk.spec.prefix_id != spec.prefix_id:
        changed = differences(replace(trunk.spec, recipe=spec.recipe), spec)
        raise UserError(f"--trunk {folder} differs in more than the method's options ({changed})")
    for name, value in fingerprints.items():
        if trunk.record["fingerprints"].get(name) != value:
            raise UserError(f"--trunk {folder} is a run on another {name}")
    if kept_state(folder, spec) is None:
        raise UserError(f"--trunk {folder} keeps no state of the first {epochs:g} epochs: see --keep-states")


def kept_state(trunk: Path, spec: RunSpec) -> Path | None:
    """Return a trunk's newest kept state before the first step of a resolved spec that is not plain, or None."""
    run = read_run(trunk)
    if run is None or "samples" not in run.record:
        return None
    return latest_state(trunk / "trunk", steps_before(plain_epochs(spec), spec, run.record["samples"]["train"]))


class FolderInUse(UserError):
    """Another process is training in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run's folder for a block; the system releases the lock when the process ends in any way."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("a")
    except OSError as error:
        raise UserError(f"--out {folder} cannot be written to: {error.strerror}") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another process is training in {folder}") from None
        unfinished = (*(f".{name}.*" for name in WRITTEN), "trunk/.*")  # what a killed run was writing
        for partial in chain(*map(folder.glob, unfinished)):
            shutil.rmtree(partial) if partial.is_dir() else partial.unlink()
        yield


def written_at(folder: Path) -> int | None:
    """Return when a run's record was last written; None if there is none."""
    try:
        return (folder / "run.json").stat().st_mtime_ns
    except OSError:
        return None


def record_failure(folder: Path, error: str, first_record: dict[str, Any] | None = None) -> None:
    """Record that a run failed and why, unless another process is training in the folder by now."""
    with suppress(UserError), locked(folder):
        present = read_run(folder)
        record = present.record if present is not None else first_record
        if record is not None and (present is None or not present.ended):
            write_json(folder / "run.json", {**record, "status": "failed", "error": error})


class RunWriter:
    """Writes a run's record and its metrics while it trains."""

    def __init__(self, folder: Path, record: dict[str, Any]) -> None:
        self.folder, self.record = folder, record

    def update(self, **values: Any) -> None:
        """Change entries of the record and write it."""
        self.record.update(values)
        write_json(self.folder / "run.json", self.record)

    def start_log(self, steps_done: int, log_to: Sequence[str] = ()) -> None:
        """Open metrics.jsonl after cutting off lines that are damaged or whose steps will be done again."""
        file = self.folder / "metrics.jsonl"
        self._log = file.open("r+b" if file.is_file() else "w+b")
        kept = list(takewhile(lambda line: _step(line) <= steps_done, self._log.read().splitlines(keepends=True)))
        self._log.truncate(sum(map(len, kept)))
        self._log.seek(0, os.SEEK_END)
        self._trackers = Trackers(log_to, self.folder, self.record, steps_done, kept)

    def log(self, line: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl, and give its numbers to the trackers."""
        self._log.write(json.dumps(nan_to_null(line), allow_nan=False).encode() + b"\n")
        self._log.flush()
        self._trackers.log(line)

    def sync_log(self) -> None:
        """Flush the lines to disk, before a state says that their steps are done."""
        os.fsync(self._log.fileno())

    def close(self) -> None:
        """Close metrics.jsonl, and the trackers with what the record says of the end."""
        self._log.close()
        self._trackers.end(self.record)
        if self._trackers.failed:
            self.update(trackers_failed=self._trackers.failed)


def _step(line: bytes) -> float:
    """Return the step of a line of metrics.jsonl, nan if the line is damaged or cut short."""
    try:
        return json.loads(line)["step"] if line.endswith(b"\n") else math.nan
    except (ValueError, TypeError, KeyError):
        return math.nan


def save_checkpoint(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write what `AutoModelForSequenceClassification.from_pretrained` loads, and a tokenizer that pads as the model."""
    pad_token = model.config.get_text_config().pad_token_id
    if tokenizer.pad_token_id is None and pad_token is not None:
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_token)
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        tokenizer.save_pretrained(temporary)


def save_predictions(file: Path, predictions: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the final prediction of every row: arrays `<split>/class` and `<split>/correct`, or `<split>/score`."""
    arrays = {f"{split}/{name}": array for split, kept in predictions.items() for name, array in kept.items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(file, buffer.getvalue())


def packed_correct(folder: Path) -> dict[str, bytes]:
    """Return which rows a run predicted right, by split, one bit a row as `np.packbits`; empty for regression."""
    file = folder / PREDICTIONS
    try:
        with np.load(file, allow_pickle=False) as arrays:
            names = [name for name in arrays if name.endswith("/correct")]
            return {name.removesuffix("/correct"): arrays[name].tobytes() for name in names}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is damaged ({error})") from None


def save_state(
    folder: Path, step: int, model: nn.Module, optimizer: Optimizer, position: dict[str, Any], keep_others: bool = False
) -> None:
    """Write weights, optimizer state and position into a sub-folder named by the step, then delete the one before.

    Tensors of the optimizer are stored as `index.name`; its plain numbers go into the position file.
    """
    state = optimizer.state_dict()["state"]
    values = {f"{index}.{name}": value for index, entry in state.items() for name, value in entry.items()}
    tensors = {name: value.contiguous() for name, value in values.items() if isinstance(value, torch.Tensor)}
    numbers = {name: value for name, value in values.items() if name not in tensors}
    weights = {name: value.contiguous() for name, value in _weights(model).items()}
    with new_folder(folder / f"{step:08d}") as temporary:
        save_file(weights, temporary / "weights.safetensors")
        save_file(tensors, temporary / "optimizer.safetensors")
        (temporary / "position.json").write_text(json.dumps({**position, "optimizer_numbers": numbers}))
    for outdated in () if keep_others else folder.iterdir():
        if outdated.name != f"{step:08d}":
            shutil.rmtree(outdated, ignore_errors=True)


def load_state(folder: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Restore weights and optimizer in place; return the position."""
    try:
        position: dict[str, Any] = json.loads((folder / "position.json").read_text())
        weights = load_file(folder / "weights.safetensors")
        values: dict[str, Any] = dict(load_file(folder / "optimizer.safetensors"))
        values.update(position.pop("optimizer_numbers"))
        if set(weights) != set(_weights(model)):
            raise ValueError("its weights are those of another model")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(
            f"the saved state in {folder} is cut short or damaged ({error}): delete that folder to start the run again"
        ) from None
    with torch.no_grad():
        for name, tensor in _weights(model).items():
            tensor.copy_(weights[name])
    state: dict[int, dict[str, Any]] = {}
    for key, value in values.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return position


def latest_state(folder: Path, last: float = math.inf) -> Path | None:
    """Return the newest complete state of a run, up to the step `last`, or None."""
    return max((path for path in folder.glob("[0-9]*") if path.is_dir() and int(path.name) <= last), default=None)


def _weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return parameters and buffers by name, tied tensors once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
