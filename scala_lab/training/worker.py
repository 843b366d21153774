"""One worker of a run: `python -m scala_lab.training.worker JOB`, as the launcher starts it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import end_process
from scala_lab.training.distributed import WorkerError


def work(job: str, part: Callable[[dict[str, Any]], object]) -> NoReturn:
    """Do one worker's part of a job, a JSON object that names the folder for `errors`, and end the process.

    A worker that fails prints nothing, because the others fail with it: it writes its error into the folder, and the
    launcher reports the cause.
    """
    values = json.loads(job)
    code = 0
    try:
        part(values)
    except KeyboardInterrupt:
        code = 130
    except Exception as error:  # noqa: BLE001 - the launcher reports any error
        WorkerError.of(int(os.environ["RANK"]), error).write(Path(values["errors"]))
        code = 2 if isinstance(error, UserError) else 1
    end_process(code)


def train_job(values: dict[str, Any]) -> None:
    """Train as one worker of a run."""
    from scala_lab.training.train import RunOptions, train_worker

    spec = RunSpec.from_dict(values["spec"]).resolved()
    train_worker(spec, Path(values["out"]), RunOptions(**values["options"]))


if __name__ == "__main__":
    work(sys.argv[1], train_job)
