"""Several hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Each host is a network namespace with one interface, `eth0`, plugged into a bridge in a namespace of its own. A token
bucket (`tc tbf`) at both ends of every link shapes both directions, so that what workers on different hosts send one
another takes as long as on a real network of that rate, while workers of one host talk over its loopback.

Nothing has to be cleaned up. A namespace has no name and lives as long as a process in it: a holder that ends when
its standard input does, which the system closes when this process is gone, even by kill -9. What was started on a
host is sent SIGTERM at the same moment. Interfaces, bridge and shaping vanish with their namespaces.

Example:
    >>> with open_hosts(2, rate="200mbit") as hosts:  # doctest: +SKIP
    ...     train(RunSpec.of(task="mini-sst2", workers=2), launcher=hosts)
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from scala_lab.config import MachineSpec
from scala_lab.errors import UserError
from scala_lab.processes import LAUNCHER

TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
INTERFACE, PORT = "eth0", 29500
BURST_SECONDS, LEAST_BURST = 0.001, 16_384
"""A link may send this much at once after a pause: next to nothing beside a gradient, enough for whole packets."""


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up.

    Attributes:
        holders: The process that holds each host's namespace.
        rate: Bits per second of each link and direction; None for links that are not shaped.
    """

    holders: tuple[int, ...]
    rate: float | None

    def address(self, host: int) -> str:
        """Where the others reach a host."""
        return f"10.77.{host // 250}.{host % 250 + 1}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """A command as run on a host; it is ended when the process that starts it is gone."""
        return ["setpriv", "--pdeathsig", "TERM", *_inside(self.holders[host]), *command]

    def start(
        self, arguments: Sequence[str], machine: MachineSpec, environment: dict[str, str]
    ) -> list[subprocess.Popen[bytes]]:
        """Start a run's workers as `python ARGUMENTS`, dealt evenly, by one torchrun on each host.

        Args:
            arguments: The same for every worker; torchrun tells each which one it is.
            machine: How many workers in all, with how many threads each.
            environment: Variables for the workers beside this process's own.

        Returns:
            The torchrun of each host; it ends when its workers have.

        Raises:
            UserError: The workers cannot be dealt evenly.
        """
        count = len(self.holders)
        if machine.workers % count:
            raise UserError(f"{machine.workers} workers cannot be dealt evenly to {count} hosts")
        variables = {name: value for name, value in os.environ.items() if name != LAUNCHER}
        variables |= {"OMP_NUM_THREADS": str(machine.threads or 1), **environment}
        variables |= {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else it complains that addresses here have no names
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}"]
        torchrun += [f"--nproc-per-node={machine.workers // count}", f"--master-addr={self.address(0)}"]
        return [
            subprocess.Popen(
                self.command(
                    host,
                    [
                        *(*torchrun, f"--master-port={PORT}", f"--node-rank={host}"),
                        *(f"--local-addr={self.address(host)}", *arguments),
                    ],
                ),
                env=variables,
            )
            for host in range(count)
        ]


@contextmanager
def open_hosts(count: int, rate: str | None = None) -> Iterator[Hosts]:
    """Hosts on this machine, until the block ends or this process does.

    Args:
        count: How many.
        rate: Of each link in each direction, as tc writes it: `200mbit`, `10gbit`; None for no limit.

    Raises:
        UserError: This machine or this user cannot have them, or the rate is none.
    """
    bits = None if rate is None else bits_per_second(rate)
    lack = unsupported_reason()
    if lack is not None:
        raise UserError(lack)
    with ExitStack() as stack:
        switch, *holders = (stack.enter_context(_namespace()) for _ in range(1 + count))
        hosts = Hosts(tuple(holders), bits)
        _configure(switch, "link set lo up", "link add switch type bridge", "link set switch up")
        for host, holder in enumerate(holders):
            plug = f"link add port{host} type veth peer name {INTERFACE} netns {holder}"
            _configure(switch, plug, f"link set port{host} master switch up")
            own_address = f"address add {hosts.address(host)}/16 dev {INTERFACE}"
            _configure(holder, "link set lo up", own_address, f"link set {INTERFACE} up")
            if bits is not None:
                _shape(switch, f"port{host}", bits)
                _shape(holder, INTERFACE, bits)
        yield hosts


def unsupported_reason() -> str | None:
    """What this machine or this user lacks to have hosts, as a sentence; None where nothing is lacking."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"hosts on one machine need {', '.join(missing)} (Debian packages iproute2 and util-linux)"
    if os.geteuid() != 0:
        return "hosts on one machine are network namespaces, which only root can make"
    attempt = subprocess.run(["unshare", "--net", "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if attempt.returncode != 0:
        return f"this machine lets nobody make network namespaces: {_last_line(attempt.stderr)}"
    return None


def bits_per_second(rate: str) -> float:
    """A rate as tc writes it.

    Example:
        >>> bits_per_second("200mbit")
        200000000.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", rate)
    if found is None or float(found[1]) == 0:
        raise UserError(f"a link's rate is a number with kbit, mbit or gbit, such as 200mbit, not {rate!r}")
    return float(found[1]) * UNITS[found[2]]


@contextmanager
def _namespace() -> Iterator[int]:
    """A network namespace, as the process that holds it."""
    wait_for_end = "echo; exec cat > /dev/null"
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", wait_for_end], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        holder.stdout.readline()  # it is inside from here on
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()


def _inside(holder: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net", "--"]


def _configure(holder: int, *lines: str) -> None:
    """Have `ip` do some things in a namespace."""
    _run(holder, ["ip", "-batch", "-"], "\n".join(lines))


def _shape(holder: int, interface: str, bits: float) -> None:
    """Let an interface send no faster than a rate."""
    burst = max(LEAST_BURST, round(bits / 8 * BURST_SECONDS))
    bucket = ["tbf", "rate", f"{bits:.0f}bit", "burst", f"{burst}b", "latency", "50ms"]
    _run(holder, ["tc", "qdisc", "add", "dev", interface, "root", *bucket])


def _run(holder: int, command: Sequence[str], words: str = "") -> None:
    done = subprocess.run([*_inside(holder), *command], input=words, capture_output=True, text=True)
    if done.returncode != 0:
        raise UserError(f"the hosts' network cannot be set up: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
