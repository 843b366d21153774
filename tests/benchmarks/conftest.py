"""What tests of the benchmarks share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


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
