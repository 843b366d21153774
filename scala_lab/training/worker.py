"""One worker of a run that `launch_workers` started: `python -m scala_lab.training.worker JOB`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

from scala_lab.errors import UserError
from scala_lab.spec import RunSpec
from scala_lab.training.launch import USER_ERROR


def main(job: str) -> int:
    """Train one worker's part of the job, a JSON object with spec, out, options and the folder for complaints.

    A worker that fails says nothing itself, because the others fail with it: it leaves word of why, and the
    launcher passes on the first one's.
    """
    values = json.loads(job)
    complaint = Path(values["complaints"]) / os.environ["RANK"]
    try:
        from scala_lab.training.api import train

        train(RunSpec.from_dict(values["spec"]), values["out"], **values["options"])
    except UserError as error:
        complaint.with_suffix(USER_ERROR).write_text(str(error))
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        complaint.write_text(traceback.format_exc())
        raise SystemExit(1) from error
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
