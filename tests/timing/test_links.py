from __future__ import annotations

import math

import pytest

from scala_lab.timing.model import FREE, Link, Network, fit_link

LINK = Link(latency=1e-4, bandwidth=1e8)


def test_an_exchange_sends_what_its_algorithm_says():
    # two members of a ring: two rounds, each half of the message
    assert LINK.all_reduce(1e6, 2) == pytest.approx(2e-4 + 1e6 / 1e8)
    assert LINK.all_reduce(1e6, 4) == pytest.approx(6e-4 + 1.5e6 / 1e8)
    assert LINK.all_reduce(1e6, 8, "tree") == pytest.approx(6e-4 + 2e6 / 1e8)
    assert LINK.all_reduce(1e6, 1) == 0


def test_rings_carry_large_messages_and_trees_small_ones_among_many():
    for size, better in ((1e9, "ring"), (1e3, "tree")):
        assert LINK.all_reduce(size, 64, "best") == LINK.all_reduce(size, 64, better)


def test_limits():
    assert FREE.all_reduce(1e9, 1024) == 0
    assert Link(1e-4, math.inf).all_reduce(1e9, 1024) == pytest.approx(2 * 1023 * 1e-4)
    # without latency, the number of members hardly matters: at most twice the message
    assert Link(0.0, 1e8).all_reduce(1e8, 10**6) == pytest.approx(2.0, rel=1e-5)


def test_hosts_exchange_only_what_each_has_summed_up():
    network = Network(within=Link(0.0, 1e9), across=Link(0.0, 1e8), per_host=16)
    assert network.all_reduce(1e8, 16) == pytest.approx(0.1 * 30 / 16)
    assert network.all_reduce(1e8, 32) == pytest.approx(0.1 * 30 / 16 + 1.0)
    assert network.all_reduce(1e8, 1) == 0


@pytest.mark.parametrize("members", [2, 5])
def test_fit_finds_the_link_that_made_the_times(members):
    sizes = [1e3, 1e5, 1e6, 1e7]
    found = fit_link(sizes, [LINK.all_reduce(size, members) for size in sizes], members)
    assert found.latency == pytest.approx(LINK.latency)
    assert found.bandwidth == pytest.approx(LINK.bandwidth)
