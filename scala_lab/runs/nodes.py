"""What a cluster's job does on its first node: claim the cell and carry it out, with torchrun where it takes several.

A run on one node starts its own workers, as on any machine. A run on several is started by srun, with one torchrun
per node, after the claim is had, so that no node waits for others that will not come.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scala_lab.runs.work import Job, Outcome, carry_out
from scala_lab.spec import RunSpec


@dataclass(frozen=True)
class ClusterWork:
    """The function that submitit calls.

    Attributes:
        nodes: How many nodes the job has.
    """

    nodes: int

    def __call__(self, values: dict[str, Any]) -> Outcome:
        """Carry out a job."""
        train = partial(train_over_nodes, nodes=self.nodes) if self.nodes > 1 else None
        return carry_out(Job.from_json(values), train)

    def checkpoint(self, values: dict[str, Any]) -> Any:
        """What submitit queues again when the time is up: the same, since the run's state is on disk."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, values)


def train_over_nodes(spec: RunSpec, out: Path, *, nodes: int, **options: Any) -> None:
    """Train a run with one torchrun on each node of this SLURM job.

    Raises:
        UserError: What the first worker to fail found wrong with the input.
        WorkerFailure: Anything else that ended the run.
    """
    from scala_lab.training.faults import find_fault
    from scala_lab.training.launch import raise_failure, reserved_port

    workers, threads = spec.machine.workers // nodes, spec.machine.threads or 1
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".complaints-", dir=out.parent) as complaints:
        job = {"spec": spec.to_dict(), "out": str(out), "options": options, "complaints": complaints}
        per_node = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", f"--cpus-per-task={workers * threads}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={workers}"]
        job_id = os.environ["SLURM_JOB_ID"]
        with reserved_port("") as port:  # of this host, the job's first
            endpoint = f"{socket.gethostname()}:{port.getsockname()[1]}"
            meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={job_id}"]
            command = [*per_node, "--kill-on-bad-exit=1", *torchrun, *meeting, "-m", "scala_lab.training.worker"]
            ended = subprocess.run([*command, json.dumps(job)], check=False)
        if ended.returncode != 0:
            raise_failure(find_fault(Path(complaints), spec.machine.workers, {}, ended.returncode), out)
