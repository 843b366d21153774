"""How long an all-reduce takes: latency and bandwidth of a link, as a ring or a tree, within hosts and across them.

Over one link class, P members exchange n bytes in

    ring:  2 (P - 1) rounds, 2 (P - 1) / P * n bytes through every link
    tree:  2 ceil(log2 P) rounds, 2 n bytes through every link (up with sums, down with their total)

and a round costs the link's latency. Rings send least, trees need the fewest rounds. Where a run has several hosts,
each host sums up by itself, hosts exchange the sums, and each shares the total among its workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Algorithm = Literal["ring", "tree", "best"]


@dataclass(frozen=True)
class Link:
    """A link class.

    Attributes:
        latency: Seconds that a round costs beside its bytes.
        bandwidth: Bytes per second in each direction.
    """

    latency: float
    bandwidth: float

    def all_reduce(self, size: float, members: int, algorithm: Algorithm = "ring") -> float:
        """Seconds to sum `size` bytes over so many members; 0 for one."""
        if members == 1:
            return 0.0
        if algorithm == "best":
            return min(self.all_reduce(size, members, "ring"), self.all_reduce(size, members, "tree"))
        rounds, share = rounds_and_share(members, algorithm)
        return rounds * self.latency + share * size / self.bandwidth


FREE = Link(0.0, math.inf)


@dataclass(frozen=True)
class Network:
    """Hosts and what joins them.

    Attributes:
        within: Between workers of one host.
        across: Between hosts.
        per_host: Most workers on one host.
        algorithm: How each exchange is done.
    """

    within: Link
    across: Link
    per_host: int
    algorithm: Algorithm = "ring"

    def all_reduce(self, size: float, workers: int) -> float:
        """Seconds to sum `size` bytes over so many workers, on as few hosts as hold them."""
        hosts = math.ceil(workers / self.per_host)
        here = math.ceil(workers / hosts)
        inside = self.within.all_reduce(size, here, self.algorithm)
        return inside + self.across.all_reduce(size, hosts, self.algorithm)


def rounds_and_share(members: int, algorithm: Algorithm) -> tuple[int, float]:
    """Rounds of an all-reduce, and what of the message goes through every link."""
    if algorithm == "ring":
        return 2 * (members - 1), 2 * (members - 1) / members
    return 2 * math.ceil(math.log2(members)), 2.0


def fit_link(sizes: Sequence[float], seconds: Sequence[float], members: int, algorithm: Algorithm = "ring") -> Link:
    """The latency and bandwidth, both at least 0, that explain timed all-reduces with the least relative error."""
    from scipy.optimize import nnls

    rounds, share = rounds_and_share(members, algorithm)
    times = np.asarray(seconds)
    rows = np.stack([np.full(len(times), float(rounds)), share * np.asarray(sizes, dtype=np.float64)], axis=1)
    (latency, per_byte), _ = nnls(rows / times[:, None], np.ones(len(times)))
    return Link(float(latency), 1 / float(per_byte) if per_byte > 0 else math.inf)
