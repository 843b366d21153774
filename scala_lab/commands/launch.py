"""`scala-lab launch`: write a script with which SLURM trains over several nodes."""

import shlex
from dataclasses import dataclass
from pathlib import Path

import tyro

from scala_lab.commands import train
from scala_lab.errors import UserError, check_at_least
from scala_lab.files import write_text

TEMPLATE = Path(__file__).with_name("job.sbatch")
READ_TIMEOUT = 600
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
        """Workers on each node."""
        return self.gpus_per_node if self.workers_per_node is None else self.workers_per_node


def run(options: Launch) -> int:
    """Check the command, write the script and print how to submit it."""
    if not options.command or options.command[0] != "train":
        raise UserError("launch: give the run after `--`, as in `scala-lab launch --nodes 2 -- train --task mnli`")
    check_at_least(0, "launch: ", gpus_per_node=options.gpus_per_node, restarts=options.restarts)
    check_at_least(1, "launch: ", nodes=options.nodes, cpus_per_worker=options.cpus_per_worker)
    check_at_least(1, "launch: ", workers_per_node=options.workers)
    if options.script.is_dir():
        raise UserError(f"launch: --script {options.script} is a folder: give the name of a file")
    write_text(options.script, _sbatch_script(options, _train_arguments(options)))
    print(f"written: {options.script}\nsubmit:  sbatch {shlex.quote(str(options.script))}")
    return 0


def _train_arguments(options: Launch) -> list[str]:
    """Check the flags of the run, and add those that a run over nodes needs."""
    flags = list(options.command[1:])
    parsed = train.parse(flags)
    workers, total = parsed.spec.machine.workers, options.nodes * options.workers
    if workers not in (1, total):
        raise UserError(f"launch: --workers {workers}, but {options.nodes} nodes have {total}; leave --workers out")
    spec = parsed.spec.override(workers=total)
    if spec.machine.device == "auto":
        device = "cuda" if options.gpus_per_node else "cpu"
        spec, flags = spec.override(device=device), [*flags, "--device", device]
    if spec.machine.threads is None:
        threads = options.cpus_per_worker
        spec, flags = spec.override(threads=threads), [*flags, "--threads", str(threads)]
    name = spec.resolved().name  # which also checks the spec
    flags += ["--out", f"runs/{name}"] if parsed.out is None else []
    return flags if parsed.resume else [*flags, "--resume"]


def _sbatch_script(options: Launch, flags: list[str]) -> str:
    from scala_lab.sweep.slurm import Resources, torchrun_command

    resources = Resources(options.nodes, options.workers * options.cpus_per_worker, options.gpus_per_node)
    requested = [f"{name.replace('_', '-')}={value}" for name, value in resources.parameters().items()]
    headers = ["job-name=scala-lab", *requested, "output=scala-lab-%j.log", "open-mode=append"]
    headers += [f"partition={options.partition}"] if options.partition else []
    headers += [f"time={options.time}", *options.options]
    limits = [f"--max-restarts={options.restarts}", f"--rdzv-conf=read_timeout={READ_TIMEOUT}"]
    srun, torchrun = torchrun_command(resources, options.workers, '"$meeting_point"', '"$SLURM_JOB_ID"', *limits)
    return TEMPLATE.read_text().format(
        headers="\n".join(f"#SBATCH --{header}" for header in headers),
        setup="".join(f"{line}\n" for line in options.setup),
        restarts=options.restarts,
        srun=shlex.join(srun),
        torchrun=f"{shlex.quote(torchrun[0])} {' '.join(torchrun[1:])}",
        flags=shlex.join(flags),
    )
