"""A SLURM cluster as an executor: array jobs through submitit, torchrun for runs over several nodes.

What a cluster's job does on its first node: claim the cell and carry it out, with torchrun where it takes several.

A run on one node starts its own workers, as on any machine. A run on several is started by srun, with one torchrun
per node, after the claim is had, so that no node waits for others that will not come.

A SLURM cluster as an executor: array jobs through submitit, one run each.

The store must lie on a file system that all hosts share. What a job finds stands in the store, as with any
executor; submitit carries only the word that it is done. Jobs that reach their time limit are queued again and go
on from their state.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.sweep.cells import Measurement
from scala_lab.sweep.work import Ending, Job, Outcome, carry_out, child_pythonpath

if TYPE_CHECKING:
    import submitit


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
    from scala_lab.training.distributed import find_fault, raise_failure, reserved_port

    workers, threads = spec.machine.workers // nodes, spec.machine.threads or 1
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".errors-", dir=out.parent) as errors:
        job = {"spec": spec.to_dict(), "out": str(out), "options": options, "errors": errors}
        per_node = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", f"--cpus-per-task={workers * threads}"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={workers}"]
        job_id = os.environ["SLURM_JOB_ID"]
        with reserved_port("") as port:  # of this host, the job's first
            endpoint = f"{socket.gethostname()}:{port.getsockname()[1]}"
            meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={job_id}"]
            command = [*per_node, "--kill-on-bad-exit=1", *torchrun, *meeting, "-m", "scala_lab.training.worker"]
            ended = subprocess.run([*command, json.dumps(job)], check=False)
        if ended.returncode != 0:
            raise_failure(find_fault(Path(errors), spec.machine.workers, {}, ended.returncode), out)


LAST_WORDS = 2000
"""How many characters of a dead job's stderr are passed on."""


@dataclass(frozen=True)
class Resources:
    """What a job asks SLURM for; jobs that ask for the same go into one array."""

    nodes: int
    cpus: int
    gpus: int
    exclusive: bool


class SlurmCluster:
    """Jobs on a SLURM cluster.

    Args:
        partition: Default the cluster's own.
        minutes: Time limit of a job.
        workers_per_node: Most workers of a run on one node; a run with more gets several nodes.
        memory_gb: Memory of a job per node; default the cluster's own.
        most_at_once: Most jobs of an array that run side by side.
        setup: Shell lines to run before a job, such as `module load`.
        options: Further settings of sbatch by name, such as `{"account": "x", "qos": "long"}`.
        poll_seconds: How often the queue is looked at.
    """

    def __init__(
        self,
        partition: str | None = None,
        *,
        minutes: int = 24 * 60,
        workers_per_node: int = 8,
        memory_gb: float | None = None,
        most_at_once: int = 256,
        setup: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        poll_seconds: float = 5.0,
    ) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise UserError("sweeps on a cluster need the package submitit: pip install 'scala-lab[cluster]'")
        if shutil.which("sbatch") is None:
            raise UserError("this machine has no sbatch: start the sweep on a host of the SLURM cluster")
        self.partition, self.minutes, self.workers_per_node = partition, minutes, workers_per_node
        self.memory_gb, self.most_at_once, self.setup = memory_gb, most_at_once, list(setup)
        self.options, self.poll_seconds = dict(options or {}), poll_seconds
        self._sent: dict[str, tuple[Job, submitit.Job[Outcome]]] = {}
        self._states: dict[str, str] = {}
        self._gone_since: dict[str, float] = {}

    def __enter__(self) -> SlurmCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sent:
            subprocess.run(["scancel", *(sent.job_id for _, sent in self._sent.values())], check=False)
            self._sent.clear()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send the jobs, as an array for each kind of resources."""
        groups: dict[Resources, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self._resources(job), []).append(job)
        for resources, alike in groups.items():
            work = ClusterWork(resources.nodes)
            executor = self._executor(resources, alike[0].store)
            try:
                with executor.batch():
                    sent = [executor.submit(work, job.to_json()) for job in alike]
            except Exception as error:  # submitit passes on whatever sbatch says as an exception of its own
                said = (str(error).strip() or type(error).__name__).splitlines()
                raise UserError(f"sbatch does not take the jobs: {said[-1]}") from error
            # The first task is the one that submitit hears from, however many nodes there are.
            self._sent |= {job.key: (job, handle.task(0)) for job, handle in zip(alike, sent, strict=True)}

    def endings(self, seconds: float) -> list[Ending]:
        """What came back, looked for once per poll."""
        if not self._sent:
            time.sleep(seconds)
            return []
        time.sleep(max(seconds, self.poll_seconds))
        states = self._ask_queue()
        if states is None:
            return []
        self._states = states
        endings = [self._ending(job, handle) for job, handle in self._sent.values()]
        found = [ending for ending in endings if ending is not None]
        for ending in found:
            del self._sent[ending.key]
            self._gone_since.pop(ending.key, None)
        return found

    def running(self) -> list[Job]:
        """What SLURM runs, as of the last look at the queue."""
        return [job for job, handle in self._sent.values() if self._states.get(handle.job_id) == "RUNNING"]

    def at_once(self) -> float:
        """As many as run now."""
        return max(1, len(self.running()))

    def _resources(self, job: Job) -> Resources:
        if isinstance(job.what, Measurement):
            return Resources(1, job.cores, 0, job.what.alone)
        machine = job.what.machine
        nodes = math.ceil(machine.workers / self.workers_per_node)
        if machine.workers % nodes:
            raise UserError(
                f"{machine.workers} workers cannot be dealt evenly to {nodes} nodes: choose another workers_per_node"
            )
        here = machine.workers // nodes
        return Resources(nodes, here * (machine.threads or 1), here if machine.device == "cuda" else 0, False)

    def _executor(self, resources: Resources, store: Path) -> submitit.SlurmExecutor:
        import submitit

        executor = submitit.SlurmExecutor(store / "slurm")
        asked = {
            "partition": self.partition,
            "mem": None if self.memory_gb is None else f"{math.ceil(self.memory_gb * 1024)}MB",
            "gpus_per_node": resources.gpus or None,
            "exclusive": resources.exclusive or None,
            "additional_parameters": self.options or None,
        }
        executor.update_parameters(
            job_name="scala-lab",
            time=self.minutes,
            nodes=resources.nodes,
            ntasks_per_node=1,
            cpus_per_task=resources.cpus,
            array_parallelism=self.most_at_once,
            setup=[f"export PYTHONPATH={child_pythonpath()!r}", *self.setup],
            srun_args=[f"--cpus-per-task={resources.cpus}"],  # which srun no longer takes from sbatch
            use_srun=resources.nodes == 1,  # else the job's one process starts srun itself, when it has its claim
            **{name: value for name, value in asked.items() if value is not None},
        )
        return executor

    def _ask_queue(self) -> dict[str, str] | None:
        """States of this user's jobs by id, or None while SLURM does not answer."""
        answer = subprocess.run(
            ["squeue", "--me", "--array", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            return None
        pairs = (line.split() for line in answer.stdout.splitlines())
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}

    def _ending(self, job: Job, handle: submitit.Job[Outcome]) -> Ending | None:
        import submitit

        if handle.paths.result_pickle.exists():
            try:
                outcome = handle.result()
            except submitit.core.utils.FailedJobError as error:
                return Ending(job.key, "died", detail=str(error)[-LAST_WORDS:])
            _tidy(handle)
            return Ending(job.key, outcome)
        if handle.job_id in self._states:
            self._gone_since.pop(job.key, None)
            return None
        if time.monotonic() - self._gone_since.setdefault(job.key, time.monotonic()) < GONE_SECONDS:
            return None
        said = (handle.stderr() or "")[-LAST_WORDS:].strip()
        detail = f"SLURM job {handle.job_id} left the queue without a result" + (f", saying: {said}" if said else "")
        return Ending(job.key, "died", detail=detail)


GONE_SECONDS = 10.0
"""How long a job may be out of the queue before its result, which may show late on other hosts, is given up."""


def _tidy(handle: submitit.Job[Outcome]) -> None:
    """Remove what submitit wrote about a job that ended well; logs of others stay."""
    for file in (handle.paths.submitted_pickle, handle.paths.result_pickle, handle.paths.stdout, handle.paths.stderr):
        file.unlink(missing_ok=True)
