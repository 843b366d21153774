"""Several hosts on one machine: network namespaces joined by a switch, over links of a given rate.

Each host is a network namespace with one interface, `eth0`, plugged into a bridge in a namespace of its own. A token
bucket (`tc tbf`) at both ends of every link shapes both directions, so that messages between hosts take as long as on
a real network of that rate, while workers of one host use its loopback.

Nothing has to be cleaned up: a namespace has no name and lives as long as a process in it, a holder that ends when its
standard input closes, which the system does when this process is gone, even by kill -9. Processes that were started on
a host get SIGTERM at the same moment. Interfaces, bridge and shaping vanish with their namespaces.
"""

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
from scala_lab.machine import LAUNCHER, child_pythonpath

TOOLS = ("ip", "tc", "unshare", "nsenter", "setpriv")
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
INTERFACE, PORT = "eth0", 29500
BURST_SECONDS, MIN_BURST = 0.001, 16_384
"""What a link may send at once after a pause (the minimum in bytes): little beside a gradient, enough for packets."""


@dataclass(frozen=True)
class Hosts:
    """Running hosts, by the process that holds each one's namespace."""

    holders: tuple[int, ...]

    def address(self, host: int) -> str:
        """The IP address of a host."""
        return f"10.77.{host // 250}.{host % 250 + 1}"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """Wrap a command so that it runs on a host, and ends when the process that starts it is gone."""
        return ["setpriv", "--pdeathsig", "TERM", *_inside(self.holders[host]), *command]

    def __call__(self, arguments: Sequence[str], machine: MachineSpec) -> list[subprocess.Popen[bytes]]:
        """Start a run's workers as `python ARGUMENTS`, dealt evenly, by one torchrun on each host; return these."""
        count = len(self.holders)
        if machine.workers % count:
            raise UserError(f"{machine.workers} workers cannot be dealt evenly to {count} hosts")
        variables = {name: value for name, value in os.environ.items() if name != LAUNCHER}
        variables |= {"OMP_NUM_THREADS": str(machine.threads or 1), "PYTHONPATH": child_pythonpath()}
        variables |= {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": INTERFACE}
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else it complains that addresses here have no names
        torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={count}", f"--master-port={PORT}"]
        torchrun += [f"--nproc-per-node={machine.workers // count}", f"--master-addr={self.address(0)}"]
        nodes = [[f"--node-rank={host}", f"--local-addr={self.address(host)}"] for host in range(count)]
        return [
            subprocess.Popen(self.command(host, [*torchrun, *node, *arguments]), env=variables)
            for host, node in enumerate(nodes)
        ]


@contextmanager
def open_hosts(count: int, rate: str | None = None) -> Iterator[Hosts]:
    """Bring up hosts until the block or this process ends; a UserError where this machine or user cannot have them.

    The rate is that of each link in each direction, as tc writes it (`200mbit`, `10gbit`); None for no limit.
    """
    bits = None if rate is None else bits_per_second(rate)
    lack = unsupported_reason()
    if lack is not None:
        raise UserError(lack)
    with ExitStack() as stack:
        switch, *holders = (stack.enter_context(_namespace()) for _ in range(1 + count))
        hosts = Hosts(tuple(holders))
        _configure(switch, "link set lo up", "link add switch type bridge", "link set switch up")
        for host, holder in enumerate(holders):
            plug = f"link add port{host} type veth peer name {INTERFACE} netns {holder}"
            _configure(switch, plug, f"link set port{host} master switch up")
            address = f"address add {hosts.address(host)}/16 dev {INTERFACE}"
            _configure(holder, "link set lo up", address, f"link set {INTERFACE} up")
            if bits is not None:
                _shape(switch, f"port{host}", bits)
                _shape(holder, INTERFACE, bits)
        yield hosts


def unsupported_reason() -> str | None:
    """Return why this machine or this user cannot have hosts, as a sentence; None if they can."""
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
    """Parse a rate as tc writes it, such as 200mbit."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]bit)", rate)
    if match is None or float(match[1]) == 0:
        raise UserError(f"a link's rate is a number with kbit, mbit or gbit, such as 200mbit, not {rate!r}")
    return float(match[1]) * UNITS[match[2]]


@contextmanager
def _namespace() -> Iterator[int]:
    """Open a network namespace and yield the process that holds it."""
    command = ["unshare", "--net", "sh", "-c", "echo; exec cat > /dev/null"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()  # it is inside from here on
        yield holder.pid


def _inside(holder: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{holder}/ns/net", "--"]


def _configure(holder: int, *commands: str) -> None:
    _run(holder, ["ip", "-batch", "-"], "\n".join(commands))


def _shape(holder: int, interface: str, bits: float) -> None:
    burst = max(MIN_BURST, round(bits / 8 * BURST_SECONDS))
    bucket = ["tbf", "rate", f"{bits:.0f}bit", "burst", f"{burst}b", "latency", "50ms"]
    _run(holder, ["tc", "qdisc", "add", "dev", interface, "root", *bucket])


def _run(holder: int, command: Sequence[str], text: str = "") -> None:
    done = subprocess.run([*_inside(holder), *command], input=text, capture_output=True, text=True)
    if done.returncode != 0:
        raise UserError(f"the hosts' network cannot be set up: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
