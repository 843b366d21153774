"""One worker of a run that `launch_workers` started: `python -m scala_lab.training.worker JOB`."""

from __future__ import annotations

import json
import os
import sys

from scala_lab.errors import UserError
from scala_lab.spec import RunSpec


def main(job: str) -> int:
    """Train one worker's part of the job, a JSON object with spec, out and options."""
    from scala_lab.training.api import train

    values = json.loads(job)
    try:
        train(RunSpec.from_dict(values["spec"]), values["out"], **values["options"])
    except UserError as error:
        if os.environ["RANK"] == "0":
            print(f"scala-lab: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
