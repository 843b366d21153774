"""One worker of a run that `launch_workers` started: `python -m scala_lab.training.worker JOB`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.processes import end_process
from scala_lab.training.faults import complaint_of, leave_complaint


def work(job: str, part: Callable[[dict[str, Any]], None]) -> NoReturn:
    """Do one worker's part of a job, a JSON object with the folder for complaints among its values, and end.

    A worker that fails says nothing itself, because the others fail with it: it leaves word of why, and the
    launcher passes on the cause.
    """
    end_process(_outcome(json.loads(job), part))


def _outcome(values: dict[str, Any], part: Callable[[dict[str, Any]], None]) -> int:
    try:
        part(values)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - any fault is passed on
        leave_complaint(Path(values["complaints"]), complaint_of(int(os.environ["RANK"]), error))
        return 2 if isinstance(error, UserError) else 1
    return 0


def _train(values: dict[str, Any]) -> None:
    from scala_lab.training.train import train

    train(RunSpec.from_dict(values["spec"]), values["out"], **values["options"])


if __name__ == "__main__":
    work(sys.argv[1], _train)
