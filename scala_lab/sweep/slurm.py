"""A SLURM cluster as an executor: sweeps send array jobs through submitit.

Their store must be on a file system that all hosts share: results are in the store, submitit only tells that a job is
done. A job that reaches its time limit is queued again and continues from the run's saved state. A run over several
nodes has one torchrun per node, started by srun from the job's first node, where its workers meet.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scala_lab.config import RunSpec
from scala_lab.errors import UserError
from scala_lab.machine import child_pythonpath
from scala_lab.sweep.cells import Job, Measurement
from scala_lab.sweep.engine import STDERR_CHARACTERS, Ending, Executor, Outcome, carry_out

if TYPE_CHECKING:
    import submitit

GONE_SECONDS = 10.0
"""How long a job may be out of the queue before its result, which other hosts may see late, is given up."""


@dataclass(frozen=True)
class SlurmOptions:
    """Flags of jobs on a SLURM cluster."""

    partition: str | None = None
    """slurm: the partition; default the cluster's own."""
    minutes: int = 24 * 60
    """slurm: time limit of a job; one that reaches it goes on in a new job."""
    workers_per_node: int = 8
    """slurm: most workers of a run on one node."""
    memory_gb: float | None = None
    """slurm: memory of a job per node; default the cluster's own."""
    sbatch: tuple[str, ...] = ()
    """slurm: further settings, as in --sbatch account=lab qos=long."""
    setup: tuple[str, ...] = ()
    """slurm: shell lines to run before a job, as in --setup 'module load cuda'."""


@dataclass(frozen=True)
class Resources:
    """What a job with one task per node requests: nodes, and the cores and GPUs of each."""

    nodes: int
    cpus_per_task: int
    gpus_per_node: int
    exclusive: bool = False

    def parameters(self) -> dict[str, int]:
        """Return options of sbatch by name, as submitit spells them."""
        requested = {name: value for name, value in vars(self).items() if value}
        return {"nodes": self.nodes, "ntasks_per_node": 1} | requested


def torchrun_command(
    resources: Resources, workers: int, endpoint: str, job_id: str, *options: str
) -> tuple[list[str], list[str]]:
    """Return the srun that starts a task on each node of a job, and the torchrun that starts `workers` in each task.

    All workers meet at `endpoint`, a `host:port` of the job's first node; `options` are further ones of torchrun.
    """
    tasks = [f"--nodes={resources.nodes}", f"--ntasks={resources.nodes}", f"--cpus-per-task={resources.cpus_per_task}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={resources.nodes}"]
    rendezvous = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={job_id}"]
    return ["srun", *tasks, "--kill-on-bad-exit=1"], [*torchrun, f"--nproc-per-node={workers}", *options, *rendezvous]


def train_over_nodes(spec: RunSpec, out: Path, *, resources: Resources, **options: Any) -> None:
    """Train a run from the first node of this SLURM job, with one torchrun on each node."""
    from scala_lab.training.distributed import find_fault, raise_failure, reserved_port, worker_arguments
    from scala_lab.training.train import RunOptions, train_worker

    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".errors-", dir=out.parent) as name, reserved_port("") as port:
        endpoint, folder = f"{socket.gethostname()}:{port.getsockname()[1]}", Path(name)
        workers = spec.machine.workers // resources.nodes
        srun, torchrun = torchrun_command(resources, workers, endpoint, os.environ["SLURM_JOB_ID"])
        call = worker_arguments(folder, partial(train_worker, spec, out, RunOptions(**options)))
        ended = subprocess.run([*srun, *torchrun, *call], check=False)
        if ended.returncode != 0:
            raise_failure(find_fault(folder, spec.machine.workers, {}, ended.returncode), out)


@dataclass(frozen=True)
class ClusterWork:
    """The function that submitit calls on the first node of a job."""

    resources: Resources

    def __call__(self, job: Job) -> Outcome:
        """Carry out a job; srun starts only after the run is locked, so that no node waits for others in vain."""
        train = partial(train_over_nodes, resources=self.resources) if self.resources.nodes > 1 else None
        return carry_out(job, train)

    def checkpoint(self, job: Job) -> Any:
        """Return what submitit queues again when the time is up: the same, since the run's state is on disk."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, job)


class SlurmCluster(Executor):
    """Jobs on a SLURM cluster, of which up to `max_jobs` of an array run side by side."""

    def __init__(self, options: SlurmOptions, max_jobs: int | None = None, poll_seconds: float = 5.0) -> None:
        self.options, self.max_jobs, self.poll_seconds = options, max_jobs or 256, poll_seconds
        self._settings: dict[str, str] = {}
        for text in options.sbatch:
            name, _, value = text.partition("=")
            if not (name and value):
                raise UserError(f"--sbatch takes name=value, not {text!r}")
            self._settings[name] = value
        if importlib.util.find_spec("submitit") is None:
            raise UserError("sweeps on a cluster need the package submitit: pip install 'scala-lab[cluster]'")
        if shutil.which("sbatch") is None:
            raise UserError("this machine has no sbatch: start the sweep on a host of the SLURM cluster")
        self._submitted: dict[str, tuple[Job, submitit.Job[Outcome]]] = {}
        self._states: dict[str, str] = {}
        self._gone_since: dict[str, float] = {}

    def __exit__(self, *_: object) -> None:
        if self._submitted:
            subprocess.run(["scancel", *(handle.job_id for _, handle in self._submitted.values())], check=False)
            self._submitted.clear()

    def submit(self, jobs: Sequence[Job]) -> None:
        """Submit an array for each group of jobs with equal resources."""
        groups: dict[Resources, list[Job]] = {}
        for job in jobs:
            groups.setdefault(self._resources(job), []).append(job)
        for resources, group in groups.items():
            executor = self._executor(resources, group[0].store)
            try:
                with executor.batch():
                    handles = [executor.submit(ClusterWork(resources), job) for job in group]
            except Exception as error:  # submitit passes on whatever sbatch says as an exception of its own
                said = (str(error).strip() or type(error).__name__).splitlines()
                raise UserError(f"sbatch does not take the jobs: {said[-1]}") from error
            # submitit reads the result of the first task, however many nodes there are
            self._submitted |= {job.key: (job, handle.task(0)) for job, handle in zip(group, handles, strict=True)}

    def endings(self, seconds: float) -> list[Ending]:
        """Sleep until the next poll, then return the jobs that ended."""
        time.sleep(max(seconds, self.poll_seconds) if self._submitted else seconds)
        states = self._read_queue() if self._submitted else None
        if states is None:
            return []
        self._states = states
        endings = [self._ending(job, handle) for job, handle in self._submitted.values()]
        ended = [ending for ending in endings if ending is not None]
        for ending in ended:
            del self._submitted[ending.key]
            self._gone_since.pop(ending.key, None)
        return ended

    def running(self) -> list[Job]:
        """Return the jobs that ran when the queue was last read."""
        return [job for job, handle in self._submitted.values() if self._states.get(handle.job_id) == "RUNNING"]

    def _resources(self, job: Job) -> Resources:
        if isinstance(job.item, Measurement):
            return Resources(1, job.cores, 0, job.item.alone)
        machine = job.item.machine
        nodes = math.ceil(machine.workers / self.options.workers_per_node)
        if machine.workers % nodes:
            uneven = f"{machine.workers} workers cannot be dealt evenly to {nodes} nodes"
            raise UserError(f"{uneven}: choose another workers_per_node")
        workers = machine.workers // nodes
        return Resources(nodes, workers * (machine.threads or 1), workers if machine.device == "cuda" else 0)

    def _executor(self, resources: Resources, store: Path) -> submitit.SlurmExecutor:
        import submitit

        optional = {"partition": self.options.partition, "additional_parameters": self._settings}
        if self.options.memory_gb is not None:
            optional["mem"] = f"{math.ceil(self.options.memory_gb * 1024)}MB"
        executor = submitit.SlurmExecutor(store / "slurm")
        executor.update_parameters(
            job_name="scala-lab",
            time=self.options.minutes,
            array_parallelism=self.max_jobs,
            setup=[f"export PYTHONPATH={child_pythonpath()!r}", *self.options.setup],
            srun_args=[f"--cpus-per-task={resources.cpus_per_task}"],  # which srun no longer takes from sbatch
            use_srun=resources.nodes == 1,  # else the job's one process starts srun itself, when it has the lock
            **resources.parameters(),
            **{name: value for name, value in optional.items() if value},
        )
        return executor

    def _read_queue(self) -> dict[str, str] | None:
        """Return the states of this user's jobs by id, or None while SLURM does not answer."""
        answer = subprocess.run(
            ["squeue", "--me", "--array", "--noheader", "--format=%i %T"], capture_output=True, text=True, check=False
        )
        if answer.returncode != 0:
            return None
        return dict(line.split() for line in answer.stdout.splitlines() if len(line.split()) == 2)

    def _ending(self, job: Job, handle: submitit.Job[Outcome]) -> Ending | None:
        import submitit

        paths = handle.paths
        if paths.result_pickle.exists():
            try:
                outcome = handle.result()
            except submitit.core.utils.FailedJobError as error:
                return Ending(job.key, "died", detail=str(error)[-STDERR_CHARACTERS:])
            for file in (paths.submitted_pickle, paths.result_pickle, paths.stdout, paths.stderr):
                file.unlink(missing_ok=True)  # logs of jobs that died stay
            return Ending(job.key, outcome)
        if handle.job_id in self._states:
            self._gone_since.pop(job.key, None)
            return None
        if time.monotonic() - self._gone_since.setdefault(job.key, time.monotonic()) < GONE_SECONDS:
            return None
        said = (handle.stderr() or "")[-STDERR_CHARACTERS:].strip()
        detail = f"SLURM job {handle.job_id} left the queue without a result" + (f", saying: {said}" if said else "")
        return Ending(job.key, "died", detail=detail)
