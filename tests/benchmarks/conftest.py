"""The benchmarks are scripts beside one another; their folder is on the path while their tests run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # while modules are collected, which import from it


@pytest.fixture(scope="module")
def peers() -> Iterator[None]:
    """The packages that the benchmarks measure against, where some benchmark has installed them already."""
    from peers import peers_folder

    folder = str(peers_folder())
    if not Path(folder).is_dir():
        pytest.skip("the benchmarks' peers are not installed (`make bench` installs them)")
    sys.path.append(folder)
    yield
    sys.path.remove(folder)
