"""`scala-lab hosts`: a run over several hosts, all on this machine."""

from dataclasses import dataclass

import tyro

from scala_lab.commands import train
from scala_lab.errors import UserError, check_at_least


@dataclass(frozen=True)
class OnHosts:
    """Train over several hosts that are network namespaces of this machine, joined by links of a given rate.

    What follows `--` is a command as without hosts; its workers are dealt evenly to the hosts by torchrun. Weights
    come out the same, bit for bit, and times are those of the links. Needs root, `ip` and `tc`; the hosts vanish with
    the command, however it ends.

        scala-lab hosts --count 2 --rate 200mbit -- train --method lamb --workers 2
    """

    count: int = 2
    """Hosts."""
    rate: str | None = None
    """Of each host's link in each direction, such as 200mbit or 10gbit; default no limit."""
    command: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Stands after `--`."""


def run(options: OnHosts) -> int:
    """Bring up the hosts and train on them."""
    from scala_lab.timing.hosts import open_hosts

    if not options.command or options.command[0] != "train":
        raise UserError("hosts: give the run after `--`, as in `scala-lab hosts --rate 200mbit -- train --workers 2`")
    check_at_least(1, "hosts: ", count=options.count)
    run_options = train.parse(list(options.command[1:]))
    workers = run_options.spec.machine.workers
    if workers % options.count:
        raise UserError(f"hosts: --workers {workers} cannot be dealt evenly to {options.count} hosts")
    with open_hosts(options.count, options.rate) as hosts:
        return train.run(run_options, hosts)
