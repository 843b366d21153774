"""A browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    one = Browser(program)
    yield one
    one.close()
