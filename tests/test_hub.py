"""The hub is tried once, for a few seconds at most, whatever hangs."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from scala_lab import hub
from tests.processes import PATIENCE


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub.hub_reachable.cache_clear()
    yield
    hub.hub_reachable.cache_clear()


def test_name_server_that_never_answers(monkeypatch):
    let_go, asked, answered = threading.Event(), [], threading.Event()

    def hang(*_, **__):
        asked.append(1)
        let_go.wait(PATIENCE)
        answered.set()
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.1)
    try:
        assert not hub.hub_reachable()
        assert not hub.hub_reachable()
        assert len(asked) <= 1, "the answer is kept"
        assert not answered.is_set(), "it was waited for"
    finally:
        let_go.set()


def test_nobody_waits_long():
    assert hub.TIMEOUT_SECONDS <= 5


def test_refusal_is_known_at_once(monkeypatch):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{unused.getsockname()[1]}")
        monkeypatch.setattr(hub, "TIMEOUT_SECONDS", PATIENCE)
        started = time.monotonic()
        assert not hub.hub_reachable()
        assert time.monotonic() - started < PATIENCE


def test_proxy_that_listens_leads_to_the_hub(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert hub.hub_reachable()


@pytest.mark.parametrize("address", ["http://127.0.0.1:port", "http://", "://"])
def test_malformed_proxy_is_no_way_to_the_hub(monkeypatch, address):
    monkeypatch.setenv("HTTPS_PROXY", address)
    assert not hub.hub_reachable()


def test_offline_by_choice_does_not_try(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("it tried"))
    assert not hub.hub_reachable()
