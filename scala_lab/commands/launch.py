"""`scala-lab launch`: a script with which SLURM runs a training over several nodes."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from scala_lab.cli import parse_flags, split_command
from scala_lab.commands import train
from scala_lab.errors import UserError

WAIT_FOR_NODES = 600
"""Seconds that a node waits for the first one, which may start later, or load its packages more slowly."""


@dataclass(frozen=True)
class Launch:
    """Write a SLURM script that trains over several nodes and survives the loss of a worker or a node.

    What follows `--` is a command as on one machine. One torchrun per node starts a worker for each GPU; they meet at
    the job's first node. A worker that dies has all of them start again from the run's last saved state, a job that
    loses a node is queued again. --out must be on a file system that all nodes share.

        scala-lab launch --nodes 2 --gpus-per-node 16 -- train --task mnli --model roberta-large --out runs/mnli
        sbatch scala-lab.sbatch
    """

    nodes: int = 1
    """Nodes of the job."""
    gpus_per_node: int = 8
    """GPUs of each node, with a worker for each; 0 for workers on CPUs."""
    workers_per_node: int | None = None
    """Workers on each node; default one per GPU."""
    cpus_per_worker: int = 4
    """Cores that each worker is given."""
    time: str = "24:00:00"
    """Time limit of the job."""
    partition: str | None = None
    """Default the cluster's own."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, such as account=x qos=long."""
    setup: tuple[str, ...] = ()
    """Shell lines to run on the first node before the training, such as 'module load cuda'."""
    restarts: int = 3
    """How often workers start again after one of them died, before the job fails."""
    script: Path = Path("scala-lab.sbatch")
    """File to write."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Stands after `--`."""

    @property
    def workers(self) -> int:
        """On each node."""
        return self.gpus_per_node if self.workers_per_node is None else self.workers_per_node


def parse(args: list[str]) -> Launch:
    """Flags of the job before `--`, the command after it."""
    own, command = split_command(args)
    return replace(parse_flags(Launch, own, prog="scala-lab launch"), command=command)


def run(options: Launch) -> int:
    """Check the command, write the script, say how to submit it."""
    from scala_lab.files import write_text

    if not options.command or options.command[0] != "train":
        raise UserError("launch: give the run after `--`, as in `scala-lab launch --nodes 2 -- train --task mnli`")
    for flag, value, lowest in (
        ("--nodes", options.nodes, 1),
        ("--gpus-per-node", options.gpus_per_node, 0),
        ("--workers-per-node", options.workers, 1),
        ("--cpus-per-worker", options.cpus_per_worker, 1),
        ("--restarts", options.restarts, 0),
    ):
        if value < lowest:
            raise UserError(f"launch: {flag} must be at least {lowest}, not {value}")
    if options.script.is_dir():
        raise UserError(f"launch: --script {options.script} is a folder: give the name of a file")
    write_text(options.script, script(options, _train_arguments(options)))
    print(f"written: {options.script}\nsubmit:  sbatch {shlex.quote(str(options.script))}")
    return 0


def _train_arguments(options: Launch) -> list[str]:
    """The run's own flags, checked, with what a run over nodes needs beside them."""
    given = list(options.command[1:])
    parsed = train.parse(given)
    asked = parsed.spec.machine.workers
    total = options.nodes * options.workers
    if asked not in (1, total):
        raise UserError(f"launch: --workers {asked}, but {options.nodes} nodes have {total}; leave --workers out")
    spec = parsed.spec.override(workers=total)
    if spec.machine.device == "auto":
        device = "cuda" if options.gpus_per_node else "cpu"
        spec, given = spec.override(device=device), [*given, "--device", device]
    if spec.machine.threads is None:
        threads = options.cpus_per_worker
        spec, given = spec.override(threads=threads), [*given, "--threads", str(threads)]
    resolved = spec.resolved()
    if parsed.out is None:
        given += ["--out", f"runs/{resolved.name}"]
    return given if parsed.resume else [*given, "--resume"]


def script(options: Launch, arguments: list[str]) -> str:
    """The text of the script, for a run with these arguments of `scala-lab train`."""
    cpus = options.workers * options.cpus_per_worker
    headers = {
        "job-name": "scala-lab",
        "nodes": options.nodes,
        "ntasks-per-node": 1,
        "cpus-per-task": cpus,
        **({"gpus-per-node": options.gpus_per_node} if options.gpus_per_node else {}),
        **({"partition": options.partition} if options.partition else {}),
        "time": options.time,
        "output": "scala-lab-%j.log",
        "open-mode": "append",
    }
    lines = [
        "#!/bin/bash",
        "# One task per node: a torchrun, which starts the node's workers.",
        *(f"#SBATCH --{name}={value}" for name, value in headers.items()),
        *(f"#SBATCH --{option}" for option in options.options),
        "# After the loss of a node the job is queued again and goes on from the run's last saved state.",
        "#SBATCH --requeue",
        "",
        "set -euo pipefail",
        *options.setup,
        "",
        "# Rendezvous: this script runs on the job's first node, where all workers meet, at a port of the job's own,",
        "# below those that the system gives to whoever asks for any.",
        'meeting_point="$(hostname):$((20000 + SLURM_JOB_ID % 12000))"',
        "",
        "# Elastic restart: when a worker dies, every torchrun stops its workers, all meet again and --resume goes on,",
        f"# up to {options.restarts} times. The number of workers stays what it is: it is part of the run.",
        "# Each meeting gets a store of its own: in a shared one, workers that meet again can find the addresses of",
        "# those that are gone, and wait for them.",
        "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
        f"srun --ntasks-per-node=1 --cpus-per-task={cpus} --kill-on-bad-exit=1 \\",
        f"  {shlex.quote(sys.executable)} -m torch.distributed.run \\",
        f"  --nnodes={options.nodes} --nproc-per-node={options.workers} --max-restarts={options.restarts} \\",
        '  --rdzv-backend=c10d --rdzv-endpoint="$meeting_point" --rdzv-id="$SLURM_JOB_ID" \\',
        f"  --rdzv-conf=read_timeout={WAIT_FOR_NODES} \\",
        f"  -m scala_lab train {shlex.join(arguments)}",
    ]
    return "\n".join(lines) + "\n"
