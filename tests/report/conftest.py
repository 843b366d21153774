"""A browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.report.browser import Browser, BrowserError, find_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    try:
        one = Browser(program)
    except BrowserError as error:
        pytest.skip(f"{program} does not start here: {error}")
    yield one
    one.close()
